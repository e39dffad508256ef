"""Promises of every `fairlead.ports.notifier.Notifier`, and its behaviour under failures."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.backends.postgres import notifier as postgres_notifier
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.notifier import PostgresNotifier
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sqlite import notifier as fifo_notifier
from fairlead.backends.sqlite.notifier import FifoNotifier
from fairlead.connect import task_store
from fairlead.model.peer import Grant, Spare, Want
from fairlead.ports.notification import ANY_CHANGE, Lane, Notification
from fairlead.ports.notifier import Notifier
from tests.proxies import Proxy

NOTIFICATION = Notification(
    ready=[Lane("payouts", 3, 5, 17)], due=123, control=True, finished=["some id"]
)


class Received:
    """Notifications that one listener has received."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        self._more = asyncio.Event()

    def __call__(self, notification: Notification) -> None:
        self.notifications.append(notification)
        self._more.set()

    async def until(
        self, is_enough: Callable[[list[Notification]], bool], seconds: float = 10.0
    ) -> None:
        async with asyncio.timeout(seconds):
            while not is_enough(self.notifications):
                self._more.clear()
                await self._more.wait()


class Neighbours:
    """Notifiers that reach each other, as from different processes."""

    def __init__(
        self, make: Callable[[], Notifier], notify: Callable[[Notification], None]
    ) -> None:
        self._make = make
        self._made: list[Notifier] = []
        self.notify = notify

    def make(self) -> Notifier:
        self._made.append(self._make())
        return self._made[-1]

    def close(self) -> None:
        async def close_all() -> None:
            for notifier in self._made:
                await notifier.close()

        asyncio.run(close_all())


@pytest.fixture(params=["memory", "fifo", "postgres"])
def neighbours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Neighbours]:
    store = None
    if request.param == "memory":
        first = MemoryNotifier()
        neighbours = Neighbours(lambda: MemoryNotifier(beside=first), first.notify)
    elif request.param == "fifo":
        neighbours = Neighbours(
            lambda: FifoNotifier(tmp_path / "tasks.db"), FifoNotifier(tmp_path / "tasks.db").notify
        )
    else:
        store = task_store(request.getfixturevalue("migrated_postgres_url"))
        # The notification is part of the transaction that announces it.
        neighbours = Neighbours(
            lambda: PostgresNotifier(store.database),
            lambda notification: store.database.run(store.announce(notification)),
        )
    yield neighbours
    neighbours.close()
    if store is not None:
        store.database.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


# promises of every notifier -----------------------------------------------------------------------


async def test_every_listener_gets_the_whole_notification_from_any_thread(
    neighbours: Neighbours,
) -> None:
    notifiers, listeners = [neighbours.make(), neighbours.make()], [Received(), Received()]
    for notifier, received in zip(notifiers, listeners, strict=True):
        await notifier.listen(received)
    neighbours.notify(NOTIFICATION)
    await asyncio.to_thread(neighbours.notify, NOTIFICATION)
    for notifier, received in zip(notifiers, listeners, strict=True):
        await received.until(lambda notifications: len(notifications) >= 2)
        assert received.notifications == [NOTIFICATION, NOTIFICATION]
        await notifier.close()


async def test_a_notification_of_a_thousand_lanes_arrives_whole_or_as_look_everywhere(
    neighbours: Neighbours,
) -> None:
    lanes = [Lane(f"queue-{n}", n, 5, n + 1) for n in range(1000)]

    notifier, received = neighbours.make(), Received()
    await notifier.listen(received)
    neighbours.notify(Notification(ready=lanes))

    def is_all(notifications: list[Notification]) -> bool:
        return ANY_CHANGE in notifications or {
            lane for notification in notifications for lane in notification.ready
        } == set(lanes)

    await received.until(is_all)
    await notifier.close()


async def test_a_closed_notifier_gets_no_notification_and_can_listen_again(
    neighbours: Neighbours,
) -> None:
    closed, other = neighbours.make(), neighbours.make()
    silent, received = Received(), Received()
    await closed.listen(silent)
    await other.listen(received)
    await closed.close()
    neighbours.notify(NOTIFICATION)
    await received.until(lambda notifications: NOTIFICATION in notifications)
    assert silent.notifications == []
    await closed.listen(silent)
    neighbours.notify(NOTIFICATION)
    await silent.until(lambda notifications: NOTIFICATION in notifications)
    await closed.close()
    await closed.close()
    await other.close()


async def test_a_message_between_nodes_reaches_its_recipient_only(neighbours: Neighbours) -> None:
    names = ["one", "two #1", "z" * 300, None]
    want = Want("two #1", "one", 1, 5, [("mail", "send", 5)])
    grant = Grant("z" * 300, "one", [])
    spare = Spare("one", [("mail", "send")])

    notifiers = [neighbours.make() for _ in names]
    listeners = [Received() for _ in names]
    for notifier, received, name in zip(notifiers, listeners, names, strict=True):
        await notifier.listen(received, name)
    for message in (want, grant, spare):
        notifiers[0].send(message)
    neighbours.notify(NOTIFICATION)  # the last one, which everybody gets
    for received in listeners:
        await received.until(lambda notifications: NOTIFICATION in notifications)
    for received in listeners[:3]:
        await received.until(lambda notifications: Notification(peer=spare) in notifications)
    got = [
        [notification.peer for notification in received.notifications if notification.peer]
        for received in listeners
    ]
    assert got[:3] == [[spare], [want, spare], [grant, spare]]
    assert got[3] in ([], [spare])  # a listener that is no node
    for notifier in notifiers:
        await notifier.close()


def test_notifying_without_a_listener_is_not_an_error(neighbours: Neighbours) -> None:
    neighbours.notify(NOTIFICATION)


def watch_open(
    neighbours: Neighbours, notifier: Notifier
) -> tuple[queue.Queue[list[str]], Callable[[], None]]:
    """Watch for finished tasks; return once the listener is open."""
    heard: queue.Queue[list[str]] = queue.Queue()
    stop = notifier.watch_finished(lambda ids: heard.put([*ids]))
    while True:
        neighbours.notify(Notification(finished=["first"]))
        with suppress(queue.Empty):
            if heard.get(timeout=0.1) == ["first"]:
                return heard, stop


def test_a_watcher_is_called_with_the_tasks_that_finished_until_it_stops(
    neighbours: Neighbours,
) -> None:
    notifier = neighbours.make()
    heard, stop = watch_open(neighbours, notifier)
    neighbours.notify(Notification(finished=["a", "b"]))
    while (ids := heard.get(timeout=10.0)) != ["a", "b"]:
        assert ids in ([], ["first"])
    neighbours.notify(ANY_CHANGE)
    assert heard.get(timeout=10.0) == []
    stop()
    others, _ = watch_open(neighbours, notifier)
    neighbours.notify(Notification(finished=["c"]))
    while others.get(timeout=10.0) != ["c"]:
        pass
    assert heard.empty()


# named pipes --------------------------------------------------------------------------------------

LISTEN = """
import asyncio, sys
from fairlead.backends.sqlite.notifier import FifoNotifier
async def main():
    await FifoNotifier(sys.argv[1]).listen(lambda notification: print("received", flush=True))
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def path(sqlite_url: str) -> Path:
    database = task_store(sqlite_url).database
    migrate(database)  # type: ignore[arg-type]
    return database.path  # type: ignore[attr-defined, no-any-return]


def pipes(path: Path) -> list[Path]:
    return list(path.with_name(path.name + "-notifiers").iterdir())


@pytest.fixture
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def test_a_listener_in_another_process_gets_notifications(
    path: Path, other_process: subprocess.Popen[str]
) -> None:
    FifoNotifier(path).notify(NOTIFICATION)
    assert other_process.stdout is not None and other_process.stdout.readline() == "received\n"


@pytest.mark.parametrize("knows_it_already", [True, False])
def test_the_pipe_of_a_killed_listener_is_removed_by_the_next_notification(
    path: Path, other_process: subprocess.Popen[str], knows_it_already: bool
) -> None:
    notifier = FifoNotifier(path)
    if knows_it_already:
        notifier.notify(NOTIFICATION)
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert len(pipes(path)) == 1
    notifier.notify(NOTIFICATION)
    assert pipes(path) == []


async def test_the_pipe_of_a_killed_listener_is_removed_by_the_next_listener(
    path: Path, other_process: subprocess.Popen[str]
) -> None:
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()

    notifier = FifoNotifier(path)
    await notifier.listen(Received())
    assert len(pipes(path)) == 1
    await notifier.close()
    assert pipes(path) == []


async def test_a_busy_listener_delays_no_sender_and_then_looks_everywhere(
    path: Path,
) -> None:
    notifier, ringer, received = FifoNotifier(path), FifoNotifier(path), Received()
    await notifier.listen(received)
    began = time.monotonic()
    for n in range(5000):  # far more than a pipe holds, while this test blocks the loop
        ringer.notify(Notification(ready=[Lane("payouts", n, 5, 1)]))
    assert time.monotonic() - began < 5.0
    await received.until(lambda notifications: ANY_CHANGE in notifications)
    ringer.notify(NOTIFICATION)
    await received.until(lambda notifications: notifications[-1] == NOTIFICATION)
    await notifier.close()


async def test_the_grants_of_one_round_reach_a_node_that_is_busy(path: Path) -> None:
    """A lost one comes back to its owner after three seconds only."""
    notifier, owner, received = FifoNotifier(path), FifoNotifier(path), Received()
    await notifier.listen(received, "helper")
    names = [("payouts", "x" * 50, 1)] * 55
    for n in range(32):  # 4 KB each, while this test blocks the loop
        owner.send(Want("helper", "owner", n, 5, names))
    await received.until(lambda notifications: sum(bool(n.peer) for n in notifications) == 32)
    await notifier.close()
    await owner.close()


@pytest.mark.parametrize("size", [1, 2060, 3900])
async def test_a_pipe_that_refuses_a_message_of_any_size_counts_as_full(
    path: Path, size: int
) -> None:
    """A half-full pipe may have refused a message, however the system packs the messages."""
    notifier, received = FifoNotifier(path), Received()
    await notifier.listen(received)
    end = os.open(pipes(path)[0], os.O_WRONLY | os.O_NONBLOCK)
    message = b'{"finished":["' + b"x" * size + b'"]}\n'
    with suppress(BlockingIOError):
        while True:
            os.write(end, message)
    os.close(end)
    await received.until(lambda notifications: ANY_CHANGE in notifications)
    await notifier.close()


async def test_senders_reach_every_permanent_listener_while_others_come_and_go(path: Path) -> None:
    stop = threading.Event()
    ringer = FifoNotifier(path)

    def notify() -> None:
        while not stop.wait(0.001):
            ringer.notify(Notification(control=True))

    thread = threading.Thread(target=notify)
    thread.start()
    try:
        for _ in range(50):
            notifier, received = FifoNotifier(path), Received()
            await notifier.listen(received)
            await received.until(bool)
            await notifier.close()
    finally:
        stop.set()
        thread.join()


async def test_a_removed_pipe_is_created_again_and_the_listener_looks_everywhere(
    path: Path,
) -> None:
    notifier, received = FifoNotifier(path), Received()
    await notifier.listen(received)
    pipes(path)[0].unlink()
    await received.until(lambda notifications: ANY_CHANGE in notifications)
    FifoNotifier(path).notify(NOTIFICATION)
    await received.until(lambda notifications: NOTIFICATION in notifications)
    await notifier.close()


async def test_a_forked_child_can_notify_and_keeps_no_pipe_of_its_parent_alive(path: Path) -> None:
    notifier, received = FifoNotifier(path), Received()
    await notifier.listen(received)
    notifier.notify(Notification(control=True))
    await received.until(lambda notifications: len(notifications) == 1)
    go, may_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(may_go)
        notifier.notify(NOTIFICATION)
        os.read(go, 1)  # wait until the parent ends this process
        os._exit(0)
    os.close(go)
    await received.until(lambda notifications: NOTIFICATION in notifications)
    pipe = pipes(path)[0]
    notifier._listener._pipe.after_fork()  # type: ignore[union-attr]  # the parent dies: its end is closed, nothing is cleaned up
    try:
        with pytest.raises(OSError, match="No such device or address"):
            os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    finally:
        os.close(may_go)
        os.waitpid(child, 0)


INSERT = (
    "INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, submitted_at, run_at,"
    " ready_at, keep_result, trigger_path, payload_format, payload, ready_seq)"
    " VALUES (?, 'q', 0, 'n', 'SUBMITTED', 5, '', 1, 1, 1, 1, 0, 'hook', 'json', x'7b7d', 1)"
)


def commit(path: Path, sql: str, *params: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql, params)
    connection.close()


async def test_new_work_without_a_notification_is_found_within_a_second(path: Path) -> None:
    notifier, received = FifoNotifier(path), Received()
    await notifier.listen(received)
    commit(path, INSERT, "one")
    await received.until(lambda notifications: notifications == [ANY_CHANGE])
    commit(path, "UPDATE fairlead_sequence SET value = value + 1")
    await received.until(lambda notifications: notifications == [ANY_CHANGE] * 2)
    await notifier.close()


async def test_commits_of_a_node_without_new_work_cause_no_look_everywhere(path: Path) -> None:
    notifier, received = FifoNotifier(path), Received()
    commit(path, INSERT, "one")
    await notifier.listen(received)
    commit(path, "INSERT INTO fairlead_leases VALUES ('a', 'b', 1, 1)")
    commit(
        path,
        "UPDATE fairlead_tasks SET state = 'PROCESSING', ready_seq = NULL, version = version + 1",
    )
    await asyncio.sleep(3 * fifo_notifier.WATCH_EVERY)
    commit(path, "DELETE FROM fairlead_tasks")
    await asyncio.sleep(3 * fifo_notifier.WATCH_EVERY)
    assert received.notifications == []
    await notifier.close()


@pytest.fixture
def no_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mkfifo", refuse)


def test_without_pipes_new_work_is_found_by_polling_and_a_warning_is_logged(
    path: Path, no_pipes: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        notifier, received = FifoNotifier(path), Received()
        await notifier.listen(received)
        commit(path, INSERT, "one")
        began = time.monotonic()
        await received.until(lambda notifications: ANY_CHANGE in notifications)
        assert time.monotonic() - began < 0.3
        await asyncio.sleep(0.1)
        commit(
            path, "INSERT INTO fairlead_leases VALUES ('a', 'b', 1, 1)"
        )  # another change, such as a pause, notifies too
        await received.until(lambda notifications: len(notifications) > 1)
        await notifier.close()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "cannot create a named pipe" in caplog.text


def test_without_pipes_a_watcher_reads_its_tasks_again_and_again(
    path: Path, no_pipes: None
) -> None:
    notifier, calls = FifoNotifier(path), queue.Queue[list[str]]()
    stop = notifier.watch_finished(lambda ids: calls.put([*ids]))
    assert [calls.get(timeout=10.0) for _ in range(3)] == [[], [], []]
    stop()
    asyncio.run(notifier.close())


# PostgreSQL ---------------------------------------------------------------------------------------


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_url)
    migrate(database)
    yield database
    database.close()


def notify(database: PostgresDatabase, message: str) -> None:
    with database.connection() as connection:
        connection.execute(
            "SELECT pg_notify('fairlead_' || 'fairlead_tasks'::regclass::oid, %s)", (message,)
        )


def hang_up(database: PostgresDatabase) -> int:
    """End every listening session of this database, and return their number."""
    with database.connection() as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        ).fetchall()
        return len(rows)


async def test_after_a_lost_connection_the_listener_connects_again_and_looks_everywhere(
    database: PostgresDatabase,
) -> None:
    notifier, received = PostgresNotifier(database), Received()
    await notifier.listen(received)
    assert hang_up(database) == 1
    await received.until(lambda notifications: notifications == [ANY_CHANGE])
    notify(database, '{"control":true}')
    await received.until(lambda notifications: notifications[-1] == Notification(control=True))
    await notifier.close()


@pytest.mark.parametrize("is_silent", [False, True], ids=["lost", "silent"])
def test_a_watcher_survives_a_connection_that_is(
    is_silent: bool, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_silent:
        monkeypatch.setattr(postgres_notifier, "KEEPALIVE_EVERY", 0.2)
    proxy = Proxy(database.url)
    behind = PostgresDatabase(f"{proxy.url}?pooler=none&response_timeout=1")
    notifier, heard = PostgresNotifier(behind), queue.Queue[list[str]]()
    stop = notifier.watch_finished(lambda ids: heard.put([*ids]))
    assert heard.get(timeout=10.0) == []  # the listener opened
    proxy.silence() if is_silent else hang_up(database)
    assert heard.get(timeout=10.0) == []  # the new connection makes it look everywhere
    notify(database, '{"finished":["the task"]}')
    assert heard.get(timeout=10.0) == ["the task"]
    stop()
    asyncio.run(notifier.close())
    proxy.close()


async def test_a_connection_that_died_silently_is_noticed(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_notifier, "KEEPALIVE_EVERY", 0.2)
    monkeypatch.setattr(postgres_notifier, "KEEPALIVE_TIMEOUT", 0.3)

    proxy, received = Proxy(migrated_postgres_url), Received()
    notifier = PostgresNotifier(PostgresDatabase(f"{proxy.url}?pooler=none"))
    await notifier.listen(received)
    await asyncio.sleep(0.5)
    assert (proxy.accepted, received.notifications) == (
        1,
        [],
    )  # a working connection is kept
    proxy.silence()
    await received.until(lambda notifications: notifications == [ANY_CHANGE])
    assert proxy.accepted > 1
    await notifier.close()
    proxy.close()


def test_a_missing_server_is_waited_for_and_logged_once(
    migrated_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        proxy, received = Proxy(migrated_postgres_url), Received()
        proxy.close()
        notifier = PostgresNotifier(PostgresDatabase(f"{proxy.url}?pooler=none"))
        await notifier.listen(received)
        await asyncio.sleep(1.0)  # time for several tries
        assert received.notifications == []
        with closing(Proxy(migrated_postgres_url, proxy.port)):
            await received.until(lambda notifications: notifications == [ANY_CHANGE])
            await notifier.close()

    with caplog.at_level(logging.INFO, logger="fairlead.notifier"):
        run(test)
    assert [record.message for record in caplog.records] == [
        "not listening, trying again",
        "listening again",
    ]
