"""Triggers through a real Redis: their order, their delivery, and the recovery of lost triggers."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fairlead import App, Limit, State
from fairlead.errors import ConfigurationError
from fairlead.model import PRIORITIES
from fairlead.operate.doctor import examine
from fairlead.ports.notification import Notification
from fairlead.testing import running, settled
from services.redis import RedisServer
from tests.integration.channel_kit import (
    NEVER,
    NO_POLLERS,
    SOON,
    claims,
    counting,
    counts,
    is_up_to_date,
    noting,
    owning,
    sticking,
    twin,
    until,
)

redis = pytest.importorskip("redis", reason="needs the extra redis")
from fairlead.backends.redis import channel as channel_module  # noqa: E402
from fairlead.backends.redis.sender import RedisSender  # noqa: E402
from fairlead.backends.redis.sharded.consumer import Consumer  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import GROUP  # noqa: E402
from fairlead.backends.redis.sharded.running import run  # noqa: E402
from tests import tiers  # noqa: E402
from tests.tiers import matrix  # noqa: E402


@pytest.fixture(params=matrix("sqlite", "postgres"))
def app(request: pytest.FixtureRequest, redis_url: str) -> Iterator[App]:
    """Yield an application on each store in turn, with triggers through Redis and counted
    outages."""
    found = counting(request.getfixturevalue(f"{request.param}_url"), redis_url)
    yield found
    found.close()


@pytest.fixture
def sqlite_app(sqlite_url: str, redis_url: str) -> Iterator[App]:
    found = counting(sqlite_url, redis_url)
    yield found
    found.close()


@pytest.fixture
def unhealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the comparison of rows, so that only messages of Redis arrive."""
    monkeypatch.setattr(channel_module.RedisChannel, "_rows", no_rows)


async def no_rows(*_: object) -> list[Any]:
    return []


def sweeps_every(app: App, seconds: float) -> None:
    app.channel._heal_every = seconds
    app.channel._heal_at = app.clock.monotonic() + seconds
    app.channel._changed.set()


def stats(app: App, queue: str = "default") -> tuple[int, int]:
    """Return the triggers that wait in Redis, and those held by nodes."""
    lanes = app.channel._endpoint.lanes(queue, 1)
    with redis.Redis.from_url(app.channel._endpoint.server.url) as client:
        each = [run(client, queue, lanes.at(priority).stats(GROUP)) for priority in PRIORITIES]
    return sum(found.waiting for found in each), sum(found.pending for found in each)


async def is_empty(app: App, queue: str = "default") -> None:
    async with asyncio.timeout(SOON):
        while await asyncio.to_thread(stats, app, queue) != (0, 0):
            await asyncio.sleep(0.05)


# delivery of triggers -----------------------------------------------------------------------------


async def test_triggers_through_redis_run_their_tasks_and_none_stays_in_redis(
    app: App, unhealed: None
) -> None:
    note, ran = noting(app)
    async with running(app, intervals=NO_POLLERS) as node:
        for n in range(20):
            await note.submit_async(n)
        await note.submit_many_async([{"n": n} for n in range(20, 1500)])  # by COPY on PostgreSQL
        await settled(app, node)
        await is_empty(app)
    assert sorted(ran) == list(range(1500))
    assert not counts(app).keys() & {
        "unsent_triggers",
        "corrupt_triggers",
        "healed_triggers",
        "lost_claims",
    }


async def test_triggers_beyond_the_limit_of_messages_come_from_the_rows(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MOST_CARRIED", 1000)
    sent: list[Any] = []
    monkeypatch.setattr(RedisSender, "send", lambda self, triggers: sent.append(triggers))
    note, ran = noting(app)
    async with owning(app) as node:
        sweeps_every(app, NEVER)
        await note.submit_many_async([{"n": n} for n in range(3000)])
        await settled(app, node)
        await is_empty(app)
    assert sorted(ran) == list(range(3000)) and not sent


async def test_the_comparison_of_rows_writes_no_trigger_twice(app: App) -> None:
    note, ran = noting(app)
    app.queue("default", concurrency=Limit(1))
    stuck, begun, gate = sticking(app)

    async with owning(app) as node:
        await stuck.submit_async()
        await begun.wait()
        await note.submit_many_async([{"n": n} for n in range(500)])
        for n in range(500, 600):
            await note.submit_async(n)
        app.channel.redeliver()  # as a sweep does
        await until(
            lambda: (
                is_up_to_date(app)
                and not any(lane.sweep_seq is not None for lane in app.channel._lanes.values())
            )
        )
        assert sum(await asyncio.to_thread(stats, app)) == 600
        gate.set()
        await settled(app, node)
        await is_empty(app)
    assert len(ran) == 600 and set(claims(app).values()) == {1}
    assert not counts(app).keys() & {"healed_triggers", "lost_claims"}


async def test_an_unreadable_message_is_counted_and_skipped(
    app: App, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from fairlead.backends.redis.sharded.message import NewMessage, entry

    note, ran = noting(app)
    bad = [
        {"trigger": b"[1,2"},
        {"other": b"x"},
        {"trigger": b'["t9","x"]'},
        {"trigger": b"\xff\xfe"},
    ]
    lanes = app.channel._endpoint.lanes("default", 1)
    run(client, "default", lanes.at(5).put([entry(NewMessage(values)) for values in bad]))
    async with running(app) as node:
        await note.submit_async(1)
        await settled(app, node)
        await until(lambda: counts(app)["corrupt_triggers"] == 4)
        await is_empty(app)
    assert ran == [1]
    records = [record for record in caplog.records if "unreadable message" in record.message]
    assert len(records) == 4 and all(
        record.id.count("/") == 1 and record.priority == 5 for record in records
    )


def test_a_script_that_ends_after_its_submit_has_sent_its_trigger(sqlite_app: App) -> None:
    program = (
        "import sys\nfrom fairlead import App\napp = App(sys.argv[1], channel=sys.argv[2])\n"
        "@app.task\ndef note(n: int) -> None: ...\nnote.submit(1)\n"
    )
    command = [
        sys.executable,
        "-c",
        program,
        sqlite_app.url,
        str(sqlite_app.connector.settings.channel),
    ]
    subprocess.run(command, check=True, timeout=60)
    assert stats(sqlite_app) == (1, 0)


def test_parent_and_child_of_a_fork_both_send_triggers(sqlite_app: App) -> None:
    import multiprocessing

    note, _ = noting(sqlite_app)
    note.submit(1)
    child = multiprocessing.get_context("fork").Process(target=submit_in_child, args=(note,))
    child.start()
    child.join(SOON)
    assert child.exitcode == 0
    note.submit(3)
    sqlite_app.channel.close_sender()
    assert stats(sqlite_app) == (3, 0)


def submit_in_child(note: Any) -> None:
    note.submit(2)
    note.app.channel.close_sender()


# order --------------------------------------------------------------------------------------------


def order_of(app: App, **options: Any) -> tuple[Any, list[str]]:
    ran: list[str] = []

    @app.task(**options)
    async def note(key: str) -> None:
        ran.append(key)

    return note, ran


@pytest.fixture
def few_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node take few triggers ahead, because a new tenant cannot overtake the taken ones."""
    monkeypatch.setattr("fairlead.engine.intake.LEAST_LOOK_AHEAD", 10)


@pytest.mark.parametrize("weight", [1.0, 3.0])
async def test_a_tenant_gets_its_share_beside_one_that_floods(
    app: App, few_ahead: None, weight: float
) -> None:
    """By start-time fair queueing, a tenant exceeds its share by at most one task of each tenant, plus
    the triggers taken ahead before the second tenant submitted."""
    note, ran = order_of(app)
    submit = {
        key: note.options(fairness_key=key, weight=weight if key == "b" else 1.0) for key in "ab"
    }
    submit["a"].submit_many([{"key": "a"}] * 600)
    submit["b"].submit_many([{"key": "b"}] * 60)
    app.channel.close_sender()  # all tasks are in Redis before any is read
    async with running(app, concurrency=1) as node:
        await settled(app, node)
    assert Counter(ran) == {"a": 600, "b": 60}
    last = max(position for position, key in enumerate(ran) if key == "b")
    others = ran[:last].count("a")
    assert abs(others - 60 / weight) <= 2, others


async def test_a_late_tenant_does_not_wait_for_a_flood(app: App, few_ahead: None) -> None:
    note, ran = order_of(app)
    note.options(fairness_key="a").submit_many([{"key": "a"}] * 2000)
    app.channel.close_sender()
    async with running(app, concurrency=1) as node:
        await until(lambda: len(ran) > 20)
        await note.options(fairness_key="b").submit_async("b")
        before = len(ran)
        await until(lambda: "b" in ran)
        assert ran.index("b") - before < 200, "the flood has 2,000 earlier tasks"
        await settled(app, node, 60)


async def test_a_weight_set_at_run_time_counts_for_waiting_tasks(app: App, few_ahead: None) -> None:
    gate = asyncio.Event()
    ran: list[str] = []

    @app.task
    async def note(key: str) -> None:
        await gate.wait()
        ran.append(key)

    for key in "ab":
        note.options(fairness_key=key).submit_many([{"key": key}] * 300)
    app.channel.close_sender()
    async with running(app, concurrency=1) as node:
        app.management.set_weight("default", "b", 4.0)
        lanes = app.channel._endpoint.lanes("default", 1)
        consumer = app.channel._consumer
        weights: dict[str, float] = {}
        async with asyncio.timeout(SOON):
            while not weights:
                weights = await consumer.do("default", lanes.at(5).weights())
                await asyncio.sleep(0.01)
        assert weights == {"b": 4.0}
        gate.set()
        await until(lambda: len(ran) >= 130)
        # Leave out the triggers that the node took before the weight was set.
        found = Counter(ran[30:130])
        assert 75 <= found["b"] <= 85, found
        app.management.set_weight("default", "b", None)
        async with asyncio.timeout(SOON):
            while weights:
                weights = await consumer.do("default", lanes.at(5).weights())
                await asyncio.sleep(0.01)
        await settled(app, node)


async def test_priorities_are_strict_across_a_large_backlog(app: App, few_ahead: None) -> None:
    ran: list[str] = []

    @app.task
    async def note(key: str) -> None:
        ran.append(key)
        # Wait until the node has read the next urgent triggers. A node with free slots runs what it
        # has in memory and waits for no read.
        await until(
            lambda: ran.count("high") == 100 or node.parts.context.table.sizes().get(0, 0) > 0
        )

    for first in range(0, 4000, 1000):
        note.options(priority=9, fairness_key=f"key {first}").submit_many([{"key": "low"}] * 1000)
    note.options(priority=0).submit_many([{"key": "high"}] * 100)
    app.channel.close_sender()
    async with running(app, concurrency=1) as node:
        await until(lambda: "low" in ran)
        assert ran.index("low") == 100
        assert len(node.parts.context.table) <= 20, "the others are left to other nodes"


async def test_tasks_stopped_by_a_limit_starve_no_other_task(app: App) -> None:
    gate = asyncio.Event()

    @app.task(concurrency=Limit(1))
    async def stuck() -> None:
        await gate.wait()

    note, ran = noting(app)
    stuck.submit_many([{}] * 1000)
    note.submit_many([{"n": n} for n in range(50)])
    app.channel.close_sender()
    async with running(app, concurrency=20) as node:
        await until(lambda: len(ran) == 50 and node.in_flight == 1)
        gate.set()
        await settled(app, node)


@pytest.mark.parametrize("order", ["fair", "fifo"])
def test_a_queue_order_declared_before_the_redis_channel_opens_is_refused(
    sqlite_app: App, order: str
) -> None:
    other = twin(sqlite_app)
    other.queue("mail", order=order)
    with pytest.raises(ConfigurationError, match="mail"):
        _ = other.channel


def test_a_wrong_url_is_refused_with_its_fault(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, named in (
        ("steams=4", "steams"),
        ("streams=few", "streams"),
        ("reads=both", "reads"),
    ):
        with pytest.raises(ConfigurationError, match=named) as raised:
            _ = App(sqlite_url, channel=f"redis://me:secret@host/0?{options}").channel
        assert "secret" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fairlead\[redis\]'"):
        _ = App(sqlite_url, channel="redis://host/0").channel


# lost triggers -------------------------------------------------------------------------------------


async def test_triggers_that_redis_has_lost_are_healed_and_run_once(
    app: App, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, ran = noting(app)
    stuck, begun, gate = sticking(app)

    notified: list[Notification] = []
    receive = app.channel._on_any_notification

    def record(notification: Notification) -> None:
        receive(notification)
        if notification.ready:
            notified.append(notification)

    monkeypatch.setattr(app.channel, "_on_any_notification", record)
    async with owning(app, concurrency=1) as node:
        await stuck.submit_async()
        await begun.wait()
        await until(lambda: len(notified) == 1)
        await note.submit_many_async([{"n": n} for n in range(700)])
        # Wait for the notification: a row whose notification comes after the flush would be read as
        # a new row, and would not count as healed.
        await until(lambda: len(notified) == 2)
        await until(lambda: is_up_to_date(app) and not app.channel._to_compare)
        assert sum(await asyncio.to_thread(stats, app)) >= 700
        await asyncio.to_thread(client.flushall)
        sweeps_every(app, 0.5)
        gate.set()
        await settled(app, node, 60)
    assert sorted(ran) == list(range(700)) and set(claims(app).values()) == {1}
    assert counts(app)["healed_triggers"] > 0


async def test_every_task_is_claimed_once_though_messages_are_dropped_and_doubled(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = tiers.seed()
    chance, send = random.Random(seed), RedisSender.send
    dropped = 0

    def lossy(self: RedisSender, triggers: Sequence[Any]) -> None:
        nonlocal dropped
        kept = []
        for trigger in triggers:
            fate = chance.random()
            dropped += fate < 0.2
            kept += [trigger] * (0 if fate < 0.2 else 2 if fate > 0.9 else 1)
        send(self, kept)

    monkeypatch.setattr(RedisSender, "send", lossy)
    # Notifications are lost too, so that only sweeps find the tasks.
    monkeypatch.setattr(
        channel_module.RedisChannel, "_on_any_notification", lambda self, notification: None
    )
    note, ran = noting(app)
    async with owning(app, intervals=NO_POLLERS) as node:
        sweeps_every(app, 0.5)
        for n in range(0, 1000, 5):
            await note.submit_many_async([{"n": n + i} for i in range(5)])
        await settled(app, node, 60)
    assert dropped > 100, seed
    assert sorted(ran) == list(range(1000)) and set(claims(app).values()) == {1}, seed


async def test_triggers_of_a_dead_node_are_reclaimed_by_another(
    sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = counting(sqlite_url, f"{redis_url}?reclaim=1")
    note, ran = noting(app)
    note.submit_many([{"n": n} for n in range(50)])
    app.channel.close_sender()
    taken: list[Any] = []
    endpoint = app.channel._endpoint
    dead = Consumer(
        endpoint,
        "dead",
        1000,
        lambda queue, found: taken.extend(found),
        lambda *_: 50 - len(taken),
        app.clock,
    )
    dead.serve(["default"])
    work = asyncio.create_task(dead.run())
    await until(lambda: len(taken) == 50)
    work.cancel()  # as if killed: no trigger is handed back, no claim extended
    await asyncio.wait([work])
    await dead.close()
    monkeypatch.setattr(channel_module.RedisChannel, "_rows", no_rows)
    async with running(app) as node:
        await settled(app, node)
        await is_empty(app)
    assert sorted(ran) == list(range(50)) and counts(app)["healed_triggers"] == 50
    app.close()


async def test_triggers_that_a_live_node_holds_for_long_are_not_reclaimed(
    sqlite_url: str, redis_url: str
) -> None:
    app = counting(sqlite_url, f"{redis_url}?reclaim=1")
    other = twin(app)
    gate = asyncio.Event()
    for each in (app, other):
        each.queue("default", concurrency=Limit(1))

    async def handler(n: int) -> None:
        await gate.wait()

    note = app.task(name="note")(handler)
    other.task(name="note")(handler)
    async with owning(app) as node:
        await note.submit_many_async([{"n": n} for n in range(30)])
        await until(lambda: len(node.parts.context.table) == 29)
        async with running(other) as second:
            loop = asyncio.get_running_loop()
            # More than twice the time after which other nodes reclaim a trigger.
            until_then = loop.time() + 2.5
            await until(lambda: loop.time() > until_then)
            # Each node runs one task, whichever owns the partition now.
            await until(lambda: node.in_flight == second.in_flight == 1)
            assert len(node.parts.context.table) in (28, 29)
            gate.set()
            await settled(app, node)
    assert counts(other)["healed_triggers"] == 0 and set(claims(app).values()) == {1}
    app.close()
    other.close()


async def test_triggers_of_a_node_that_stops_go_to_the_others_at_once(
    app: App, unhealed: None
) -> None:
    gate, ran = asyncio.Event(), []
    other = twin(app)
    app.queue("default", concurrency=Limit(1))

    async def handler(n: int) -> None:
        ran.append(n)
        await gate.wait()

    note = app.task(name="note")(handler)
    other.task(name="note")(handler)
    async with running(app) as first:
        await note.submit_many_async([{"n": n} for n in range(80)])
        await until(lambda: len(first.parts.context.table) == 79)
        first.stop()
        async with running(other) as second:
            await until(
                lambda: len(ran) == 80
            )  # the first node still drains, because its task runs
            assert first.in_flight == 1
            gate.set()
            await settled(other, second)
    await is_empty(app)
    assert sorted(ran) == list(range(80)) and set(claims(app).values()) == {1}
    assert counts(other)["healed_triggers"] == 0
    other.close()


async def test_two_nodes_run_5000_tasks_once_each(app: App) -> None:
    ran: Counter[str] = Counter()
    other = twin(app)
    for each, name in ((app, "first"), (other, "second")):

        async def handler(n: int, name: str = name) -> None:
            ran[name] += 1

        each.task(name="note")(handler)
    note = app.handlers["note"]
    async with running(app) as first, running(other):
        for start in range(0, 5000, 50):
            await submit(app, note, range(start, start + 50))
        await settled(app, first, 120)
    found = claims(app)
    assert len(found) == 5000 and set(found.values()) == {1}
    assert ran["first"] > 500 and ran["second"] > 500, ran
    other.close()


async def submit(app: App, handler: Any, numbers: range) -> None:
    from fairlead import Draft
    from fairlead.declare.options import Options

    drafts = [Draft(handler, (), {"n": n}, Options(fairness_key=f"key {n % 7}")) for n in numbers]
    await asyncio.to_thread(app.submit_many, drafts)


# Redis away ---------------------------------------------------------------------------------------


async def test_submits_work_while_redis_is_away_and_all_tasks_run_afterwards(
    sqlite_url: str,
) -> None:
    """Redis comes back empty, because it keeps nothing on disk."""
    with RedisServer() as server:
        app = counting(sqlite_url, server.url)
        note, ran = noting(app)
        long, begun, gate = sticking(app)

        async with owning(app, intervals=NO_POLLERS) as node:
            sweeps_every(app, NEVER)
            await note.submit_async(0)
            await settled(app, node)
            handle = await long.submit_async()
            await begun.wait()
            server.crash()
            for n in range(1, 50):
                await note.submit_async(n)
            # The trigger of the long task may be unsent too.
            await until(lambda: counts(app)["unsent_triggers"] in (49, 50))
            gate.set()
            await until(lambda: handle.state() == State.DONE)
            assert ran == [0] and len(node.parts.ownership.owned) == 1
            problems = [
                finding
                for finding in await examine(app.operate_context)
                if finding.severity == "problem"
            ]
            assert "Redis does not respond" in problems[0].what and "start the server" in (
                problems[0].cure or ""
            )
            server.start()
            await settled(app, node)
        app.close()
    assert sorted(ran) == list(range(50))


async def test_a_redis_that_restarts_empty_loses_no_task(sqlite_url: str) -> None:
    with RedisServer() as server:
        app = counting(sqlite_url, server.url)
        note, ran = noting(app)
        stuck, begun, gate = sticking(app)

        async with owning(app, concurrency=1) as node:
            await stuck.submit_async()
            await begun.wait()
            await note.submit_many_async([{"n": n} for n in range(400)])
            await until(lambda: is_up_to_date(app) and not app.channel._to_compare)
            server.restart()
            sweeps_every(app, 0.5)
            gate.set()
            await settled(app, node, 60)
        app.close()
    assert sorted(ran) == list(range(400))


async def test_a_silent_redis_does_not_block_a_submitter(sqlite_url: str) -> None:
    """The server accepts connections and never responds."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        app = counting(
            sqlite_url, f"redis://127.0.0.1:{deaf.getsockname()[1]}/0?socket_timeout=0.2"
        )
        note, _ = noting(app)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for n in range(20):
            note.submit(n)
        assert loop.time() - began < SOON
        await until(lambda: counts(app)["unsent_triggers"] == 20)
        app.close()


async def test_an_error_in_the_comparison_of_rows_ends_the_node(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> list[Any]:
        raise RuntimeError("a bug of the test")

    work, _ = noting(sqlite_app)
    work.submit(n=1)
    monkeypatch.setattr(channel_module.RedisChannel, "_rows", broken)
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.wait_for(sqlite_app.node().run(), SOON)
    assert group.group_contains(RuntimeError, match="a bug of the test")


async def test_the_doctor_shows_waiting_triggers(sqlite_app: App) -> None:
    app = sqlite_app
    gate = asyncio.Event()
    app.queue("default", concurrency=Limit(1))

    @app.task
    async def stuck(n: int) -> None:
        await gate.wait()

    stuck.submit_many([{"n": n} for n in range(500)])
    app.channel.close_sender()

    async def waiting_findings() -> list[str]:
        return [finding.what for finding in await examine(app.operate_context)]

    assert any(
        "redis://127.0.0.1" in what and "reachable" in what for what in await waiting_findings()
    )
    assert any(
        "triggers of default: 500 waiting, 0 held by workers, the oldest for" in what
        for what in await waiting_findings()
    )
    async with owning(app) as node:
        await until(lambda: len(node.parts.context.table) == 499)
        assert any(
            "triggers of default: 0 waiting, 499 held" in what for what in await waiting_findings()
        ), await waiting_findings()
        assert not any("nobody reads" in what for what in await waiting_findings())
        gate.set()
        await settled(app, node)
