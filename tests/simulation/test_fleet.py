"""Random fleets of workers on virtual time, checked all the time while they run.

`make test` runs 100 fleets, and `make test-nightly` 600 others. A failure prints the seed of its
fleet, its history, and the command that repeats it.
A fleet depends on nothing but its seed, and on PYTHONHASHSEED, which `make` and that command set to 0.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead import Fixed
from fairlead.backends.sql import channel, keyed_reader
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.sharding.shares import PartitionShares
from fairlead.engine import liveness
from fairlead.engine.executors.invocation import Invocation
from fairlead.engine.granting import Granting
from fairlead.engine.pollers import Pollers
from fairlead.engine.settings import LOOK_AHEAD
from tests import tiers
from tests.simulation.fleet_jobs import Job
from tests.simulation.fleet_plan import NEW, Plan, QueuePlan
from tests.simulation.fleet_simulation import Failed, Fleet, on_virtual_time, simulate
from tests.tiers import NIGHTLY, seeds

FLEETS = 25
"""Number of fleets in each block."""


def run_fleets(block: int, has_people: bool = False) -> None:
    for seed in tiers.block(block, FLEETS):
        try:
            simulate(seed, has_people=has_people)
        except Failed as failed:
            pytest.fail(str(failed), pytrace=False)


@pytest.mark.parametrize("block", seeds(2))
def test_random_fleets_keep_their_promises(block: int) -> None:
    run_fleets(block)


@pytest.mark.parametrize("block", seeds(1))
def test_fleets_whose_tasks_and_weights_people_change_keep_their_promises(block: int) -> None:
    run_fleets(block, has_people=True)


@pytest.mark.parametrize("block", seeds(1))
def test_fleets_that_read_every_lane_by_fairness_key_keep_their_promises(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of two triggers make each lane with three tasks a long one."""
    monkeypatch.setattr(channel, "PAGE", 2)
    for name, number in {"ANNOUNCED_PAGE": 2, "WALK": 2, "PAGE": 4, "MOST_POSITIONS": 5}.items():
        monkeypatch.setattr(keyed_reader, name, number)
    run_fleets(block)


@pytest.mark.parametrize(
    "seed",
    [
        300005,  # a task whose claim was refused was in no memory when its key became free
        300903,  # a new owner did not know which tasks the former one had kept out of memory
        457,  # the permits of killed nodes were free only after 16 s, and each new node waited anew
        185,  # a task with two levels, one of them refused, was put back and never ran
        23863,  # a new owner found a task that its ordering key had kept out of memory after 15 s
        721406,  # the first task of an ordering key left the table because an earlier one could not run
        700183,  # the late end of a run hid the next run of its task, and the node left during it
        21025,  # a node found another silent, hung, and then took its tasks away though it was back
        500522,  # two triggers of one task were granted, and the first never came back
        301493,  # the permit of a killed node was free late, and then rotated to a node that was full
        20588,  # a claim made while heartbeats lapsed was hidden from its node for good
        22286,  # a run was dropped because an earlier run of its task had ended, and stayed PROCESSING
        301114,  # a node that left while it released a lease beyond its share kept the lease
    ],
)
def test_fleets_that_broke_a_promise_once_keep_it(seed: int) -> None:
    simulate(seed)


def test_a_seed_gives_the_same_fleet_again() -> None:
    assert [simulate(seed) for seed in range(5)] == [simulate(seed) for seed in range(5)]


# deliberate faults, each of which the simulation must detect --------------------------------------

Patch = pytest.MonkeyPatch


async def _nothing(*_: Any, **__: Any) -> None: ...


def the_owner_runs_all_tasks_itself(patch: Patch) -> None:
    patch.setattr(Granting, "_grant", lambda self, now: False)


def tasks_of_dead_nodes_are_not_resumed(patch: Patch) -> None:
    patch.setattr(Pollers, "resume", _nothing)


def living_nodes_count_as_dead(patch: Patch) -> None:
    patch.setattr(liveness, "SILENT_SECONDS", 1.0)


def a_partition_finds_no_owner(patch: Patch) -> None:
    wanted = PartitionShares.wanted
    patch.setattr(
        PartitionShares,
        "wanted",
        lambda *args: [key for key in wanted(*args) if key.partition == 0],
    )


def a_limit_of_a_node_is_not_kept(patch: Patch) -> None:
    patch.setattr(Limit, "acquire", lambda self, trigger, now: None)
    patch.setattr(Limit, "release", lambda self, trigger, now: ())
    patch.setattr(Limit, "cancel", lambda self, trigger, now: ())


def pauses_are_ignored(patch: Patch) -> None:
    patch.setattr(TriggerTable, "pause", lambda self, queue: None)


def _without(patch: Patch, pattern: str) -> None:
    """Leave a condition out of the statement that claims tasks."""
    begin = SqlTaskStore.__init__

    def begun(store: SqlTaskStore, database: Any, sql: dict[str, str]) -> None:
        claim, count = re.subn(pattern, "", sql["claim"], flags=re.DOTALL)
        assert count == 1
        begin(store, database, {**sql, "claim": claim})

    patch.setattr(SqlTaskStore, "__init__", begun)


def a_claim_ignores_the_order_of_a_key(patch: Patch) -> None:
    _without(patch, r"AND \(fairlead_tasks.ordering_key IS NULL.*(?=RETURNING)")
    patch.setattr(SlotLedger, "may_have_key", lambda self, trigger: True)


def a_claim_ignores_the_version(patch: Patch) -> None:
    _without(patch, r"AND fairlead_tasks.version = w.version AND state = 'SUBMITTED'")


def a_transaction_commits_without_its_completion(patch: Patch) -> None:
    async def in_transaction(self: Invocation, run: Any, /, *args: Any, **kwargs: Any) -> Any:
        async with self._database.transaction_async() as connection:
            return await run.handler.function(*args, **kwargs, connection=connection)

    patch.setattr(Invocation, "_in_transaction_async", in_transaction)


def failed_runs_are_not_repeated(patch: Patch) -> None:
    patch.setattr(Fixed, "_delay", lambda self, tries: None)


def tasks_wake_too_early(patch: Patch) -> None:
    wake_due = SqlTaskStore.wake_due
    patch.setattr(
        SqlTaskStore,
        "wake_due",
        lambda self, now, limit: wake_due(self, now + 10 * MICROS, limit),
    )


FAULTS: list[tuple[Callable[[Patch], None], str]] = [
    (the_owner_runs_all_tasks_itself, "idle"),
    (tasks_of_dead_nodes_are_not_resumed, "are left"),
    (living_nodes_count_as_dead, "without a reason"),
    (a_partition_finds_no_owner, "no owner"),
    (a_limit_of_a_node_is_not_kept, "limit"),
    (pauses_are_ignored, "paused"),
    (a_claim_ignores_the_order_of_a_key, "overtook"),
    (a_claim_ignores_the_version, "died"),
    (a_transaction_commits_without_its_completion, "times"),
    (failed_runs_are_not_repeated, "ended with"),
    (tasks_wake_too_early, "started before"),
]
"""One fault for each promise, with a word of the message by which it is found."""


@NIGHTLY("a long run")
@pytest.mark.parametrize(("fault", "word"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_deliberate_fault_is_detected(
    fault: Callable[[Patch], None], word: str, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    found = set()
    for seed in range(300):
        try:
            simulate(seed)
        except Failed as failed:
            found.add(str(failed).splitlines()[0])
            if word in str(failed).splitlines()[0]:
                return
    pytest.fail(f"not detected as {word!r}; found: {found}")


# cases that the fleets have found -----------------------------------------------------------------

QUEUE = QueuePlan("a", "fifo", "tasks", 1, "none", total=1, works=1, per_key=1)
PLAN = Plan(
    chance=random.Random(0),
    queues={"a": QUEUE},
    events=0,
    odds={},
    pauses=(),
    latency=0.0,
    most_nodes=2,
    look_ahead=LOOK_AHEAD,
    loss=0.0,
    more_partitions={},
)


def test_a_node_looks_for_due_tasks_as_soon_as_it_is_elected() -> None:
    job = Job(0, "a", "work", "x", due_at=0.0)

    async def main() -> None:
        fleet = Fleet(PLAN, [])
        job.due_at = fleet.now + 4.0
        dying = await fleet.start(["a"])
        await fleet.submit([job])
        await fleet.start(["a"])
        await asyncio.sleep(1.0)
        dying.kill()
        await asyncio.sleep(8.0)
        await fleet.end()

    on_virtual_time(main)
    [run] = job.runs
    assert run.at - job.due_at < 0.1


@pytest.mark.parametrize("tenths", range(1, 24, 2))
def test_a_node_that_leaves_keeps_no_lease_and_no_permit_of_a_request_under_way(
    tenths: int,
) -> None:
    limited = replace(QUEUE, kind="cluster", total=1, partitions=3)
    left: list[Any] = []

    async def main() -> None:
        fleet = Fleet(replace(PLAN, queues={"a": limited}, chance=random.Random(tenths)), [])
        dying, leaving = await fleet.start(["a"], NEW), await fleet.start(["a"], NEW)
        await asyncio.sleep(3.0)
        jobs = [Job(n, "a", "work", "x", due_at=0.0, seconds=0.4) for n in range(40)]
        await fleet.submit(jobs)
        await asyncio.sleep(1.0)
        fleet.machine.latency = 1.0
        dying.kill()
        await asyncio.sleep(tenths / 10)
        await leaving.stop()
        read = fleet.machine.database.execute
        name = (leaving.name,)
        left.extend(read("SELECT name FROM fairlead_leases WHERE owner = ?", name))
        left.extend(read("SELECT ledger FROM fairlead_permits WHERE instr(ledger, ?)", name))
        await fleet.end()

    on_virtual_time(main)
    assert not left


def test_a_node_that_hung_between_a_claim_and_its_run_starts_no_task_that_others_may_have() -> None:
    jobs = [Job(n, "a", "work", "x", due_at=0.0, ordering_key="k") for n in range(2)]
    hung: list[str] = []

    async def main() -> None:
        fleet = Fleet(PLAN, [])
        hanging = await fleet.start(["a"])
        fleet.machine.latency = 1.0
        await fleet.submit(jobs)
        claimed = "SELECT node FROM fairlead_tasks WHERE state = 'PROCESSING'"
        while not hung:
            await asyncio.sleep(0.001)
            hung.extend(node for (node,) in fleet.machine.database.execute(claimed))
        hanging.hang(20.0)
        fleet.machine.latency = 0.0
        await fleet.start(["a"])
        await asyncio.sleep(30.0)
        await fleet.end()

    on_virtual_time(main)
    assert [len(job.runs) for job in jobs] == [1, 1]
