"""The supervisor without processes: back-off, decisions of the fleet, and metrics of several
workers."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter

from fairlead.cli.worker_options import MOST_PER_CORE, MOST_WORKERS, WorkerOptions
from fairlead.contrib.prometheus import exposition
from fairlead.engine.node import Node
from fairlead.engine.settings import NodeSettings
from fairlead.errors import ConfigurationError
from fairlead.supervisor.exposition import metrics_routes
from fairlead.supervisor.fleet import (
    EARLY_ENDS,
    Drain,
    End,
    Fleet,
    Kill,
    Log,
    Start,
)
from fairlead.supervisor.health import LIVE, LIVE_SECONDS, READY, NodeHealth, health_routes
from fairlead.supervisor.http import Response, Routes, StatusServer
from fairlead.supervisor.link import SupervisorEnd
from fairlead.supervisor.metrics import Family, Sample, Total
from fairlead.supervisor.processes import usable_cores
from fairlead.supervisor.supervisor import Supervisor


def orders(actions: list[Any]) -> list[Any]:
    """Return the actions without log lines."""
    return [action for action in actions if not isinstance(action, Log)]


def running(workers: int, **options: Any) -> Fleet:
    """Return a fleet whose workers are ready, as processes 1 to N that started at 0 seconds."""
    fleet = Fleet(workers, **options)
    for start in fleet.start(0.0):
        assert isinstance(start, Start)
        fleet.on_ready(start.child, 1.0)
    return fleet


# restarts -----------------------------------------------------------------------------------------


def test_a_worker_that_ends_early_is_restarted_later_each_time() -> None:
    fleet = running(2)
    now, child, waits = 1.0, 1, []
    for _ in range(4):
        fleet.on_exit(child, 1, now)
        assert fleet.next_due is not None
        waits.append(fleet.next_due - now)
        now = fleet.next_due
        (start,) = fleet.on_time(now)
        child = start.child
    assert waits == [0.5, 1, 2, 4]


@pytest.mark.parametrize(("seconds", "code"), [(0.0, 3), (60.0, 137)], ids=["ends", "hangs"])
def test_early_ends_in_a_row_end_the_supervisor_when_no_worker_is_ready(
    seconds: float, code: int
) -> None:
    fleet, now = Fleet(1, start_timeout=60.0), 0.0
    (start,) = fleet.start(now)
    for _ in range(EARLY_ENDS - 1):
        fleet.on_time(now + seconds)  # kills a worker that hangs
        assert orders(fleet.on_exit(start.child, code, now + seconds)) == []
        now = fleet.next_due
        (start,) = fleet.on_time(now)
    assert orders(fleet.on_exit(start.child, code, now + seconds)) == [End(code)]


def test_a_usage_error_at_the_first_start_ends_the_supervisor_at_once() -> None:
    fleet = Fleet(2)
    fleet.start(0.0)
    assert orders(fleet.on_exit(1, 2, 0.1)) == [Drain(2)]
    assert orders(fleet.on_exit(2, 0, 0.2)) == [End(2)]


def test_after_a_worker_was_ready_a_usage_error_is_tried_again() -> None:
    fleet = running(2)
    fleet.on_exit(1, 137, 100.0)
    fleet.on_time(100.0)
    assert orders(fleet.on_exit(3, 2, 100.1)) == []  # for example because the store is unavailable
    assert fleet.next_due == 100.6


class FailingLaunch:
    """Launch processes that end at once with code 0; the first `failures` launches of slot 2 fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.launched: list[int] = []

    def __call__(self, slot: int) -> tuple[subprocess.Popen[bytes], SupervisorEnd]:
        if slot == 2 and self.failures:
            self.failures -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.launched.append(slot)
        ours, theirs = socket.socketpair()
        theirs.close()
        return subprocess.Popen([sys.executable, "-c", ""]), SupervisorEnd(ours)


def test_a_worker_that_cannot_be_started_is_started_later_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.supervisor.fleet.FIRST_DELAY", 0.01)
    launch = FailingLaunch(failures=2)
    fleet = Fleet(2, until_empty=True)
    assert Supervisor(2, fleet, launch).run() == 0
    assert sorted(launch.launched) == [1, 2]


def test_a_supervisor_that_can_start_no_worker_ends_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.supervisor.fleet.FIRST_DELAY", 0.01)
    launch = FailingLaunch(failures=EARLY_ENDS)
    fleet = Fleet(2, until_empty=True)
    supervisor = Supervisor(2, fleet, launch)
    assert supervisor.run() == 1
    assert "worker 2 cannot be started: " in str(supervisor.last_error)


def test_a_worker_that_hangs_at_its_start_is_killed_and_started_again_later_each_time() -> None:
    fleet = running(2, start_timeout=60.0)
    fleet.on_exit(1, 137, 100.0)
    now, waits = 100.0, []
    for _ in range(3):
        (start,) = fleet.on_time(now)
        assert fleet.next_due == now + 60
        assert orders(fleet.on_time(now + 59)) == []
        kill, log = fleet.on_time(now + 60)
        assert kill == Kill(start.child)
        assert isinstance(log, Log)
        assert log.event == "worker is not ready in time and is killed"
        fleet.on_exit(start.child, 137, now + 60)
        assert fleet.next_due is not None
        waits.append(fleet.next_due - now - 60)
        now = fleet.next_due
    assert waits == [0.5, 1, 2]
    assert fleet.early_ends(1) == 3


def test_a_worker_that_waits_for_its_store_is_not_killed_for_that() -> None:
    fleet = Fleet(1, start_timeout=60.0)
    fleet.start(0.0)
    fleet.on_waits(1, 50.0)
    assert orders(fleet.on_time(109.0)) == []
    assert orders(fleet.on_time(110.0)) == [Kill(1)]


def test_new_code_that_hangs_at_its_start_replaces_no_worker() -> None:
    fleet = running(2, start_timeout=60.0)
    fleet.reload(50.0)
    assert orders(fleet.on_time(110.0)) == [Kill(3)]
    (failed,) = fleet.on_exit(3, 137, 110.1)
    assert isinstance(failed, Log) and failed.event.startswith("reload failed")
    assert {*fleet.children} == {1, 2}


# stopping -----------------------------------------------------------------------------------------


def test_the_second_signal_kills_all_workers() -> None:
    fleet = running(2)
    fleet.stop(signal.SIGINT, 50.0)
    assert fleet.stop(signal.SIGINT, 50.1) == [Kill(1), Kill(2), End(130)]


def test_a_worker_that_does_not_drain_is_killed() -> None:
    fleet = running(1, drain=20.0)
    fleet.stop(signal.SIGTERM, 50.0)
    assert fleet.next_due == 80.0
    assert orders(fleet.on_time(80.0)) == [Kill(1)]
    assert fleet.on_exit(1, 137, 80.1) == [End(137)]


def test_a_worker_that_a_signal_ends_while_it_starts_is_no_failed_drain() -> None:
    fleet = running(1)
    fleet.stop(signal.SIGTERM, 50.0)
    assert fleet.on_exit(1, 143, 50.1) == [End(0)]


def test_a_stop_cancels_waiting_restarts() -> None:
    fleet = running(1)
    fleet.on_exit(1, 1, 2.0)
    assert orders(fleet.stop(signal.SIGTERM, 2.1)) == [End(0)]
    assert fleet.next_due is None


def test_until_empty_ends_after_the_last_worker_and_restarts_only_failed_ones() -> None:
    fleet = running(2, until_empty=True)
    assert orders(fleet.on_exit(1, 0, 5.0)) == []
    assert fleet.next_due is None
    assert orders(fleet.on_exit(2, 137, 20.0)) == []
    assert fleet.on_time(20.0) == [Start(3, 2)]
    assert orders(fleet.on_exit(3, 0, 21.0)) == [End(0)]


# reloading ----------------------------------------------------------------------------------------


def test_new_code_that_cannot_run_replaces_no_worker() -> None:
    fleet = running(2)
    fleet.reload(50.0)
    (failed,) = fleet.on_exit(3, 2, 50.5)
    assert isinstance(failed, Log) and failed.is_warning
    assert {*fleet.children} == {1, 2}
    # The old code is started again after a crash, not the new one.
    fleet.on_exit(1, 137, 100.0)
    assert fleet.on_time(100.0) == [Start(4, 1)]


def test_a_worker_that_dies_during_its_replacement_is_not_started_again() -> None:
    fleet = running(1)
    fleet.reload(50.0)
    assert orders(fleet.on_exit(1, 137, 50.1)) == []
    assert fleet.on_time(50.9) == []
    assert orders(fleet.on_ready(2, 51.0)) == []
    assert fleet.next_due is None


def test_a_second_reload_begins_after_the_replacement_under_way() -> None:
    fleet = running(1)
    assert orders(fleet.reload(50.0)) == [Start(2, 1)]
    assert orders(fleet.reload(50.1)) == []
    assert orders(fleet.on_ready(2, 51.0)) == [Drain(1)]
    assert orders(fleet.on_exit(1, 0, 52.0)) == [Start(3, 1)]


def test_a_reload_waits_for_a_worker_that_starts() -> None:
    fleet = Fleet(1)
    fleet.start(0.0)
    assert orders(fleet.reload(0.1)) == []
    assert orders(fleet.on_ready(1, 1.0)) == [Start(2, 1)]


# health and its server ----------------------------------------------------------------------------


class SomeNode:
    """The attributes of a node that its health reads."""

    settings = NodeSettings(name="w-1")
    not_ready: str | None = None
    waits_for: str | None = None

    def __init__(self, is_ready: bool = True) -> None:
        self.ready = asyncio.Event()
        if is_ready:
            self.ready.set()


def asked(routes: Routes, path: str) -> tuple[int, dict[str, Any]]:
    response = routes(path, "")
    assert response is not None
    return response.status, json.loads(response.body)


def test_a_node_that_does_not_serve_is_live_and_not_ready() -> None:
    node = SomeNode()
    routes = health_routes(NodeHealth(cast(Node, node)), lambda path, accept: None)
    assert asked(routes, "/ready") == (
        200,
        {"node": "w-1", "live": True, "ready": True, "reason": None, "waits": False},
    )
    node.not_ready = "draining"
    assert asked(routes, "/ready")[0] == 503
    assert asked(routes, "/live")[0] == 200


def test_a_blocked_event_loop_is_neither_live_nor_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = health_routes(NodeHealth(cast(Node, SomeNode())), lambda path, accept: None)
    later = time.monotonic() + LIVE_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    status, body = asked(routes, "/live")
    assert (status, body["reason"]) == (503, "the event loop has not responded for 10 seconds")
    assert asked(routes, "/ready")[0] == 503


def test_a_node_that_takes_too_long_to_start_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SomeNode(is_ready=False)
    node.not_ready = "starting"
    health = NodeHealth(cast(Node, node), start_timeout=5.0)
    routes = health_routes(health, lambda path, accept: None)
    assert asked(routes, "/live")[0] == 200
    later = time.monotonic() + 5
    monkeypatch.setattr(time, "monotonic", lambda: later)
    status, body = asked(routes, "/live")
    assert (status, body["reason"]) == (503, "the node is not ready 5 seconds after its start")
    node.ready.set()
    node.not_ready = None
    assert asked(routes, "/live")[0] == asked(routes, "/ready")[0] == 200


def test_the_server_reads_a_request_in_pieces_while_another_client_is_silent() -> None:
    server = StatusServer("127.0.0.1", 0, lambda path, accept: Response(200, path.encode()))
    server.start()
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address), socket.create_connection(address) as client:
        for piece in (b"GET /ready?a HT", b"TP/1.1\r\nHost: a\r\n", b"\r\n"):
            client.sendall(piece)
        response = client.makefile("rb").read()
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\n/ready")


@pytest.mark.parametrize(
    ("request_", "status"),
    [(b"POST / HTTP/1.1\r\n\r\n", b" 405 "), (b"GET /none HTTP/1.1\r\n\r\n", b" 404 ")],
)
def test_the_server_refuses_other_requests(request_: bytes, status: bytes) -> None:
    server = StatusServer("127.0.0.1", 0, lambda path, accept: None)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request_)
        assert status in client.makefile("rb").readline()


@pytest.mark.parametrize(
    ("path", "authorization", "status", "body"),
    [
        ("/metrics", b"", 401, "send the token"),
        ("/metrics", b"Bearer wrong", 401, "send the token"),
        ("/metrics", b"Basic 0123456789abcdef", 401, "send the token"),
        ("/metrics", b"Bearer \xff\xfe", 401, "send the token"),
        ("/metrics", b"bearer 0123456789abcdef", 200, "# HELP"),
        ("/", b"Bearer 0123456789abcdef", 200, "# HELP"),
        ("/live", b"", 200, ""),
        ("/live", b"Bearer 0123456789abcdef", 200, '"live":true'),
        ("/ready", b"", 503, ""),
        ("/health", b"Bearer 0123456789abcdef", 404, "use /metrics, /live or /ready"),
        ("/health", b"", 401, "send the token"),
    ],
)
def test_with_a_token_others_see_only_whether_the_worker_is_well(
    path: str, authorization: bytes, status: int, body: str
) -> None:
    node = SomeNode(is_ready=False)
    node.not_ready = "starting"
    registry = CollectorRegistry()
    Counter("runs", "Runs.", registry=registry)
    asked: list[str] = []
    metrics = metrics_routes(registry)

    def counted(path: str, accept: str) -> Response | None:
        asked.append(path)
        return metrics(path, accept)

    routes = health_routes(NodeHealth(cast(Node, node)), counted)
    server = StatusServer("127.0.0.1", 0, routes, "0123456789abcdef", (LIVE, READY))
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            b"GET %s HTTP/1.1\r\nAuthorization: %s\r\n\r\n" % (path.encode(), authorization)
        )
        head, _, received = client.makefile("rb").read().decode().partition("\r\n\r\n")
    assert int(head.split()[1]) == status
    assert ("WWW-Authenticate: Bearer" in head) is (status == 401)
    assert body in received and bool(received) is bool(body)
    assert status != 401 or not asked  # nothing is worked out for strangers


def test_a_request_that_cannot_be_answered_ends_no_server() -> None:
    def respond(path: str, accept: str) -> Response:
        return Response(200, exposition(CollectorRegistry(), accept)[0])

    server = StatusServer("127.0.0.1", 0, respond)
    server.start()
    statuses = []
    for version in (b"abc", b"1.0.0"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            accept = b"Accept: application/openmetrics-text; version=" + version
            client.sendall(b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n\r\n")
            statuses.append(client.makefile("rb").readline().split()[1])
    assert statuses == [b"500", b"200"]


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99_999), ("a" * 70, 0)])
def test_an_address_that_cannot_exist_is_named(host: str, port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be served on {host}:{port}: "):
        StatusServer(host, port, lambda path, accept: None)


def test_an_address_in_use_is_named() -> None:
    server = StatusServer("127.0.0.1", 0, lambda path, accept: None)
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{server.port}: Address already"):
        StatusServer("127.0.0.1", server.port, lambda path, accept: None)


# metrics and cores --------------------------------------------------------------------------------


def counted(value: float) -> Family:
    samples = [Sample("x_total", (("queue", "a"),), value), Sample("x_created", (), 1.7e9)]
    return Family("x", "Counts.", "counter", samples)


def held(value: float) -> Family:
    return Family("held", "Holds.", "gauge", [Sample("held", (), value)])


def test_counters_add_up_and_do_not_fall_when_a_worker_ends() -> None:
    total = Total()
    total.update(1, "w-1", [counted(3)])
    total.update(2, "w-2", [counted(4)])
    total.on_exit(1)
    total.update(3, "w-1", [counted(1)])
    (family,) = total.families()
    assert family.samples == [Sample("x_total", (("queue", "a"),), 8)]


def test_gauges_have_the_node_as_label_and_end_with_it() -> None:
    total = Total()
    total.update(1, "w-1", [held(3)])
    total.update(2, "w-2", [held(4)])
    (family,) = total.families()
    assert [(each.labels, each.value) for each in family.samples] == [
        ((("node", "w-1"),), 3),
        ((("node", "w-2"),), 4),
    ]
    total.on_exit(1)
    assert [each.value for each in total.families()[0].samples] == [4]


@pytest.mark.parametrize(("quota", "limit"), [("50000 100000", 1), ("max 100000", 10_000)])
def test_usable_cores_respect_the_quota_of_a_container(
    tmp_path: Path, quota: str, limit: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert 1 <= usable_cores(tmp_path / "cpu.max") <= limit


# the number of workers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["", "0", "00", "-1", "1.5", "two", "1_0", " 2", "AUTO", "\u0663", "1e3", "10000", "9" * 5000],
)
def test_a_text_that_is_no_possible_number_of_workers_is_refused_with_the_limits(
    given: str,
) -> None:
    options = WorkerOptions(application="shop:app", workers=given)
    with pytest.raises(ConfigurationError) as caught:
        options.number_of_workers()
    most = max(MOST_WORKERS, MOST_PER_CORE * usable_cores())
    assert f"use a whole number from 1 to {most}, or auto" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("given", ["1", "8", "064", str(MOST_WORKERS)])
def test_a_reasonable_number_of_workers_is_taken(given: str) -> None:
    assert WorkerOptions(application="a:b", workers=given).number_of_workers() == int(given)
