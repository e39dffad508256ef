"""Real workers with triggers through a real Kafka: a broker that stops and starts, workers that die
and are added."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from fairlead import App
from services.kafka import KafkaServer
from tests.end_to_end.test_kill import (
    app_of,
    judge,
    submit,
    wait_for_runs,
    wait_until_finished,
)
from tests.end_to_end.workers import Crew
from tests.tiers import NIGHTLY

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

PIECE = 40
"""Tasks in one submit: few enough that their triggers go through Kafka on every store."""


def submit_in_pieces(app: App, numbers: range) -> None:
    for first in range(numbers.start, numbers.stop, PIECE):
        submit(app, "work", range(first, min(first + PIECE, numbers.stop)))


def wait_until_shared(crew: Crew) -> None:
    """Wait until the two workers own all six partitions: a partition that moves while the broker stops
    would have no owner."""

    def owned() -> list[str]:
        """Return the partitions of both workers; only their log shows them."""
        lines = crew.log.read_text().splitlines()
        changes = [line for line in lines if "partitions changed" in line]
        return re.findall(r"crash/\d", " ".join(changes[-2:])) if len(changes) > 1 else []

    crew.wait_until(lambda: sorted(owned()) == [f"crash/{n}" for n in range(6)])


def test_a_worker_killed_and_one_added_lose_nothing_and_repeat_only_what_was_in_flight(
    store_url: str, kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_CHANNEL", kafka_url)
    app, numbers = app_of(store_url), range(6000)
    with Crew(store_url, tmp_path, 2) as crew:
        sending = threading.Thread(target=submit_in_pieces, args=(app, numbers))
        sending.start()
        wait_for_runs(crew, 300)
        crew.processes.append(crew.start())
        wait_for_runs(crew, 1500)
        crew.kill_one()
        sending.join()
        wait_until_finished(app, crew)
    judge(crew, numbers)
    app.close()


@NIGHTLY("an outage")
def test_a_broker_that_stops_and_restarts_under_load_loses_nothing_and_repeats_nothing(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaServer() as server:
        monkeypatch.setenv("FAIRLEAD_CHANNEL", server.url)
        app, numbers = app_of(store_url), range(4000)
        with Crew(store_url, tmp_path, 2) as crew:
            submit_in_pieces(app, range(400))
            wait_for_runs(crew, 400)
            wait_until_shared(crew)
            server.crash()
            submit_in_pieces(app, range(400, 2000))
            wait_for_runs(crew, 2000)  # found by their rows
            server.start()
            submit_in_pieces(app, range(2000, 4000))
            wait_until_finished(app, crew)
            assert [process.poll() for process in crew.processes] == [None, None]
        assert judge(crew, numbers) == 0
        app.close()
