"""Tasks stored in Redis alone: the same decorators, at-least-once runs, and clear errors for features
that Redis lacks."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

pytest.importorskip("redis", reason="needs the extra redis")
from redis import Redis  # noqa: E402

import fairlead  # noqa: E402
from fairlead import App, ClusterLimit, Exponential, Fixed, Limit, NoRetry, Retry, Snooze, State  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import GROUP, RedisEndpoint  # noqa: E402
from fairlead.backends.redis.sharded.steps import RedisCall  # noqa: E402
from fairlead.backends.redis.task_messages import RETRY, Body, entry  # noqa: E402
from fairlead.declare.current import current_task  # noqa: E402
from fairlead.engine.settings import Intervals  # noqa: E402
from fairlead.errors import (  # noqa: E402
    ConfigurationError,
    InvalidTask,
    NotSupported,
    StoreUnavailable,
    UnknownTask,
)
from fairlead.sharded import SyncShardedQueue  # noqa: E402
from fairlead.testing import drain, running, settled  # noqa: E402
from services.redis import RedisServer  # noqa: E402

SOON = 30.0


@pytest.fixture
def app(redis_url: str) -> Any:
    found = App(redis_url)
    yield found
    found.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not is_so():
            await asyncio.sleep(0.005)


def in_error(app: App) -> list[fairlead.model.TaskRecord]:
    return app.management.find(state=State.ERROR)


def counting(counter: Counter[int], until: asyncio.Event | None = None) -> Any:
    """Return a handler that counts its runs, for one of several applications."""

    async def note(n: int) -> None:
        counter[n] += 1
        if until is not None:
            await until.wait()

    return note


# running ------------------------------------------------------------------------------------------


async def test_tasks_of_every_kind_of_executor_run_with_their_arguments(app: App) -> None:
    ran: list[Any] = []

    @app.task
    async def on_loop(n: int, when: datetime) -> None:
        ran.append(("loop", n, when))

    @app.task
    def in_thread(n: int) -> None:
        ran.append(("thread", n, threading.current_thread() is not threading.main_thread()))

    when = datetime(2026, 1, 2, tzinfo=UTC)
    on_loop.submit(1, when=when)
    in_thread.submit(2)
    await on_loop.submit_async(3, when)
    await drain(app)
    assert sorted(ran, key=lambda run: run[1]) == [
        ("loop", 1, when),
        ("thread", 2, True),
        ("loop", 3, when),
    ]


async def test_a_handler_sees_its_task_and_the_context_of_the_submit(app: App) -> None:
    seen: list[Any] = []

    @app.task(queue="mail")
    async def send() -> None:
        task = current_task()
        seen.append(
            (
                task.queue,
                task.name,
                task.attempt,
                task.fairness_key,
                task.priority,
                dict(task.context),
            )
        )

    send.options(fairness_key="acme", priority=3, context={"request": "r7"}).submit()
    await drain(app)
    assert seen == [("mail", "send", 1, "acme", 3, {"request": "r7"})]


async def test_ten_thousand_tasks_of_many_tenants_run_once_on_two_nodes(redis_url: str) -> None:
    apps = [App(redis_url), App(redis_url)]
    ran: list[Counter[int]] = [Counter(), Counter()]
    note, _ = [
        app.task(name="note")(counting(counter)) for app, counter in zip(apps, ran, strict=True)
    ]
    drafts = [note.options(fairness_key=f"tenant {n % 20}").draft(n) for n in range(10_000)]
    async with running(apps[0]) as one, running(apps[1]) as other:
        await asyncio.to_thread(apps[0].submit_many, drafts)
        await settled(apps[0], one, 60.0)
        await settled(apps[1], other)
    both = ran[0] + ran[1]
    assert len(both) == 10_000 and set(both.values()) == {1}
    assert ran[0] and ran[1], "both nodes ran tasks"
    for app in apps:
        app.close()


async def test_a_task_for_later_runs_at_its_time_in_an_idle_queue(app: App) -> None:
    ran: list[datetime] = []

    @app.task
    async def note() -> None:
        ran.append(datetime.now(UTC))

    async with running(app):
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        note.options(run_at=datetime.now(UTC) + timedelta(hours=1)).submit()
        note.options(run_at=at).submit()
        await until(lambda: bool(ran))
    assert len(ran) == 1 and ran[0] >= at
    (status,) = app.management.queues()
    assert status.waiting == 1


async def test_a_worker_registers_its_queues_again_when_redis_comes_back_empty(
    app: App, client: Any
) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with running(app) as node:
        note.submit(1)
        await until(lambda: bool(ran))
        client.flushall()
        await node.parts.membership.beat()
        note.submit(2)
        await until(lambda: len(ran) == 2)
        assert [status.queue for status in app.management.queues()] == ["default"]
    assert ran == [1, 2]


async def test_a_better_priority_overtakes_a_backlog_that_no_node_has_in_memory(app: App) -> None:
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    note.options(priority=9).submit_many([{"name": "low"}] * 5000)
    async with running(app, concurrency=50) as node:
        await until(lambda: len(order) > 100)
        before = len(order)
        note.options(priority=0).submit_many([{"name": "high"}] * 20)
        await settled(app, node)
    last = max(n for n, name in enumerate(order) if name == "high")
    assert last - before < 2500, "only tasks that the node had read run before the higher priority"
    assert Counter(order) == {"low": 5000, "high": 20}


@pytest.mark.parametrize("weight", [1.0, 3.0])
async def test_a_new_tenant_does_not_wait_behind_a_flood(app: App, weight: float) -> None:
    order: list[str] = []

    @app.task
    async def note(tenant: str) -> None:
        order.append(tenant)

    note.options(fairness_key="flood").submit_many([{"tenant": "flood"}] * 4000)
    note.options(fairness_key="small", weight=weight).submit_many([{"tenant": "small"}] * 300)
    await drain(app, concurrency=10)
    # The tenant gets one run in two, or three in four, until its last task.
    last = max(n for n, tenant in enumerate(order) if tenant == "small") + 1
    share = 300 / last
    assert weight / (weight + 1) - 0.1 < share < weight / (weight + 1) + 0.1


async def test_weights_set_at_run_time_apply_to_waiting_tasks(app: App) -> None:
    order: list[str] = []

    @app.task
    async def note(tenant: str) -> None:
        order.append(tenant)

    for tenant in ("a", "b"):
        note.options(fairness_key=tenant).submit_many([{"tenant": tenant}] * 400)
    app.management.set_weight("default", "a", 4.0)
    assert app.management.weights("default") == {"a": 4.0}
    await drain(app, concurrency=10)
    assert 70 < Counter(order[:100])["a"] < 90


async def test_tasks_stopped_by_a_limit_hold_back_no_other_task(app: App) -> None:
    ran: Counter[str] = Counter()
    go_on = asyncio.Event()

    @app.task(concurrency=Limit(1))
    async def slow() -> None:
        await go_on.wait()
        ran["slow"] += 1

    @app.task
    async def quick() -> None:
        ran["quick"] += 1

    slow.submit_many([{}] * 1500)
    async with running(app, concurrency=20) as node:
        await until(lambda: node.in_flight == 1)
        quick.submit_many([{}] * 50)
        await until(lambda: ran["quick"] == 50)
        go_on.set()
        await settled(app, node)
    assert ran == {"slow": 1500, "quick": 50}


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    note.submit(n=1)
    app.management.pause("default")
    async with running(app) as node:
        await asyncio.sleep(0)
        assert app.management.queues()[0].paused
        await until(lambda: bool(node.parts.context.table.sizes()))
        assert not ran
        app.management.unpause("default")
        await until(lambda: bool(ran))


async def test_periodic_tasks_run_once_for_each_slot_with_several_submitters(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slots of seconds, which users cannot have, spare minutes of waiting.
    monkeypatch.setattr("fairlead.declare.periodic._FIELDS", 6)
    slots: list[datetime] = []
    apps = [App(redis_url) for _ in range(2)]
    for app in apps:

        @app.periodic("* * * * * *")  # each second
        @app.task
        async def tick(slot: datetime) -> None:
            slots.append(slot)

    async with running(apps[0]) as one, running(apps[1]) as other:
        await until(lambda: len(slots) >= 3)
        await settled(apps[0], one)
        await settled(apps[1], other)
    assert len(slots) == len(set(slots))
    for app in apps:
        app.close()


# retries -------------------------------------------------------------------------------------


async def test_a_failing_task_is_retried_by_its_policy_and_then_goes_to_error(
    app: App,
) -> None:
    attempts: list[tuple[int, int]] = []

    @app.task(retry=Exponential(max_attempts=3, first=0.01))
    async def fail(n: int) -> None:
        task = current_task()
        attempts.append((task.attempt, task.tries))
        raise ValueError(f"no {n}")

    fail.options(fairness_key="acme", priority=2).submit(n=7)
    await drain(app)
    assert attempts == [(1, 1), (2, 2), (3, 3)]
    (task,) = in_error(app)
    assert (task.name, task.state, task.fairness_key, task.priority) == (
        "fail",
        State.ERROR,
        "acme",
        2,
    )
    assert task.error_type == "ValueError" and task.error_text.startswith("no 7")
    assert app.management.payload(task.id) == b'{"n":7}'
    assert app.management.show(task.id) == task


async def test_a_task_in_error_can_be_retried_with_new_tries_or_failed(app: App) -> None:
    ran: list[int] = []
    is_mended = False

    @app.task(retry=NoRetry())
    async def pay(n: int) -> None:
        if not is_mended:
            raise ValueError("broken")
        ran.append(n)

    handles = [pay.submit(n=n) for n in range(3)]
    await drain(app)
    assert len(in_error(app)) == 3
    app.management.fail(handles[1].id)
    app.management.cancel(handles[2].id)
    app.management.retry(handles[0].id)
    with pytest.raises(NotSupported):
        app.management.retry(handles[0].id)
    is_mended = True
    await drain(app)
    assert ran == [0] and in_error(app) == []


async def test_a_handler_may_ask_for_a_later_run(app: App) -> None:
    seen: list[int] = []

    @app.task(retry=Fixed(60.0, max_attempts=2))
    async def note() -> None:
        tries = current_task().tries
        seen.append(tries)
        if len(seen) == 1:
            raise Snooze(datetime.now(UTC) + timedelta(milliseconds=10))
        if len(seen) == 2:
            raise Retry(after=0.01)

    note.submit()
    await drain(app)
    assert seen == [1, 1, 2], "a snooze does not count as a try"


async def test_a_unique_key_holds_for_its_window_and_no_longer(redis_url: str) -> None:
    app = App(f"{redis_url}?unique=0.2")

    @app.task
    async def note(n: int) -> None: ...

    first = note.options(unique_key="invoice 7", priority=1).submit(n=1)
    again = note.options(unique_key="invoice 7").submit(n=2)
    assert (again.id, again.is_new) == (first.id, False), "a unique key holds across priorities"
    await drain(app)
    await asyncio.sleep(0.25)
    assert note.options(unique_key="invoice 7").submit(n=3).is_new
    app.close()


# deaths --------------------------------------------------------------------------------------------


class Dead:
    """A node that has read tasks and then dies."""

    def __init__(self, url: str, queue: str = "default", priority: int = 5) -> None:
        endpoint = RedisEndpoint.of(url)
        self._queue = SyncShardedQueue(endpoint.server.url, "unused")
        self._steps = endpoint.lanes(queue, 5).at(priority)

    def read_tasks(self, count: int) -> list[str]:
        steps = self._steps.read_many(GROUP, "dead", count, 0.0)
        return [message.id for message in self._queue._do(steps)]

    def reclaim_tasks(self) -> list[str]:
        return [
            message.id
            for message in self._queue._do(self._steps.reclaim(GROUP, "dead too", 0.0, 100))
        ]


def test_unfinished_tasks_count_a_retry_that_becomes_due_during_the_count(app: App) -> None:
    """Let the retry become due before each command of the count in turn. If the count missed it, a
    worker with `--until-empty` would end too early."""
    lane = app.store.endpoint.lanes("default", 5).at(5)
    body = Body("7", "note", "json", None, 1.0, 0, 0, 2, attempts=1)
    with SyncShardedQueue(app.store.endpoint.server.url, "unused") as redis:
        for moment in count():
            redis._do(one(RedisCall(("FLUSHALL",))))
            seconds, micros = redis._do(one(RedisCall(("TIME",))))
            soon = int(seconds) * 1000 + int(micros) // 1000 + 200
            redis._do(lane.put([entry(body, b"{}", "", at=soon, ticket=f"{RETRY}7")]))
            counting, answer = app.store.unfinished(["default"]), None
            for commands in count():
                try:
                    command = counting.send(answer)
                except StopIteration as end:
                    assert end.value == (1, 0), moment
                    break
                if commands == moment:
                    redis._do(lane.read_many(GROUP, "reader", 1, SOON))
                answer = redis._do(one(command))
            if moment == commands:
                break


def one(command: Any) -> Iterator[Any]:
    return (yield command)


async def test_tasks_of_a_dead_node_run_on_another_one_and_no_other_task_runs_twice(
    redis_url: str,
) -> None:
    app = App(f"{redis_url}?reclaim=1")
    ran: Counter[int] = Counter()
    paths: Counter[int] = Counter()

    @app.task
    async def note(n: int) -> None:
        ran[n] += 1
        paths[current_task().attempt] += 1
        await asyncio.sleep(2.5 if n == 40 else 0)  # longer than a claim lasts without an extension

    note.submit_many([{"n": n} for n in range(50)])
    assert len(Dead(f"{redis_url}?reclaim=1").read_tasks(20)) == 20
    await drain(app)
    assert set(ran) == set(range(50)) and set(ran.values()) == {1}
    assert paths == {1: 30, 2: 20}
    app.close()


async def test_a_task_that_kills_its_workers_goes_to_error(redis_url: str) -> None:
    app = App(f"{redis_url}?reclaim=1")
    ran: list[str] = []

    @app.task
    async def poison() -> None:
        ran.append("poison")

    poison.submit()
    dead = Dead(f"{redis_url}?reclaim=1")
    dead.read_tasks(1)
    for _ in range(4):
        dead.reclaim_tasks()
    async with running(app):
        await until(lambda: bool(in_error(app)))
    assert not ran and in_error(app)[0].error_type == "fairlead.errors.NodeLost"
    app.close()


async def test_a_node_that_stops_hands_back_unstarted_tasks_at_once(redis_url: str) -> None:
    apps = [App(redis_url) for _ in range(2)]
    ran: list[Counter[int]] = [Counter(), Counter()]
    go_on = asyncio.Event()
    note, _ = [
        app.task(name="note", concurrency=Limit(1))(counting(counter, go_on))
        for app, counter in zip(apps, ran, strict=True)
    ]
    note.submit_many([{"n": n} for n in range(100)])
    async with running(apps[0]) as node:
        await until(lambda: sum(node.parts.context.table.sizes().values()) == 99)
        go_on.set()
        node.stop()
    # Other nodes reclaim a task of a dead node after thirty seconds only.
    await drain(apps[1], timeout=20.0)
    both = ran[0] + ran[1]
    assert set(both) == set(range(100)) and set(both.values()) == {1}
    for app in apps:
        app.close()


async def test_a_message_that_is_no_task_becomes_a_dead_letter_and_the_others_run(
    app: App, redis_url: str
) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    note.submit(n=1)
    with Redis.from_url(redis_url) as client:
        (stream,) = [
            key
            for key in client.keys("*:5:s*")
            if client.type(key) == b"stream" and client.xlen(key)
        ]
        client.xadd(stream, {"task": "nonsense"})
    note.submit(n=2)
    await drain(app)
    assert sorted(ran) == [1, 2]
    (status,) = app.management.queues()
    assert status.error == 1


async def test_after_an_outage_of_redis_no_task_is_lost_and_no_restart_is_needed(
    caplog: Any,
) -> None:
    with RedisServer(appendonly=True) as server:
        app = App(server.url)
        ran: Counter[int] = Counter()
        note = app.task(name="note")(counting(ran))

        def submit(numbers: range) -> None:
            note.submit_many([{"n": n} for n in numbers])

        async with running(app, concurrency=5) as node:
            await asyncio.to_thread(submit, range(2000))
            await until(lambda: len(ran) > 100)
            await asyncio.to_thread(server.crash)
            with pytest.raises(StoreUnavailable):
                await asyncio.to_thread(submit, range(1))
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(submit, range(2000, 2100))
            await settled(app, node)
        app.close()
    assert set(ran) == set(range(2100))
    assert sum(ran.values()) - len(ran) <= 10, "only tasks that ran during the crash run twice"


# features that Redis lacks -----------------------------------------------------------------------------


def test_unsupported_features_are_refused_with_the_stores_that_have_them(app: App) -> None:
    @app.task
    async def note() -> None: ...

    @app.task(keep_result=True)
    async def answer() -> int:
        return 1

    cannot: list[Callable[[], Any]] = [
        lambda: note.options(connection=sqlite3.connect(":memory:")).submit(),
        lambda: answer.submit(),
        lambda: note.submit().state(),
        lambda: app.management.find(),
        lambda: app.management.attempts("01938d2c-0000-7000-8000-000000000000"),
        lambda: app.sql_store,
    ]
    for call in cannot:
        with pytest.raises(NotSupported, match="sqlite:// and postgresql://"):
            call()
    with pytest.raises(InvalidTask, match="ordering_key"):
        note.options(ordering_key="k").submit()
    assert app.management.queues()[0].submitted == 1, (
        "only the task without unsupported options was submitted"
    )


async def test_unsupported_features_stop_a_worker_at_its_start(redis_url: str) -> None:
    app = App(redis_url)

    @app.task(transactional=True)
    def pay(connection: Any) -> None: ...

    with pytest.raises(NotSupported, match="transactional"):
        app.node()
    app = App(redis_url)

    @app.task(concurrency=ClusterLimit(3))
    def shared() -> None: ...

    with pytest.raises(NotSupported, match="zookeeper"):
        app.node()


@pytest.mark.parametrize("order", ["fair", "fifo"])
def test_an_order_of_a_queue_on_redis_is_refused(app: App, order: str) -> None:
    app.queue("payouts", order=order)
    with pytest.raises(ConfigurationError, match="leave order= out"):
        _ = app.store


@pytest.mark.parametrize("beside", [{"channel": "memory://"}, {"backlog": "database"}])
def test_another_channel_or_backlog_beside_redis_is_refused(
    redis_url: str, beside: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="leave it out"):
        _ = App(redis_url, **beside).store


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("?streams=4&per_shard=5", "5 streams of 4"),
        ("?streams=x", "x"),
        ("?reads=both", "reads"),
        ("?reclaim=0", "reclaim"),
    ],
)
def test_a_url_with_wrong_options_is_refused_with_their_names(options: str, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names.replace("?", r"\?")):
        _ = App(f"redis://user:secret@localhost:6379/0{options}").store


def test_no_secret_is_in_an_error() -> None:
    with pytest.raises(ConfigurationError) as raised:
        _ = App("redis://user:secret@localhost:6379/0?streams=x").store
    assert "secret" not in str(raised.value)


def test_an_unknown_task_is_not_found(app: App) -> None:
    with pytest.raises((NotSupported, UnknownTask)):
        app.management.show("01938d2c-0000-7000-8000-000000000000")


async def test_tasks_in_error_are_delivered_as_incidents_once_by_any_elected_worker(
    app: App,
) -> None:
    calls: Counter[str] = Counter()
    odd: list[str] = []

    def receive(incident: fairlead.Incident) -> None:
        calls[incident.subject] += 1
        assert incident.kind == "error" and incident.task is not None
        if not odd:
            odd.append(incident.subject)
            raise ConnectionError("not now")

    app.on_incident = receive

    @app.task(retry=NoRetry())
    async def bad(n: int) -> None:
        raise ValueError("no")

    handles = bad.submit_many([{"n": n} for n in range(30)])
    for _ in range(2):
        async with running(app, intervals=Intervals(incidents=0.1, gauges=0.1)) as node:
            await settled(app, node)
            await until(lambda: len(calls) == 30)
    assert calls == Counter({handle.id: 1 for handle in handles})
    ((kind, _, name),) = await app.store.incidents.counts()
    assert (kind, name) == ("error", "bad")
    (left,) = app.store.database.read_now(app.store.incidents.undelivered(10))
    assert [left.subject] == odd
    latest = app.store.database.read_now(app.store.incidents.latest(None, 20))
    latest += app.store.database.read_now(app.store.incidents.latest(latest[-1].id, 20))
    assert {incident.subject for incident in latest} == {handle.id for handle in handles}
    assert [incident.id for incident in latest] == sorted((i.id for i in latest), reverse=True)
    app.management.retry(odd[0])
    assert await app.store.incidents.claim(left.since * 2, left.since * 2, 10) == []
    await app.store.database.close_async()
