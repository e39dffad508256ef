"""A standby becomes the primary under load: workers and submitters move over by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import App
from fairlead.errors import StoreUnavailable
from services.postgres import PostgresServer
from tests.conftest import skip_if_missing
from tests.end_to_end.test_kill import app_of, submit, wait_until_finished
from tests.end_to_end.workers import Crew
from tests.tiers import NIGHTLY
from tests.waiting import wait_until

IN_FLIGHT = 3.0
"""Seconds before a crash from which on a task counts as in flight."""


class Load:
    """A thread that submits ten tasks twenty times a second, and notes what was acknowledged."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._is_over = threading.Event()
        self.acknowledged: list[int] = []
        self.submitted = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            numbers = range(self.submitted, self.submitted + 10)
            self.submitted += 10
            try:
                submit(self._app, "work", numbers)
            except StoreUnavailable:
                continue  # they may exist or not
            self.acknowledged += numbers

    def wait_for(self, count: int) -> None:
        """Wait until this many more tasks were acknowledged."""
        aim = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= aim)


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with skip_if_missing("postgres"):
        server = PostgresServer()
    with server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with PostgresServer(primary=primary) as server:
        yield server


@NIGHTLY("an outage")
@pytest.mark.parametrize("replication", ["synchronous", "asynchronous", "behind"])
def test_work_goes_on_after_each_of_two_failovers(
    primary: PostgresServer, standby: PostgresServer, replication: str, tmp_path: Path
) -> None:
    is_synchronous = replication == "synchronous"
    url = primary.url_of("postgres", standby)
    app = app_of(url)
    crashes = []
    with Crew(url, tmp_path, 2) as crew, Load(app) as load:
        while crew.started < 2:
            time.sleep(0.1)
        for old, new in ((primary, standby), (standby, primary)):
            old.commit_on_standby(is_synchronous)
            load.wait_for(300)
            if replication == "behind":
                new.stop_receiving()  # so submits, claims and completions are lost
                load.wait_for(20)
            crashes.append(time.time())
            old.crash()
            new.promote()
            load.wait_for(300)
            old.follow(new)
        load.__exit__()
        wait_until_finished(app, crew)
    runs = crew.runs()
    for n, each in runs.items():
        for _, at in sorted(each, key=lambda run: run[1])[:-1]:
            assert any(-IN_FLIGHT < at - crash < 1 for crash in crashes), (n, each, crashes)
    lost = [n for n in load.acknowledged if n not in runs]
    # Without synchronous replication, the last commits before a crash may be lost.
    assert not is_synchronous or not lost
    app.close()
