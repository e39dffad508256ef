"""Fair queues on a real node: order, stored triggers, weights, the next owner, and the row
operations of a task."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from fairlead import App, Limit, LimitTree, RateLimit
from fairlead.backends.sql.backlog import SqlBacklogStore
from fairlead.core.levels import evictions
from fairlead.engine import fair_partition
from fairlead.errors import ConfigurationError, InvalidTask, UnknownQueue
from fairlead.operate.overview import queue_view
from fairlead.testing import drain, running, settled
from tests.virtual_loop import VirtualTime

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 20.0


def recorder(app: App, **queue) -> tuple[list[str], object]:
    """Make a queue of one partition; return the keys of its runs in order, and a submit function."""
    app.queue("q", partitions=1, **queue)
    ran: list[str] = []

    @app.task(queue="q")
    async def note(key: str) -> None:
        ran.append(key)

    def push(keys: Iterable[str], **options) -> None:
        app.submit_many([note.options(fairness_key=key, **options).draft(key=key) for key in keys])

    return ran, push


def store_all(monkeypatch: pytest.MonkeyPatch, app: App) -> None:
    """Let triggers beyond memory be stored in the task database."""
    monkeypatch.setenv("FAIRLEAD_BACKLOG", "database")
    app.close()  # so that its adapters are made again
    app.migrate()


async def test_a_flood_delays_no_other_key(app: App) -> None:
    ran, push = recorder(app)
    push("aaaab")
    await drain(app, concurrency=1)
    assert ran == list("abaaa")


async def test_tasks_that_are_claimed_together_start_in_the_order_of_dispatch(app: App) -> None:
    ran, push = recorder(app)
    push("a" * 20)
    push("b" * 20)
    await drain(app, concurrency=40)
    assert "".join(ran) == "ab" * 20


async def test_a_flood_that_still_arrives_delays_no_other_key(app: App) -> None:
    """A key that comes behind a flood far beyond memory runs next."""
    ran, push = recorder(app)
    push("a" * 2500)
    push("b" * 3)
    async with running(app, concurrency=1, look_ahead=100):
        async with asyncio.timeout(SOON):
            while ran.count("a") < 50:
                await asyncio.sleep(0.01)
        assert ran.index("b") < 3 and ran[:10].count("b") == 3
        began = len(ran)
        await asyncio.to_thread(push, "c")
        async with asyncio.timeout(SOON):
            while "c" not in ran:
                await asyncio.sleep(0.01)
        assert ran.index("c") - began < 50


async def test_more_keys_than_memory_take_turns_and_a_new_key_runs_at_once(app: App) -> None:
    app.queue("q", partitions=1)
    ran: list[tuple[str, int]] = []
    go_on = asyncio.Event()

    @app.task(queue="q")
    async def note(key: str, n: int) -> None:
        ran.append((key, n))
        if len(ran) == 1200:
            await go_on.wait()

    keys = [f"k{n}" for n in range(600)]
    app.submit_many(
        [note.options(fairness_key=key).draft(key=key, n=n) for n in range(4) for key in keys]
    )
    async with running(app, concurrency=1, look_ahead=100) as node:
        async with asyncio.timeout(SOON):
            while len(ran) < 1200:
                await asyncio.sleep(0.01)
        late = await note.options(fairness_key="new").submit_async(key="new", n=0)
        async with asyncio.timeout(SOON):
            while late.id not in node.parts.intake._known:
                await asyncio.sleep(0.01)
        go_on.set()
        await settled(app, node)
    assert ("new", 0) in ran[1200:1210]
    begun: Counter[str] = Counter()
    for key, n in ran:
        assert n == begun[key], "a task overtook an older one of its key"
        begun[key] += 1
        if begun[key] == 4:
            assert min(begun[k] for k in keys) >= 2, "a key ran far ahead of another"
    assert begun == dict.fromkeys(keys, 4) | {"new": 1}


@pytest.mark.parametrize("order", ["fair", "fifo"])
@pytest.mark.parametrize("kind", ["limit", "unknown"])
async def test_a_task_behind_a_flood_of_its_own_key_that_cannot_run_runs(
    sqlite_url: str, kind: str, order: str
) -> None:
    """The channel keeps it, and memory is full of tasks that a limit stops or no node knows."""
    app, other = App(sqlite_url), App(sqlite_url)
    app.migrate()
    app.queue("q", partitions=1, order=order)
    other.queue("q", partitions=1, order=order)
    never, ran = asyncio.Event(), asyncio.Event()

    @(app if kind == "limit" else other).task(queue="q", concurrency=Limit(1))
    async def slow() -> None:
        await never.wait()

    @app.task(queue="q")
    async def quick() -> None:
        ran.set()

    slow.submit_many([{}] * 150)
    quick.submit()
    async with running(app, look_ahead=25, drain=0.0), asyncio.timeout(SOON):
        await ran.wait()
        never.set()
    other.close()
    app.close()


async def test_a_fifo_queue_keeps_the_order_of_arrival_under_limits_of_each_key(
    sqlite_url: str,
) -> None:
    """Tasks of two names that wait for the limits of their keys fill memory."""
    app, chance = App(sqlite_url), random.Random(1)
    app.migrate()
    app.queue("q", partitions=1, order="fifo")
    started: dict[tuple[str, str], list[int]] = {}
    tasks = []
    for name in ("x", "y"):

        @app.task(queue="q", name=name, concurrency=Limit(1, per="fairness_key"))
        async def work(name: str, key: str, n: int) -> None:
            started.setdefault((name, key), []).append(n)
            await asyncio.sleep({"a": 0.01, "b": 0.03, "c": 0.1}[key])

        tasks.append(work)
    drafts = []
    for n in range(200):
        task, key = chance.choice(tasks), chance.choice("abc")
        drafts.append(task.options(fairness_key=key).draft(name=task.name, key=key, n=n))
    app.submit_many(drafts)
    await drain(app, look_ahead=8, concurrency=20)
    assert sum(map(len, started.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in started.values())
    app.close()


async def test_a_flood_of_one_ordering_key_delays_no_other_key(sqlite_url: str) -> None:
    """A task kept out of memory by its ordering key does not run yet, so it does not advance the
    pass of its fairness key."""
    app = App(sqlite_url)
    app.migrate()
    app.queue("q", partitions=1)
    ran: list[str] = []
    are_twenty, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def note(key: str) -> None:
        ran.append(key)
        if len(ran) >= 20:
            are_twenty.set()
            await go_on.wait()

    note.options(fairness_key="a", ordering_key="all of a").submit_many([{"key": "a"}] * 300)
    note.options(fairness_key="c").submit_many([{"key": "c"}] * 300)
    concurrency = 2
    async with running(app, concurrency=concurrency) as node:
        async with asyncio.timeout(SOON):
            await are_twenty.wait()
            late = note.options(fairness_key="b").submit_many([{"key": "b"}] * 3)
            while not all(handle.id in node.parts.intake._known for handle in late):
                await asyncio.sleep(0.01)
        before = len(ran)
        go_on.set()
        await settled(app, node)
    app.close()
    assert Counter(ran) == {"a": 300, "b": 3, "c": 300}
    for n, position in enumerate(
        (position for position, key in enumerate(ran, 1) if key == "b"), 1
    ):
        assert position <= before + concurrency + 3 * n  # the keys alternate


@pytest.mark.smoke
async def test_weights_share_five_to_one(app: App) -> None:
    ran, push = recorder(app)
    push("a" * 20)
    push("b" * 20, weight=5.0)
    await drain(app, concurrency=1)
    assert "".join(ran) == "a" + "bbbbba" * 4 + "a" * 15


async def test_priorities_are_strict_and_fair_inside(app: App) -> None:
    ran, push = recorder(app)
    for priority in (4, 2, 3, 5, 1):
        push("aab", priority=priority)
    await drain(app, concurrency=1)
    assert "".join(ran) == "aba" * 5


async def test_tasks_that_do_not_fit_in_memory_are_stored_and_keep_their_position(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_all(monkeypatch, app)
    ran, push = recorder(app)
    keys = [random.Random(7).choice("aaaaaaab") for _ in range(1000)]
    push(keys)  # type: ignore[arg-type]
    push("c" * 20)
    await drain(app, concurrency=1, look_ahead=25)
    assert Counter(ran) == Counter(keys) + Counter("c" * 20)
    bound = 0
    counts = Counter(ran)
    for n, position in enumerate(
        (position for position, key in enumerate(ran, 1) if key == "c"), 1
    ):
        bound = sum(min(count, n) for count in counts.values())
        assert position <= bound
    found = await queue_view(app.operate_context, "q")
    assert all(lane.stored == 0 for partition in found.partitions for lane in partition.lanes)


@pytest.mark.parametrize("by_key", [True, False])
async def test_tasks_stopped_by_a_limit_that_fill_memory_delay_no_stored_task(
    app: App, monkeypatch: pytest.MonkeyPatch, by_key: bool
) -> None:
    """The limits are one of a task name, and one of a fairness key with many tasks. `by_key`:
    whether triggers beyond memory stay in their rows; else they are stored."""
    if not by_key:
        store_all(monkeypatch, app)
    app.queue("q", partitions=1)
    quick_ran: list[int] = []
    slow_ran: list[str] = []
    go_on = asyncio.Event()

    @app.task(queue="q", concurrency=Limit(1))
    async def slow(n: int) -> None:
        await go_on.wait()
        slow_ran.append("slow")

    @app.task(queue="q", concurrency=Limit(1, per="fairness_key"))
    async def of_a_key(n: int) -> None:
        if n < 0:
            await go_on.wait()
            slow_ran.append("of a key")
            return
        quick_ran.append(n)
        if len(quick_ran) == 600:
            go_on.set()

    slow.options(fairness_key="a").submit_many([{"n": n} for n in range(300)])
    of_a_key.options(fairness_key="flood").submit_many([{"n": -1} for _ in range(300)])
    for key in ("b", "c"):
        of_a_key.options(fairness_key=key).submit_many([{"n": n} for n in range(300)])
    await drain(app, look_ahead=25, concurrency=10)
    assert sorted(quick_ran) == sorted([*range(300), *range(300)])
    assert Counter(slow_ran) == {"slow": 300, "of a key": 300}


async def test_keys_each_stopped_by_its_own_limit_delay_no_other_task(sqlite_url: str) -> None:
    """More of them than memory has room for, each with one task that waits for an hour."""
    app, ran = App(sqlite_url), list[str]()
    app.migrate()
    app.queue("q", partitions=1)

    @app.task(queue="q", concurrency=RateLimit(1, per=3600.0, key="fairness_key"))
    async def hourly(key: str) -> None: ...

    @app.task(queue="q")
    async def quick(key: str) -> None:
        ran.append(key)

    keys = [f"k{n}" for n in range(300)]
    for _ in range(2):
        app.submit_many([hourly.options(fairness_key=key).draft(key=key) for key in keys])
    app.submit_many([quick.options(fairness_key=key).draft(key=key) for key in keys])
    async with running(app, concurrency=20, look_ahead=25, drain=0.0), asyncio.timeout(SOON):
        while len(ran) < len(keys):
            await asyncio.sleep(0.01)
    assert sorted(ran) == sorted(keys)
    app.close()


async def test_tasks_of_many_ordering_keys_go_on_under_a_limit_that_fills_memory(
    sqlite_url: str,
) -> None:
    app, ran = App(sqlite_url), list[int]()
    app.migrate()
    app.queue("q", partitions=1)

    @app.task(queue="q", concurrency=Limit(1))
    async def note(n: int) -> None:
        await asyncio.sleep(0.3)
        ran.append(n)

    @app.task(queue="q")
    async def other() -> None: ...

    app.submit_many([note.options(ordering_key=f"o{n}").draft(n=n) for n in range(200)])
    other.submit()
    began = asyncio.get_running_loop().time()
    await drain(app, concurrency=10, look_ahead=25, timeout=600.0)
    assert ran == list(range(200))
    assert asyncio.get_running_loop().time() - began < 1.1 * 200 * 0.3
    app.close()


LANE_WIDE_LIMITS = {
    "a limit": lambda second: Limit(2),
    "a rate": lambda second: RateLimit(1, per=2.0 * second),
    "the total of a tree": lambda second: LimitTree(
        2, names={"other": 1}, fairness_keys={"other": 1}
    ),
}


@pytest.fixture
def second(virtual_time: VirtualTime | None) -> float:
    """Return a second of virtual time, or a short moment of the real time that servers need."""
    return 1.0 if virtual_time else 0.02


@pytest.mark.parametrize("limit", LANE_WIDE_LIMITS)
@pytest.mark.parametrize("declares", ["queue", "task"])
async def test_a_limit_that_all_tasks_of_a_queue_share_changes_no_order(
    app: App, limit: str, declares: str, second: float
) -> None:
    """Two keys of equal weight wait beyond memory; later, other keys arrive."""
    of = {"concurrency": LANE_WIDE_LIMITS[limit](second)}
    app.queue("q", partitions=1, **(of if declares == "queue" else {}))
    started: list[str] = []
    arrived: dict[str, int] = {}

    @app.task(queue="q", **(of if declares == "task" else {}))
    async def note(key: str) -> None:
        started.append(key)
        if len(started) % 25 == 0:
            newcomer = f"new {len(started)}"
            arrived[newcomer] = len(started)
            await note.options(fairness_key=newcomer).submit_async(key=newcomer)
        await asyncio.sleep(4.0 * second)

    for key in "ab":
        note.options(fairness_key=key).submit_many([{"key": key} for _ in range(60)])
    await drain(app, timeout=5000.0, look_ahead=25, concurrency=50)
    a = 0
    # Two tasks of one claim start in any order.
    for n, key in enumerate([key for key in started if key in "ab"][:110], 1):
        a += key == "a"
        assert abs(2 * a - n) <= 2 + 2, f"{a} of the first {n} are of a"
    for newcomer, position in arrived.items():
        waited = started.index(newcomer) - position
        assert waited <= 6, f"{newcomer} waited for {waited} other tasks"


async def test_a_task_stopped_for_long_keeps_no_dispatched_rows_in_the_store(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_all(monkeypatch, app)
    monkeypatch.setattr(evictions, "MOST_PINNED", 200)
    monkeypatch.setattr(SqlBacklogStore, "delete_acks", 100)
    app.queue("q", partitions=1)
    ran: list[int] = []
    are_deleted = asyncio.Event()

    @app.task(queue="q", concurrency=Limit(1))
    async def slow(n: int) -> None:
        await are_deleted.wait()

    @app.task(queue="q")
    async def quick(n: int) -> None:
        ran.append(n)

    slow.options(fairness_key="a").submit_many([{"n": n} for n in range(3)])
    quick.options(fairness_key="b").submit_many([{"n": n} for n in range(1200)])
    async with running(app, look_ahead=25) as node:
        async with asyncio.timeout(SOON):
            while len(ran) < 1200 or stored(app) > 300:  # noqa: ASYNC110 - no event tells when rows are deleted
                await asyncio.sleep(0.01)
        are_deleted.set()
        await settled(app, node)


async def test_old_rows_that_the_store_does_not_delete_stop_no_worker(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SqlBacklogStore, "delete_acks", 100)
    monkeypatch.setattr(fair_partition, "DELETE_AGAIN_SECONDS", 0.05, raising=False)
    app, ran = App(sqlite_url, backlog="database"), list[int]()
    app.queue("q", partitions=1)
    app.migrate()

    @app.task(queue="q")
    async def quick(n: int) -> None:
        ran.append(n)

    with app.store.database.transaction() as connection:
        connection.execute(
            "CREATE TRIGGER refusal BEFORE DELETE ON fairlead_backlog"
            " BEGIN SELECT RAISE(ABORT, 'no changes before Monday'); END"
        )
    quick.submit_many([{"n": n} for n in range(3000)])
    node = app.node(look_ahead=25, drain=1.0)
    working = asyncio.create_task(node.run())

    async def until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert not working.done(), working.exception()
            await asyncio.sleep(0.01)

    await until(lambda: len(ran) == 3000)
    assert stored(app) > 300
    (refused,) = [each for each in caplog.records if "does not delete" in each.message]
    assert "no changes before Monday" in vars(refused)["error"]
    with app.store.database.transaction() as connection:
        connection.execute("DROP TRIGGER refusal")
    quick.submit_many([{"n": n} for n in range(3000)])
    await until(lambda: len(ran) == 6000 and stored(app) < 300)
    node.stop()
    await working
    app.close()


def stored(app: App) -> int:
    with app.store.database.transaction() as connection:
        return connection.execute("SELECT count(*) FROM fairlead_backlog").fetchone()[0]


async def test_a_weight_set_at_run_time_replaces_the_weights_of_tasks(app: App) -> None:
    ran, push = recorder(app)
    with pytest.raises(UnknownQueue, match="start a worker"):
        app.management.set_weight("q", "b", 5.0)
    push("z")
    await drain(app)
    app.management.set_weight("q", "b", 5.0)
    with pytest.raises(InvalidTask, match=r"0\.001"):
        app.management.set_weight("q", "b", 0.0)
    assert app.management.weights("q") == {"b": 5.0}
    push("a" * 20)
    push("b" * 20)
    await drain(app, concurrency=1)
    assert "".join(ran[1:]) == "a" + "bbbbba" * 4 + "a" * 15
    app.management.set_weight("q", "b", None)
    with pytest.raises(UnknownQueue, match="start a worker"):
        app.management.set_weight("q", "b", None)


async def test_new_weights_act_on_tasks_that_wait_in_memory(app: App) -> None:
    ran, push = recorder(app)
    begun, has_weights = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def begin() -> None:
        begun.set()
        await has_weights.wait()

    begin.submit()
    async with running(app, concurrency=1, look_ahead=500) as node:
        await begun.wait()
        push("ab" * 500)
        push("c" * 300)
        [lane] = node.parts.intake.lanes._lanes.values()
        async with asyncio.timeout(SOON):
            while lane.core.size <= 1000:  # of all keys
                await asyncio.sleep(0.01)
        app.management.set_weight("q", "a", 10.0)
        app.management.set_weight("q", "c", 0.5)
        async with asyncio.timeout(SOON):
            while node.parts.intake.lanes.sharing.weights["q"] != {"a": 10.0, "c": 0.5}:
                await asyncio.sleep(0.01)
        has_weights.set()
        await settled(app, node)
    assert Counter(ran) == {"a": 500, "b": 500, "c": 300}
    soon = Counter(ran[20:365])
    # Memory may run dry of a key while a server reads more of it: these tasks take no time.
    assert soon["a"] == pytest.approx(300, abs=30)
    assert soon["b"] == pytest.approx(30, abs=15)
    assert soon["c"] == pytest.approx(15, abs=10)


@pytest.mark.parametrize("cost", ["tasks", "runtime"])
async def test_a_tenant_gains_nothing_by_a_flood_of_many_keys_far_beyond_memory(
    app: App, cost: str
) -> None:
    """Beyond memory, tasks of one tenant come by key or in the order of arrival."""
    ran, push = recorder(app, cost=cost)
    push([f"big/{n}" for n in range(300)] * 4)
    push(["small"] * 1200)
    async with running(app, concurrency=1, look_ahead=50):
        async with asyncio.timeout(SOON):
            while len(ran) < 700:
                await asyncio.sleep(0.01)
    soon = Counter(key.partition("/")[0] for key in ran[100:700])
    # The run times of a real clock are noise, and the tasks share these.
    is_noisy = cost == "runtime" and app.store.database.dialect != "sqlite"
    assert soon["small"] == pytest.approx(300, abs=90 if is_noisy else 30)


async def test_the_weight_of_a_tenant_acts_on_the_stored_tasks_of_all_its_keys(app: App) -> None:
    ran, push = recorder(app)
    keys = [f"{tenant}/{n % 20}" for n in range(750) for tenant in ("a", "b")]
    push(keys)
    async with running(app, concurrency=1, look_ahead=100):
        app.management.set_weight("q", "b", 9.0)
    loads, number = app.management.heaviest_keys("q", 100)
    assert number == 40
    shares = {load.fairness_key: load.share for load in loads}
    assert shares["a/0"] == pytest.approx(0.1 / 20) and shares["b/0"] == pytest.approx(0.9 / 20)
    async with running(app, concurrency=1, look_ahead=100) as node:
        await settled(app, node)
    soon = Counter(key[0] for key in ran[100:600])
    assert soon["b"] == pytest.approx(450, abs=30)


async def test_stored_levels_do_not_share_run_time(sqlite_url: str) -> None:
    app = App(sqlite_url, backlog="database")
    app.migrate()
    app.queue("q", cost="runtime")
    with pytest.raises(ConfigurationError, match=r"queue 'q' has cost='runtime'.*leave backlog="):
        app.node()
    app.close()


async def test_a_task_costs_four_row_operations_and_two_more_if_it_is_stored_in_the_backlog(
    sqlite_url: str,
) -> None:
    """Each task costs four row operations: insert, claim, attempt, delete. A task that does not fit
    in memory costs one more insert and one more delete."""
    app = App(sqlite_url, backlog="database")
    app.migrate()
    app.queue("q", partitions=1)

    @app.task(queue="q")
    async def nothing() -> None: ...

    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("CREATE TABLE operations (what TEXT PRIMARY KEY, count INTEGER)")
    for table in ("tasks", "attempts", "backlog", "results", "unique_keys"):
        for event in ("INSERT", "UPDATE", "DELETE"):
            connection.execute(f"INSERT INTO operations VALUES ('{event} {table}', 0)")
            connection.execute(
                f"CREATE TRIGGER count_{event}_{table} AFTER {event} ON fairlead_{table} BEGIN "
                f"UPDATE operations SET count = count + 1 WHERE what = '{event} {table}'; END"
            )
    connection.commit()
    tasks = 1200
    nothing.submit_many([{}] * tasks)
    await drain(app, look_ahead=50)
    app.close()
    counted = {
        what: count for what, count in connection.execute("SELECT * FROM operations") if count
    }
    connection.close()
    expected = {
        "INSERT tasks": tasks,
        "UPDATE tasks": tasks,
        "INSERT attempts": tasks,
        "DELETE tasks": tasks,
        "INSERT backlog": tasks,
        "DELETE backlog": tasks,
    }
    assert counted == expected
