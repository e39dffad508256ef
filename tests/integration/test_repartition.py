"""An ordered queue moves to another number of partitions: no task is lost, none runs twice, and each
ordering key keeps its order."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fairlead import App, Fixed
from fairlead.cli.main import app as commands
from fairlead.clock import MICROS
from fairlead.core.sharding.partitions import partition_of
from fairlead.engine.leases import lease_of
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model import BEFORE_ALL, PartitionKey
from fairlead.operate.doctor import examine
from fairlead.ordered import repartition
from fairlead.ordered.layout import OtherLayout
from fairlead.ports.task_log import Submit
from fairlead.submit import ordered as submits
from fairlead.testing import running, settled
from tests.integration.ordered_kit import PAIRS, SOON, Kit, Runs, SetClock, open_app, open_pair
from tests.tiers import matrix

QUEUE = "reminders"
KEYS = [f"k{n}" for n in range(24)]
WEEK = timedelta(days=7)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        metafunc.parametrize("url", matrix(*PAIRS), indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the task store of each pair in turn. Appends to Kafka fail after 5 s, not
    30 s, because every move waits as long for the appends that have begun."""
    url = open_pair(request.param, request, monkeypatch)
    if log := os.environ.get("FAIRLEAD_LOG"):
        joint = "&" if "?" in log else "?"
        monkeypatch.setenv("FAIRLEAD_LOG", f"{log}{joint}message.timeout.ms=5000")
        task_log = pytest.importorskip("fairlead.backends.kafka.task_log")
        monkeypatch.setattr(task_log, "MARGIN_SECONDS", 1.0)
    return url


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repartition, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(repartition, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(repartition, "_MARGIN_SECONDS", 0.1)
    monkeypatch.setattr(repartition, "LAYOUT_SECONDS", 0.2)
    monkeypatch.setattr(submits, "LAYOUT_SECONDS", 0.1)


@pytest.fixture
def kit(url: str) -> Iterator[Kit]:
    kit = open_app(url, partitions=4)
    yield kit
    kit.app.close()


class Shop:
    """An application with any number of partitions on the store of others, whose tasks fail while
    their name begins with `bad`."""

    def __init__(self, url: str, partitions: int, clock: SetClock, runs: Runs) -> None:
        self.is_failing = True
        self.app = App(url, clock=clock)
        self.app.queue(QUEUE, kind="ordered", partitions=partitions, grace=600.0)

        @self.app.task(queue=QUEUE, retry=Fixed(300.0))
        async def remind(name: str) -> None:
            runs.start(name, clock.now() / MICROS)
            if name.startswith("bad") and self.is_failing:
                raise ValueError(name)

        self.app.migrate()
        self.kit = Kit(self.app, runs, remind, clock)

    async def unfinished(self) -> dict[str, Any]:
        """Return the tasks in the schedule by name."""
        found = await self.app.management.ordered.tasks(QUEUE, limit=10_000)
        return {json.loads(each.task.payload)["name"]: each for each in found}

    async def move(self, partitions: int) -> repartition.Repartitioned:
        return await self.app.management.ordered.repartition(QUEUE, partitions)


async def test_tasks_in_every_state_move_up_and_down_and_run_once_in_order(url: str) -> None:
    clock, runs = SetClock(), Runs()
    old = Shop(url, 4, clock, runs)
    made = old.kit.at(0)
    async with running(old.app) as node:
        for key in KEYS:
            old.kit.submit(f"done {key}", key, made, "u")
            old.kit.submit(f"bad {key}", key, made + timedelta(seconds=0.001), "u")
            old.kit.submit(f"blocked {key}", key, made + timedelta(seconds=0.002), "u")
            old.kit.submit(f"later {key}", key, made + WEEK, "u")
        await runs.until(*(f"bad {key}" for key in KEYS))
        while node.in_flight or await old.app.connections.log.lag(QUEUE):  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    for key in KEYS:  # stays in the log
        old.kit.submit(f"unread {key}", key, made + timedelta(seconds=0.003), "u")
        old.kit.submit(f"done {key} again", key, made, "u")
    (dropped,) = [
        each.key for name, each in (await old.unfinished()).items() if name == f"later {KEYS[0]}"
    ]
    old.app.management.ordered.drop(QUEUE, dropped)
    before = await old.unfinished()

    moved = await old.move(8)
    assert (moved.tasks > 0, moved.completed > 0) == (True, True)
    assert moved.entries == 2 * len(KEYS) + 1
    new = Shop(url, 8, clock, runs)
    after = await new.unfinished()
    assert after.keys() == (before.keys() | {f"unread {key}" for key in KEYS}) - {
        f"later {KEYS[0]}"
    }
    for name, each in after.items():
        assert each.task.partition == partition_of(each.key.ordering_key, 0, 8)
        if name in before:
            same = msgspec.structs.replace(before[name].task, partition=each.task.partition)
            assert each == msgspec.structs.replace(before[name], task=same)
    assert all(after[f"bad {key}"].attempt == 1 for key in KEYS)

    runs.started.clear()
    new.is_failing = False
    clock.ahead += 400
    async with running(new.app) as node:
        await runs.until(*(f"unread {key}" for key in KEYS))
        await settled(new.app, node, SOON)
    assert sorted(runs.names) == sorted(
        f"{name} {key}" for name in ("bad", "blocked", "unread") for key in KEYS
    )
    for key in KEYS:
        assert [name for name in runs.names if name.endswith(f" {key}")] == [
            f"{name} {key}" for name in ("bad", "blocked", "unread")
        ]
    (attempts,) = [new.app.management.attempts(after[f"bad {KEYS[0]}"].task.id)]
    assert [each.attempt for each in attempts] == [1, 2]

    assert (await new.move(3)).tasks > 0
    for number in range(3, 8):  # nothing is left where no worker reads
        found = await new.app.connections.schedule.read(  # type: ignore[union-attr]
            PartitionKey(QUEUE, number), BEFORE_ALL, dropped, 10
        )
        assert list(found.tasks) == []
    runs.started.clear()
    last = Shop(url, 3, clock, runs)
    clock.ahead += WEEK.total_seconds()
    async with running(last.app) as node:
        await runs.until(*(f"later {key}" for key in KEYS[1:]))
        await settled(last.app, node, SOON)
    assert sorted(runs.names) == sorted(f"later {key}" for key in KEYS[1:])
    for each in (old, new, last):
        each.app.close()


async def test_a_move_is_refused_beside_a_worker_which_goes_on(kit: Kit) -> None:
    async with running(kit.app) as node:
        kit.submit("before")
        await kit.runs.until("before")
        other = open_app(kit.app.url, partitions=8)
        with pytest.raises(ConfigurationError, match="stop all workers of the queue"):
            await other.app.management.ordered.repartition(QUEUE, 8)
        topics = getattr(other.app.connections.log, "_topics", None)
        assert topics is None or topics.count(QUEUE) == 4  # Kafka could not undo more
        plan = await other.app.management.ordered.repartition_plan(QUEUE, 8)
        assert (plan.before, plan.partitions, len(plan.workers)) == (4, 8, 1)
        kit.submit("after")
        await kit.runs.until("after")
        await settled(kit.app, node, SOON)
    other.app.close()


async def test_another_number_is_refused_at_submit_and_start_and_the_doctor_names_the_command(
    kit: Kit,
) -> None:
    kit.submit("waits")
    other = open_app(kit.app.url, partitions=8)
    with pytest.raises(
        OtherLayout, match="fairlead ordered repartition reminders --app MODULE:APP --to 8"
    ):
        other.submit("refused")
    with pytest.raises(OtherLayout, match="declare it with partitions=4"):
        other.app.node()
    assert "--to 8" in await _problems(other.app)
    assert "repartition" not in await _problems(kit.app)
    await other.app.management.ordered.repartition(QUEUE, 8)
    with pytest.raises(OtherLayout, match="declare it with partitions=8"):
        kit.app.node()
    async with running(other.app) as node:
        await other.runs.until("waits")
        await settled(other.app, node, SOON)
    other.app.close()


async def test_entries_by_an_old_number_that_come_after_the_move_run_too(kit: Kit) -> None:
    log = kit.app.connections.log
    assert log is not None
    kit.submit("before", "a")
    await kit.app.management.ordered.repartition(QUEUE, 8)
    new = open_app(kit.app.url, clock=kit.clock, partitions=8)
    (one,) = [key for key in KEYS if partition_of(key, 0, 8) == 6][:1]
    kit.submit("by the new number", one)
    template = (await _entries(new, one)).task
    late = msgspec.structs.replace(
        template, id=template.id[:-1] + "0", partition=partition_of(one, 0, 4), unique_key="late"
    )
    await asyncio.wrap_future(log.append([Submit(late)]))
    async with running(new.app) as node:
        await new.runs.until_count(3)
        await settled(new.app, node, SOON)
    if log.joins_transactions:
        new.app.close()
        return  # who cannot reach the task store cannot append
    await new.app.management.ordered.repartition(QUEUE, 3)
    stranded = msgspec.structs.replace(late, unique_key="stranded", partition=6)
    await asyncio.wrap_future(log.append([Submit(stranded)]))
    last = open_app(kit.app.url, clock=kit.clock, partitions=3)
    async with running(last.app) as node:
        await last.runs.until_count(1)
        await settled(last.app, node, SOON)
    new.app.close()
    last.app.close()


async def test_a_submitter_reads_the_number_again_as_soon_as_the_database_of_the_log_is_back(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submits, "LAYOUT_SECONDS", 0.0)
    database = kit.app.sql_store.database
    log = kit.app.connections.log
    assert log is not None
    if not log.joins_transactions:
        pytest.skip("the log is on another server, and goes on with the old number")
    kit.submit("before", "a")

    def away(steps: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(database, "read_now", away)
        kit.submit("during", "a")
    other = open_app(kit.app.url, clock=kit.clock, partitions=3)
    await other.app.management.ordered.repartition(QUEUE, 3)
    for key in KEYS:
        kit.submit(key, key)
    assert set(await log.lag(QUEUE)) <= {0, 1, 2}
    async with running(other.app) as node:
        await other.runs.until(*KEYS)
        await settled(other.app, node, SOON)
    other.app.close()


async def test_a_move_that_hangs_while_another_one_ends_does_not_change_the_number(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repartition, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(repartition, "PATIENCE_SECONDS", 20.0)
    kit.submit("waits")
    hangs, goes_on = asyncio.Event(), asyncio.Event()
    store = kit.app.sql_store
    run_async = store.database.run_async

    async def run_late(steps: Any, **rest: Any) -> Any:
        if steps.__name__ == "resizing" and not hangs.is_set():
            hangs.set()
            await goes_on.wait()
        return await run_async(steps, **rest)

    monkeypatch.setattr(store.database, "run_async", run_late)
    hanging = asyncio.ensure_future(kit.app.management.ordered.repartition(QUEUE, 8))
    await hangs.wait()
    other = open_app(kit.app.url, clock=kit.clock, partitions=3)
    coordinator = kit.app.connections.coordinator
    await coordinator.release(list(await coordinator.owners()), (await _movers(coordinator))[0])
    await other.app.management.ordered.repartition(QUEUE, 3)
    async with running(other.app) as node:
        await other.runs.until("waits")
        goes_on.set()
        with pytest.raises((ConfigurationError, StoreUnavailable), match="run the move again"):
            await hanging
        known = store.database.read_now(store.queue_settings())
        assert known[QUEUE].partitions == 3
        for key in KEYS:
            other.submit(key, key)
        await other.runs.until(*KEYS)
        await settled(other.app, node, SOON)
    other.app.close()


async def test_a_worker_that_meets_a_sealed_partition_ends_with_an_error(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repartition, "LEASE_SECONDS", 2.0)
    kit.submit("waits", "a", kit.at(3600))
    with pytest.raises(StoreUnavailable):
        await _cut_off_after(kit.app, 8, 27)  # after the seal of some partitions
    with pytest.raises(ExceptionGroup) as refused:
        await kit.app.node().run()
    assert refused.group_contains(
        OtherLayout, match="is being moved to 8 partitions", depth=None
    ), refused.value
    assert kit.runs.names == []


def test_the_command_moves_a_queue_and_shows_what_it_would_move(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "moved_shop.py").write_text(
        "import fairlead\n"
        "app = fairlead.App('sqlite:///tasks.db')\n"
        "app.queue('reminders', kind='ordered', partitions=4)\n"
        "app.queue('mail')\n"
        "@app.task(queue='reminders')\n"
        "def remind(n: int) -> None: ...\n"
    )
    import moved_shop  # type: ignore[import-not-found]

    moved_shop.app.migrate()
    for n in range(5):
        moved_shop.remind.options(ordering_key=f"k{n}").submit(n=n)
    words = ["ordered", "repartition", "--app", "moved_shop:app"]

    def run(*more: str) -> Any:
        return CliRunner().invoke(commands, [*words, *more])

    planned = run("reminders", "--to", "8", "--dry-run", "--json")
    assert json.loads(planned.stdout) == {
        "queue": "reminders",
        "before": 4,
        "partitions": 8,
        "tasks": 0,
        "unfinished": 0,
        "entries": 5,
        "workers": [],
    }
    assert "5 entries" in run("reminders", "--to", "8", "--dry-run").stdout
    assert "add --yes" in run("reminders", "--to", "8").stderr
    assert "no ordered queue 'mail'" in run("mail", "--to", "8", "--yes").stderr
    done = run("reminders", "--to", "8", "--yes")
    assert done.exit_code == 0, done.output
    assert "declare it with partitions=8" in done.stdout
    again = run("reminders", "--to", "8", "--yes", "--json")
    assert json.loads(again.stdout)["entries"] == 0
    moved_shop.app.close()


class _Cut:
    """A port whose calls fail from some number on. Renewals of leases do not count, because their
    number depends on the time."""

    def __init__(self, port: Any, left: list[int]) -> None:
        self._port = port
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        async def call(*rest: Any) -> Any:
            self._left[0] -= name != "renew"
            if self._left[0] < 0:
                raise StoreUnavailable("cut off")
            return await found(*rest)

        return call


async def _cut_off_after(app: App, partitions: int, calls: int) -> None:
    """Move the queue by a process that ends after a number of calls, without any farewell."""
    left = [calls]
    store = app.sql_store

    async def version() -> int:
        return (await store.database.read(store.queue_settings()))[QUEUE].version

    context = repartition.MoveContext(
        name=f"cut off after {calls}",
        log=_Cut(app.connections.log, left),
        store=_Cut(app.connections.schedule, left),
        coordinator=_Cut(app.connections.coordinator, left),
        clock=app.clock,
        lease_of=lease_of,
        version=version,
        resize=lambda read: store.database.run_async(store.resizing(QUEUE, partitions, read)),
    )
    await repartition.Repartition(QUEUE, partitions, context).run()


async def _entries(kit: Kit, ordering_key: str) -> Any:
    """Return the only entry in the log of an ordering key."""
    log = kit.app.connections.log
    assert log is not None
    at = PartitionKey(QUEUE, partition_of(ordering_key, 0, 8))
    await log.rewind(at)
    while True:
        for batch in await log.receive([at], 10):
            await log.rewind(at)
            return batch.entries[0]


async def _problems(app: App) -> str:
    return "\n".join(
        f"{each.what}; {each.cure}"
        for each in await examine(app.operate_context)
        if each.severity == "problem"
    )


async def _movers(coordinator: Any) -> list[str]:
    """Return the names of the moves that own leases."""
    owners = set((await coordinator.owners()).values())
    return sorted(owner for owner in owners if owner.startswith("repartition-"))
