"""`tune --limits` from the tables of a lake to the limits in the store: opt-in, steps, canary windows,
rollbacks and the kill switch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyState, SwitchMode
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.tune import QueueTuned
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.tuning.gold import Gold
from fairlead.pipeline.tuning.guard_rails import Guards
from tests.pipeline.frames import T0, at, attempt
from tests.pipeline.test_tune import World, send_heartbeat
from tests.pipeline.warehouses import export

TASKS = {"long": 1000, "short": 1000}
BUSY = {"long": 28_800.0, "short": 28_800.0}
"""Worker-seconds of an hour: half of 16 workers for each key, with equal tasks, so weights stay."""
PEAKS = {"long": 14.0, "short": 2.0}
"""Greatest number of concurrent workers by key, of 16 slots on two nodes."""


class LimitWorld(World):
    """A world in which two nodes serve the queue, and a key with long runs sometimes held nearly all
    slots."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.queue("q")

    def serve(self, nodes: int = 2) -> None:
        for number in range(nodes):
            asyncio.run(send_heartbeat(self, f"node-{number}", ["q"]))

    def calm(self, count: int = 1, **more) -> None:
        history = {"peaks": PEAKS, "throughout": ("short",), "demand": 0.0, **more}
        self.add_hours(count, history.pop("busy", BUSY), TASKS, **history)
        self.serve()

    def tuned(self, limits: bool | None = True, **options) -> QueueTuned:
        return self.tune(limits=limits, **options)["q"]

    def limits(self) -> dict[str, int]:
        return self.policies.limits("q")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LimitWorld]:
    world = LimitWorld(tmp_path, f"sqlite:///{tmp_path / 'tasks.db'}")
    yield world
    world.app.close()


def test_limits_are_opt_in_and_a_dry_run_changes_nothing(world: LimitWorld) -> None:
    world.calm(3)
    assert world.tuned(None).limits == world.tuned(False).limits == []
    assert world.limits() == {}
    (change,) = world.tuned(apply=False).limits
    # Half of the slots are due to the key, plus a quarter for headroom: 5 of 8 on each node.
    assert (change.fairness_key, change.now, change.guarded) == ("long", None, 7)
    assert change.raw == pytest.approx(5.0, rel=0.01) and change.reason == "one step of x1.25"
    assert world.limits() == {} and world.policies.policies() == []


def test_limits_are_published_with_the_weights_step_by_step_until_they_settle(
    world: LimitWorld,
) -> None:
    world.calm(3)
    first = world.tuned()
    assert first.outcome == "published" and world.limits() == {"long": 7}
    policy = world.policies.policy(first.version)
    assert (policy.limits, policy.raw_limits["long"]) == ({"long": 7}, pytest.approx(5.0, rel=0.01))
    assert policy.limit_reasons == {"long": "one step of x1.25"} and policy.guarded.keys() == {
        "long",
        "short",
    }
    assert world.tuned().holds == [
        f"version {first.version} is in its canary window"
    ] and world.limits() == {"long": 7}
    seen = []
    for _ in range(6):
        held = 2.0 * world.limits()["long"]
        world.calm(peaks={"long": held, "short": 16.0 - held}, throughout=("short", "long"))
        last = world.tuned()
        seen.append(world.limits()["long"])
    assert seen == [6, 5, 5, 5, 5, 5]
    assert (last.outcome, last.holds) == ("nothing to change", [])


def test_active_limits_stay_without_the_option_and_are_removed_by_no_limits(
    world: LimitWorld,
) -> None:
    world.calm(3)
    first = world.tuned().version
    world.calm()
    assert world.tuned(None).outcome == "nothing to change" and world.limits() == {"long": 7}
    gone = world.tuned(False)
    assert (gone.outcome, [(c.now, c.guarded, c.reason) for c in gone.limits]) == (
        "published",
        [(7, None, "limits are switched off")],
    )
    assert world.limits() == {} and gone.version > first


def test_a_published_change_of_weights_keeps_the_active_limits(world: LimitWorld) -> None:
    world.calm(3)
    world.tuned()
    world.calm(weight={"long": 0.5})
    tuned = world.tuned(None)
    assert tuned.outcome == "published" and world.weights()["long"] < 1
    assert world.limits() == {"long": 7}
    assert tuned.limits[0].reason == "unchanged: limits are computed with --limits"


def test_a_key_whose_weight_a_person_set_gets_no_limit(world: LimitWorld) -> None:
    world.calm(3)
    world.app.management.set_weight("q", "long", 1.0)
    assert world.tuned().limits == []
    world.app.management.set_weight("q", "long", None)
    world.tuned()
    assert world.limits() == {"long": 7}
    world.calm()
    world.app.management.set_weight("q", "long", 1.0)
    assert world.tuned().limits[0].reason == "its weight was set by a person"
    assert world.limits() == {}


def test_a_key_whose_limit_a_person_set_keeps_it_and_gets_no_other(world: LimitWorld) -> None:
    world.calm(3)
    world.app.management.set_limit("q", "long", 3)
    assert world.tuned().limits == [] and world.limits() == {"long": 3}
    world.app.management.set_limit("q", "long", None)
    world.calm()
    world.tuned()
    assert world.limits() == {"long": 7}
    world.calm()
    world.app.management.set_limit("q", "long", 3)
    assert world.tuned().limits[0].reason == "its limit was set by a person"
    assert world.limits() == {"long": 3}


def test_a_limit_that_a_person_sets_during_a_run_stays_and_versions_settle(
    world: LimitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.calm(3)
    publish = PolicyManagement.publish

    def set_before(self: PolicyManagement, *given: Any) -> int:
        world.app.management.set_limit("q", "long", 3)
        return publish(self, *given)

    monkeypatch.setattr(PolicyManagement, "publish", set_before)
    world.tuned()
    assert world.limits() == {"long": 3}
    monkeypatch.setattr(PolicyManagement, "publish", publish)
    versions = []
    for _ in range(4):
        world.calm()
        versions.append(world.tuned().version)
        assert world.limits() == {"long": 3}
    assert len(set(versions[1:])) == 1


def test_a_key_without_tasks_loses_its_limit(world: LimitWorld) -> None:
    world.calm(3)
    world.tuned()
    world.guards = Guards(half_life=600.0, least_time=1800.0)
    world.clock.at += 3 * (world.clock.at - world.clock.at.replace(hour=world.clock.at.hour - 1))
    world.add_hours(
        1, {"x": 4000.0, "y": 4000.0}, {"x": 1000, "y": 1000}, peaks={"x": 2.0, "y": 2.0}
    )
    world.serve()
    assert world.tuned().limits[0].reason == "no tasks for a long time"
    assert world.limits() == {}


# reasons to hold ----------------------------------------------------------------------------------


def test_without_a_live_node_no_limit_is_computed(world: LimitWorld) -> None:
    world.add_hours(3, BUSY, TASKS, peaks=PEAKS, throughout=("short",), demand=0.0)
    assert world.tuned().limits == []
    world.serve()
    world.tuned()
    assert world.limits() == {"long": 7}


def test_limits_too_are_first_published_for_the_canary_queue(world: LimitWorld) -> None:
    world.queue("other")
    for _ in range(3):
        world.gold.hour(
            world.clock.at,
            {"long": 60_000.0, "short": 60_000.0},
            TASKS,
            queue="other",
            peaks=PEAKS,
            throughout=("short",),
            demand=0.0,
        )
        world.calm()
    asyncio.run(send_heartbeat(world, "node-7", ["other"]))
    found = world.tune(limits=True)
    assert (found["q"].outcome, found["other"].outcome) == ("published", "held")
    assert [(c.guarded, c.reason) for c in found["other"].limits] == [(None, "held")]
    assert world.policies.limits("other") == {}


# canary window, rollback, kill switch -------------------------------------------------------------

WAITS = {"long": 50.0, "short": 20.0}


def test_limits_that_idle_workers_without_shorter_waits_are_rolled_back(
    world: LimitWorld,
) -> None:
    world.calm(3, waits=WAITS)
    first = world.tuned().version
    unused = {"long": 22_000.0, "short": 28_800.0}
    world.calm(busy=unused, waits=WAITS, throughout=("long",))
    found = world.tuned()
    assert found.verdict is not None and found.verdict.startswith(
        f"version {first} rolled back: 12% less worker time"
    )
    assert world.limits() == {} and world.policies.policy(first).state == PolicyState.ROLLED_BACK
    assert found.holds == [
        f"version {first} was rolled back 0.0 h ago; tuning pauses for 24 h after a rollback"
    ]


def test_limits_are_rolled_back_by_hand_and_switched_off_like_weights(world: LimitWorld) -> None:
    world.calm(3)
    first = world.tuned().version
    world.calm()
    second = world.tuned().version
    assert world.limits() == {"long": 6}
    world.policies.roll_back_to(first, "ann", "too tight")
    assert world.limits() == {"long": 7}
    world.policies.switch(SwitchMode.OFF, "ann", "odd waits")
    assert world.limits() == {} and second != first
    assert world.tuned().outcome == "held"


HOURS = 3
LONG, SHORT = 300, 10
"""Run times in seconds."""


def back_to_back(key: str, seconds: int, slots: int, *, is_flood: bool) -> list[dict[str, Any]]:
    """Return runs of a key that hold `slots` slots all the time. The runs of a flood were all submitted at
    the start, and last a minute longer than these hours."""
    return [
        attempt(
            fairness_key=key,
            submitted_at=0 if is_flood else start,
            claimed_at=start,
            finished_at=start + seconds,
        )
        for _ in range(slots)
        for start in range(0, HOURS * 3600 + 60 * is_flood, seconds)
    ]


def test_limits_are_computed_from_tables_built_by_spark(
    on_warehouse: Any, world: LimitWorld
) -> None:
    """Long runs held 14 of the 16 slots of two nodes, while short tasks waited from the start."""
    rows = [
        *back_to_back("long", LONG, 14, is_flood=False),
        *back_to_back("short", SHORT, 2, is_flood=True),
    ]
    world.clock.at = at(HOURS * 3600) + timedelta(minutes=2)
    export(world.lake, ATTEMPTS, rows, hours=HOURS + 1 / 30)
    world.serve()
    build(JobContext(on_warehouse, world.lake, world.clock), PipelineSettings())

    gold = Gold(Frames(world.lake, Snapshots(world.lake).read()), world.clock.at)
    use = gold.use(T0 - timedelta(hours=1), peaks=True)
    workers = gold.workers(T0 - timedelta(hours=1))["q"]
    assert [(worked.busy, worked.peak) for worked in workers] == [(16 * 3600.0, 16.0)] * HOURS + [
        (120.0, 2.0)
    ]
    history = {
        key: [(used.busy, used.peak, used.waited) for used in use["q"][key].use[:HOURS]]
        for key in use["q"]
    }
    assert history == {
        "long": [(14 * 3600.0, 14.0, False)] * HOURS,
        "short": [(2 * 3600.0, 2.0, True)] * HOURS,
    }

    tuned = world.tuned()
    assert (tuned.outcome, tuned.holds) == ("published", [])
    (change,) = tuned.limits
    # Eight slots are due to the key, plus a quarter for headroom: 5 of 8 on each node, in steps.
    assert (change.fairness_key, change.now, change.guarded) == ("long", None, 7)
    assert change.raw == pytest.approx(5.0, rel=0.05) and change.reason == "one step of x1.25"
    assert world.limits() == {"long": 7}
