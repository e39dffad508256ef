"""Ordered queues from end to end, on every pair of a log and a schedule."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from fairlead import App, ConfigurationError, Exponential, Incident, InvalidTask, NoRetry, State
from fairlead.clock import MICROS
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.current import current_task
from fairlead.errors import StoreUnavailable
from fairlead.model import TaskKey
from fairlead.operate.doctor import examine
from fairlead.testing import running, settled
from tests.builders import idle
from tests.integration.ordered_kit import (
    AHEAD,
    PAIRS,
    SOON,
    Kit,
    Runs,
    damage_rows,
    is_loaded_before,
    keys_of_partitions,
    open_app,
    rows_of,
)
from tests.tiers import matrix
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests on SQLite, and on the other pairs only in `make test-nightly`; smoke tests run on all
    pairs in both."""
    if "url" in metafunc.fixturenames:
        is_smoke = metafunc.definition.get_closest_marker("smoke") is not None
        metafunc.parametrize("url", PAIRS if is_smoke else matrix(*PAIRS), indirect=True)


async def test_tasks_with_any_mix_of_ordering_keys_times_and_unique_keys_run_once_in_order(
    kit: Kit,
) -> None:
    later = kit.at(4)  # after the last submit, also on a busy machine
    expected = set()
    async with running(kit.app) as node:
        for ordering_key, at, unique_key in itertools.product(
            "ab", (None, later), (None, "u", "v")
        ):
            name = f"{ordering_key} {'later' if at else 'now'} {unique_key}"
            kit.submit(name, ordering_key, at, unique_key)
            expected.add(name)
        await kit.runs.until(*expected)
        await settled(kit.app, node, SOON)
    assert sorted(kit.runs.names) == sorted(expected)
    for name, at in kit.runs.started:
        assert "later" not in name or at >= later.timestamp()
    for key in "ab":
        of_key = [name for name in kit.runs.names if name.startswith(key)]
        assert of_key == sorted(of_key, key=lambda name: "later" in name)


async def test_a_task_submitted_again_with_the_same_key_runs_once_with_its_last_arguments(
    url: str,
) -> None:
    kit = open_app(url, grace=600.0)
    at = kit.at(0.5)
    kit.submit("in the log", at=at, unique_key="one")
    kit.submit("instead", at=at, unique_key="one")
    async with running(kit.app) as node:
        for soon in AHEAD:
            later = kit.at(soon)
            kit.submit(f"first {soon}", at=later, unique_key=f"two {soon}")
            is_in_time = await is_loaded_before(kit, later, node, f"two {soon}")
            kit.submit(f"when loaded {soon}", at=later, unique_key=f"two {soon}")
            if is_in_time and kit.at(0) < later:
                break
        await kit.runs.until("instead", f"when loaded {soon}")
        await settled(kit.app, node, SOON)
        kit.submit("after it has run", at=at, unique_key="one")
        kit.submit("last", at=kit.at(0.2))
        await kit.runs.until("last")
        await settled(kit.app, node, SOON)
    assert [name for name in kit.runs.names if str(soon) in name or " " not in name] == [
        "instead",
        f"when loaded {soon}",
        "last",
    ]
    kit.app.close()


async def test_a_submit_late_within_the_grace_runs_at_once_and_a_later_one_is_refused(
    url: str,
) -> None:
    kit = open_app(url, grace=20.0)
    kit.submit("10 s late", at=kit.at(-10))
    with pytest.raises(
        InvalidTask,
        match=r"30.* s ago, more than the grace of 20 s of queue 'reminders'; leave run_at out",
    ):
        kit.submit("30 s late", at=kit.at(-30))
    async with running(kit.app) as node:
        await kit.runs.until("10 s late")
        await settled(kit.app, node, SOON)
    assert kit.runs.names == ["10 s late"]
    kit.app.close()


async def test_a_failing_task_is_retried_after_its_wait_and_delays_its_own_key_only(
    kit: Kit,
) -> None:
    failed: list[float] = []

    @kit.app.task(queue="reminders", retry=Exponential(max_attempts=100, first=1.0, jitter=0.5))
    async def fragile() -> None:
        kit.runs.start("fragile", kit.clock.now() / MICROS)
        if not failed:
            failed.append(kit.clock.now() / MICROS)
            raise RuntimeError("not yet")

    async with running(kit.app) as node:
        handle = fragile.options(ordering_key="a").submit()
        kit.submit("behind it", "a")
        await kit.runs.until("fragile")
        kit.submit("other", "b")
        await kit.runs.until("other", "behind it")
        await settled(kit.app, node, SOON)
    assert kit.runs.names == ["fragile", "other", "fragile", "behind it"]
    again = kit.runs.started[2][1]
    assert again - failed[0] >= 0.5
    attempts = kit.app.management.attempts(handle.id)
    assert [(a.attempt, a.tries, a.outcome, a.next_state) for a in attempts] == [
        (1, 1, "retried", "WAITING"),
        (2, 2, "done", "DONE"),
    ]
    assert "RuntimeError: not yet" in str(attempts[0].error_text)


async def test_a_partition_moves_to_another_node_only_after_its_runs_have_ended(
    url: str,
) -> None:
    runs = Runs()
    first, second = open_app(url, runs=runs), open_app(url, runs=runs)
    finish = asyncio.Event()
    ended: list[str] = []
    tasks = []
    for kit in (first, second):

        @kit.app.task(queue="reminders", name="hold")
        async def hold(key: str) -> None:
            runs.start(f"hold {key}", 0.0)
            await finish.wait()
            ended.append(key)

        @kit.app.task(queue="reminders", name="next")
        async def follow(key: str) -> None:
            assert key in ended, "the previous task of this key still runs"
            runs.start(f"next {key}", 0.0)

        tasks.append((hold, follow))
    hold, follow = tasks[0]
    keys = keys_of_partitions(8, 8)
    async with running(first.app, lease_seconds=2.0) as one:
        for key in keys:
            hold.options(ordering_key=key).submit(key=key)
        await runs.until(*(f"hold {key}" for key in keys))
        async with running(second.app, lease_seconds=2.0) as two:
            await until(lambda: len(one.parts.ordered._leaving_at) == 4)
            for key in keys:
                follow.options(ordering_key=key).submit(key=key)
            await asyncio.sleep(1.2)  # two renewals of the leases
            assert (len(one.parts.ownership.owned), len(two.parts.ownership.owned)) == (8, 0)
            finish.set()
            await runs.until(*(f"next {key}" for key in keys))
            await until(lambda: len(two.parts.ownership.owned) == 4)
    assert len(runs.names) == 16
    first.app.close()
    second.app.close()


@pytest.mark.system_time
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_after_a_person_drops_a_stuck_task_the_next_of_its_key_runs(
    kit: Kit, kind: str
) -> None:
    release = threading.Event()

    @kit.app.task(queue="reminders")
    async def hang() -> None:
        kit.runs.start("hang", 0.0)
        await asyncio.Event().wait()

    @kit.app.task(queue="reminders")
    def block() -> None:
        asyncio.run_coroutine_threadsafe(_start(kit.runs, "hang"), loop).result()
        release.wait(SOON)

    loop = asyncio.get_running_loop()
    stuck = hang if kind == "async" else block
    async with running(kit.app) as node:
        handle = stuck.options(ordering_key="a").submit()
        kit.submit("behind it", "a")
        await kit.runs.until("hang")
        kit.submit("other", "b")
        await kit.runs.until("other")
        assert kit.runs.names == ["hang", "other"]
        kit.app.management.ordered.drop("reminders", handle.key, actor="ada")
        await kit.runs.until("behind it")
        release.set()
        await settled(kit.app, node, SOON)
        assert node.parts.ordered.reloads() == {}
    (attempt,) = kit.app.management.attempts(handle.id)
    assert (attempt.outcome, attempt.next_state, attempt.error_text) == (
        "cancelled",
        "CANCELLED",
        "by ada",
    )


async def _start(runs: Runs, name: str) -> None:
    runs.start(name, 0.0)


async def test_a_drop_of_a_waiting_task_reloads_no_partition_and_the_task_does_not_return(
    kit: Kit,
) -> None:
    async with running(kit.app) as node:
        at = kit.at(1.0)
        handle = kit.submit("unwanted", at=at, unique_key="u")
        kit.submit("wanted", at=at)
        kit.submit("far", at=kit.at(4000), unique_key="far")
        kit.app.management.ordered.drop("reminders", handle.key, actor="ada")
        kit.submit("unwanted again", at=at, unique_key="u")
        kit.app.management.ordered.drop(
            "reminders", TaskKey(kit.clock.now(), "a", "nothing"), actor="ada"
        )
        await kit.runs.until("wanted")
        await settled(kit.app, node, SOON)
        assert node.parts.ordered.reloads() == {}
        assert kit.runs.names == ["wanted"]
    assert kit.app.management.attempts(handle.id)[0].outcome == "cancelled"


async def test_a_store_failure_reloads_its_own_partition_only_and_loses_no_task(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.ordered.partition.FIRST_PAUSE", 0.05)
    broken, well = keys_of_partitions(8, 2)
    async with running(kit.app) as node:
        store = node.parts.ordered._context.store
        persist, finish = store.persist, store.finish
        failures = {"persist": 2, "finish": 2}

        async def failing(what: str, call: Any, partition: Any, *rest: Any) -> Any:
            if partition.partition == partition_of(broken, 0, 8) and failures[what]:
                failures[what] -= 1
                raise StoreUnavailable("the store is unavailable")
            return await call(partition, *rest)

        monkeypatch.setattr(
            store, "persist", lambda *rest: failing("persist", persist, *rest), raising=False
        )
        monkeypatch.setattr(
            store, "finish", lambda *rest: failing("finish", finish, *rest), raising=False
        )
        kit.submit("in the broken one", broken)
        kit.submit("in another", well)
        await kit.runs.until("in another")
        assert "in the broken one" not in kit.runs.names
        await kit.runs.until("in the broken one")
        kit.submit("once more", broken)
        await kit.runs.until("once more")
        await settled(kit.app, node, SOON)
        assert failures == {"persist": 0, "finish": 0}
        assert {key.partition: n for key, n in node.parts.ordered.reloads().items()} == {
            partition_of(broken, 0, 8): 4
        }
    assert kit.runs.names == ["in another", "in the broken one", "once more"]


async def test_an_unreadable_row_stops_its_own_ordering_key_only_and_is_reported(
    kit: Kit,
) -> None:
    broken = "broken"
    well = next(
        key
        for key in (f"k{n}" for n in itertools.count())
        if partition_of(key, 0, 8) == partition_of(broken, 0, 8)
    )
    async with running(kit.app):
        kit.submit("damaged", broken, at=kit.at(30), unique_key="u")
        while await kit.app.connections.log.lag("reminders"):
            await asyncio.sleep(0.01)
    damage_rows(kit.app)
    kit.clock.ahead += 30
    incidents: list[Incident] = []
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_incident(incident: Incident) -> None:
        incidents.append(incident)
        loop.call_soon_threadsafe(told.set)

    kit.app.on_incident = on_incident
    async with running(kit.app) as node:
        kit.submit("behind it", broken)
        kit.submit("well", well)
        await kit.runs.until("well")
        async with asyncio.timeout(SOON):
            await told.wait()
        assert not node.parts.ordered.reloads()
        (scheduled,) = await kit.app.management.ordered.tasks(
            "reminders", ordering_key=broken, limit=1
        )
        assert scheduled.unreadable is not None
        async with asyncio.timeout(SOON):
            while not await _says(kit.app, "1 stored tasks cannot be read"):
                await asyncio.sleep(0.1)
        assert rows_of(kit.app).count("nonsense") == 1 and kit.runs.names == ["well"]
        kit.app.management.ordered.drop("reminders", scheduled.key)
        await kit.runs.until("behind it")
    (incident,) = incidents
    assert incident.kind == "task_unreadable" and incident.subject.endswith("/broken/u")


async def _says(app: App, words: str) -> bool:
    """Return whether the doctor reports a problem with these words."""
    found = await examine(app.operate_context)
    return any(finding.severity == "problem" and words in finding.what for finding in found)


async def test_a_submit_without_an_ordering_key_or_a_log_is_refused_with_the_reason(
    kit: Kit, tmp_path: Any
) -> None:
    with pytest.raises(
        InvalidTask, match="queue 'reminders' is ordered, so its tasks need an ordering_key"
    ):
        kit.remind.submit(name="no key")
    kit.submit("fine").result(timeout=SOON)
    lost = App(f"sqlite:///{tmp_path}/no/such/folder/tasks.db")
    lost.queue("reminders", kind="ordered")
    remind = idle(lost, "remind", queue="reminders")
    with pytest.raises(StoreUnavailable):
        remind.options(ordering_key="a").submit().result(timeout=SOON)


@pytest.mark.smoke
async def test_all_due_tasks_run_in_order_after_three_days_of_downtime(url: str) -> None:
    kit = open_app(url)
    async with running(kit.app):
        for n in reversed(range(20)):
            for key in "ab":
                kit.submit(f"{key}{n}", key, at=kit.at(60 + n * 600), unique_key=str(n))
        while await kit.app.connections.log.lag("reminders"):
            await asyncio.sleep(0.01)
    kit.submit("a in the log", "a", at=kit.at(30))
    kit.clock.ahead += 72 * 3600
    async with running(kit.app) as node:
        await kit.runs.until_count(41)
        await settled(kit.app, node, SOON)
    for key, first in (("a", ["a in the log"]), ("b", [])):
        ran = [name for name in kit.runs.names if name.startswith(key)]
        assert ran == [*first, *(f"{key}{n}" for n in range(20))]
    kit.app.close()


async def test_metrics_show_tasks_loaded_in_flight_and_stale_and_the_look_ahead(kit: Kit) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    from fairlead.contrib.prometheus import PrometheusObserver

    observer = PrometheusObserver()
    kit.app.observer = observer
    kit.submit("long overdue", at=kit.at(1))
    kit.submit("ahead", "b", at=kit.at(900))
    kit.clock.ahead += 600

    def gauge(what: str) -> float | None:
        return observer.registry.get_sample_value(
            f"fairlead_ordered_{what}", {"queue": "reminders"}
        )

    async with asyncio.timeout(SOON):
        async with running(kit.app):
            await kit.runs.until("long overdue")
            await until(lambda: gauge("loaded") == 1.0 and (gauge("look_ahead_seconds") or 0) > 290)
    assert (gauge("in_flight"), gauge("stale"), gauge("failing_partitions")) == (0.0, 0.0, 0.0)


async def test_a_task_submitted_in_the_callers_transaction_exists_only_after_the_commit(
    kit: Kit,
) -> None:
    database, log = kit.app.store.database, kit.app.connections.log
    assert log is not None
    if not log.joins_transactions:
        with (
            pytest.raises(InvalidTask, match="cannot be part of your transaction"),
            database.transaction() as connection,
        ):
            kit.remind.options(ordering_key="a", connection=connection).submit(name="refused")
        return
    with pytest.raises(ZeroDivisionError), database.transaction() as connection:
        kit.remind.options(ordering_key="a", connection=connection).submit(name="rolled back")
        raise ZeroDivisionError
    async with running(kit.app) as node:
        with database.transaction() as connection:
            kit.remind.options(ordering_key="a", connection=connection).submit(name="committed")
        await kit.runs.until("committed")
        await settled(kit.app, node, SOON)
    assert kit.runs.names == ["committed"]


def test_first_submits_to_new_queues_in_two_transactions_do_not_wait_for_each_other(
    migrated_postgres_url: str,
) -> None:
    app = App(migrated_postgres_url)

    def remind(name: str) -> None: ...

    first, second = (
        app.task(remind, name=queue, queue=app.queue(queue, kind="ordered").name)
        for queue in ("first", "second")
    )
    database = app.store.database
    with database.transaction() as open_one:
        first.options(ordering_key="k", connection=open_one).submit(name="a")
        with database.transaction() as other:
            other.execute("SELECT number FROM fairlead_changes FOR UPDATE NOWAIT")
        with database.transaction() as other:
            second.options(ordering_key="k", connection=other).submit(name="b")
        with database.transaction() as other:
            counts = other.execute("SELECT queue, count(*) FROM fairlead_task_log GROUP BY queue")
            assert counts.fetchall() == [("second", 1)]


async def test_options_that_an_ordered_queue_lacks_are_refused_when_declared(
    tmp_path: Any,
) -> None:
    app = App(f"sqlite:///{tmp_path}/tasks.db")
    with pytest.raises(ConfigurationError, match="kind 'sorted' is unknown"):
        app.queue("reminders", kind="sorted")
    app.queue("reminders", kind="ordered")
    for wrong in ({"keep_result": True}, {"transactional": True}):
        with pytest.raises(
            ConfigurationError, match="does not work with the ordered queue 'reminders'"
        ):

            @app.task(queue="reminders", **wrong)  # type: ignore[call-overload, untyped-decorator]
            async def remind(connection: Any = None) -> None: ...


async def test_a_queue_that_became_ordered_while_it_had_tasks_is_not_served_and_loses_none(
    url: str,
) -> None:
    before = App(url)
    before.migrate()
    before.queue("reminders", partitions=8)

    @before.task(queue="reminders")
    async def remind(name: str) -> None: ...

    remind.submit(name="old")
    before.store.database.run(before.sql_store.registration({"reminders": 8}))
    kit = open_app(url)
    with pytest.raises(
        ConfigurationError, match="'reminders' holds tasks from before it was ordered"
    ):
        kit.app.node()
    async with running(before) as node:
        await settled(before, node, SOON)
    async with running(kit.app):
        kit.submit("new")
        await kit.runs.until("new")
    before.close()
    kit.app.close()


async def test_interceptors_context_and_timeouts_work_in_ordered_queues(url: str) -> None:
    kit = open_app(url)

    @kit.app.task(queue="reminders", timeout=0.2, retry=NoRetry())
    async def slow() -> None:
        task = current_task()
        assert task is not None
        kit.runs.start(f"{task.name} {task.queue} {task.attempt} {task.context['trace']}", 0.0)
        await asyncio.sleep(60)

    async with running(kit.app) as node:
        handle = slow.options(ordering_key="a", context={"trace": "7"}).submit()
        kit.submit("behind it", "a")
        await kit.runs.until("slow reminders 1 7", "behind it")
        await settled(kit.app, node, SOON)
    (attempt,) = kit.app.management.attempts(handle.id)
    assert (attempt.outcome, attempt.next_state) == ("timed_out", "FAILED")
    kit.app.close()


async def test_concurrency_limits_and_pauses_hold_for_ordered_queues(url: str) -> None:
    from fairlead import Limit

    kit = open_app(url, concurrency=Limit(2))
    at_once, most = 0, 0

    @kit.app.task(queue="reminders")
    async def slow(n: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        kit.runs.start(str(n), 0.0)

    async with running(kit.app) as node:
        for n in range(30):
            slow.options(ordering_key=f"k{n}").submit(n=n)
        await kit.runs.until_count(30)
        await settled(kit.app, node, SOON)
    assert most == 2
    kit.app.close()


async def test_a_node_that_stops_writes_the_ends_of_its_runs_before_it_releases_partitions(
    kit: Kit,
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @kit.app.task(queue="reminders")
    async def slow() -> None:
        started.set()
        await finish.wait()
        kit.runs.start("slow", 0.0)

    async with running(kit.app, drain=SOON) as node:
        handle = slow.options(ordering_key="a").submit()
        await started.wait()
        node.stop()
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert len(node.parts.ownership.owned) == 8, (
                "a node keeps its partitions while their tasks run"
            )
        finish.set()
    assert handle.state() == State.DONE
    owners = await kit.app.connections.coordinator.owners()
    assert not [name for name in owners if name.startswith("partition/")]


async def test_a_later_owner_gives_its_runs_a_greater_fencing_token(url: str) -> None:
    app = App(url)
    app.queue("reminders", kind="ordered", partitions=1)
    fences: list[int] = []
    runs = Runs()

    @app.task(queue="reminders")
    async def remind(name: str) -> None:
        task = current_task()
        assert task is not None
        fences.append(task.fence)
        runs.start(name, 0)

    app.migrate()
    for names in (("a", "b"), ("c",)):
        async with running(app) as node:
            for name in names:
                remind.options(ordering_key=name).submit(name=name).result(SOON)
            await runs.until(*names)
            await settled(app, node, SOON)
    assert fences[0] == fences[1] < fences[2]
    app.close()
