"""The thread that serves one Kafka client: its rounds, its end, forks and log lines."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from fairlead.backends.kafka.client import ClientThread  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.backends.kafka.log_topics import LogTopics  # noqa: E402
from fairlead.backends.kafka.outage_log import KafkaOutageLog  # noqa: E402
from fairlead.backends.kafka.prefix_owner import PrefixOwner  # noqa: E402
from fairlead.backends.kafka.sender import KafkaSender, Outgoing  # noqa: E402
from fairlead.errors import StoreUnavailable  # noqa: E402

SOON = 30.0


class Recorder:
    """A service that records its calls; each `poll` calls `work`."""

    def __init__(self, work: Callable[[ClientThread[str]], None]) -> None:
        self.work = work
        self.polled = threading.Event()
        self.calls: list[str] = []
        self.error: BaseException | None = None

    def poll(self, thread: ClientThread[str]) -> None:
        self.calls.append(f"poll {thread.client}")
        self.polled.set()
        self.work(thread)

    def finish(self, thread: ClientThread[str]) -> None:
        self.calls.append("finish")

    def on_failure(self, error: BaseException) -> None:
        self.error = error

    def close_client(self, thread: ClientThread[str]) -> None:
        self.calls.append("release")


def started(service: Recorder, **options: Any) -> ClientThread[str]:
    outages = KafkaOutageLog("away", {"channel": "here"})
    thread = ClientThread("test", "client", service, outages, **options)
    assert service.polled.wait(SOON)
    return thread


def test_a_close_ends_a_waiting_round_then_finishes_and_closes_the_client() -> None:
    service = Recorder(lambda thread: thread.wait_for_work())
    thread = started(service)
    assert not thread.is_closing and not thread.is_current
    assert thread.close() and thread.is_closing
    assert service.calls == ["poll client", "finish", "release"] and service.error is None


def test_an_outage_is_logged_and_followed_by_another_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fairlead.backends.kafka.client.AGAIN_SECONDS", 0.01)
    failures = iter([StoreUnavailable("gone"), StoreUnavailable("gone"), None])
    recovered = threading.Event()

    def work(thread: ClientThread[str]) -> None:
        if (failure := next(failures)) is not None:
            raise failure
        recovered.set()
        thread.wait_for_work()

    service = Recorder(work)
    with caplog.at_level(logging.WARNING, "fairlead.kafka"):
        thread = started(service)
        assert recovered.wait(SOON) and thread.close()
    assert [vars(record)["error"] for record in caplog.records] == ["gone"]
    assert service.error is None


def test_any_other_error_ends_the_thread_is_reported_and_closes_the_client() -> None:
    def work(thread: ClientThread[str]) -> None:
        raise ZeroDivisionError

    service = Recorder(work)
    thread = started(service)
    assert thread.close()
    assert isinstance(service.error, ZeroDivisionError)
    assert service.calls == ["poll client", "release"]


def test_a_close_waits_only_a_bounded_time_for_a_client_that_cannot_be_closed() -> None:
    stuck = threading.Event()
    service = Recorder(lambda thread: bool(stuck.wait(SOON)) and None)
    thread = started(service, close_seconds=0.05)
    assert not thread.close()
    stuck.set()
    assert thread.close() and service.calls[-1] == "release"


def test_when_the_thread_of_a_sender_fails_its_futures_fail_and_the_next_batch_starts_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(sender: KafkaSender) -> bool:
        raise ZeroDivisionError

    counts: Counter[str] = Counter()
    endpoint = KafkaEndpoint("127.0.0.1:1")
    sender = KafkaSender(
        endpoint,
        LogTopics(endpoint, PrefixOwner(endpoint, None), {"mail": 1}),
        1.0,
        lambda: counts.update(["unsent"]),
        KafkaOutageLog("not sent", {}),
    )
    monkeypatch.setattr(KafkaSender, "_ensure_topic", broken)
    for _ in range(2):
        future = sender.send([Outgoing("mail", 0, None, b"x"), Outgoing("mail", 0, None, b"y")])
        assert isinstance(future.exception(SOON), StoreUnavailable)
    sender.close()
    assert counts == {"unsent": 4}
    assert any(record.exc_info for record in caplog.records)
