"""Tests of `fairlead pipeline tune`: publish weights computed from the tables of a lake, judge each
version, and publish nothing in a state that forbids it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead import App
from fairlead.clock import SystemClock, to_micros
from fairlead.errors import ConfigurationError, NotAllowed
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import PolicyDraft, PolicyState
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.jobs.tune import QueueTuned, TuneOptions, tune
from fairlead.pipeline.models import TENANT_SHARE
from fairlead.pipeline.runs import last_runs, recorded
from fairlead.pipeline.tuning.contracts import TuneSettings, load
from fairlead.pipeline.tuning.guard_rails import Guards
from fairlead.testing.contract.tasks import FACTS
from tests.pipeline.gold_rows import GoldRows
from tests.pipeline.warehouses import lake_in

T0 = datetime(2026, 3, 2, 10, tzinfo=UTC)
BUSY = {"short": 400.0, "long": 1600.0}
TASKS = {"short": 400, "long": 400}
"""Tasks in an hour, by key. `short` has runs of 1 s and `long` has runs of 4 s, so with equal
weights `long` receives four times the worker time of `short`."""


CONTRACTS = """
[[contract]]
queue = "q"
fairness_key = "b"
share = 2.0

[[contract]]
queue = "other"
fairness_key = "c"
share = 9.0
"""


class Clock(SystemClock):
    """Clock that returns `at` until a test changes it."""

    at = T0

    def now(self) -> int:
        return to_micros(self.at)


class World:
    """Store, lake and clock of a test. `add_hours` writes hours with the same history."""

    def __init__(self, folder: Path, url: str) -> None:
        self.clock = Clock()
        self.app = App(url, clock=self.clock)
        self.app.migrate()
        self.folder = folder
        self.lake = lake_in(folder / "lake")
        self.gold = GoldRows(self.lake)
        self.policies = PolicyManagement(self.app.operate_context)
        self.guards = Guards()

    def queue(self, *names: str) -> None:
        for name in names:
            self.app.sql_store.database.run(self.app.sql_store.registration({name: 1}))

    def add_hours(
        self, count: int, busy: Mapping[str, float] = BUSY, tasks: Mapping[str, int] = TASKS, **more
    ) -> None:
        """Append `count` hours of history that start at the clock, and advance the clock by as
        much."""
        for _ in range(count):
            self.gold.hour(self.clock.at, busy, tasks, **more)
            self.clock.at += timedelta(hours=1)

    def tune(self, apply: bool = True, **options) -> dict[str, QueueTuned]:
        settings = options.pop("settings", TuneSettings(guards=self.guards))
        found = tune(
            self.app,
            self.lake,
            TuneOptions(author="test", apply=apply, settings=settings, **options),
        )
        return {tuned.queue: tuned for tuned in found}

    def weights(self, queue: str = "q") -> dict[str, float]:
        return self.app.management.weights(queue)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, f"sqlite:///{tmp_path / 'tasks.db'}")
    world.queue("q", "other")
    yield world
    world.app.close()


# publishing ---------------------------------------------------------------------------------------


def test_a_dry_run_shows_raw_and_guarded_weights_and_changes_nothing(world: World) -> None:
    world.add_hours(3)
    found = world.tune(apply=False)["q"]
    changes = {change.fairness_key: change for change in found.changes}
    assert changes["long"].raw == pytest.approx(0.4, rel=0.05) and changes[
        "long"
    ].guarded == pytest.approx(0.8)
    assert changes["short"].guarded == pytest.approx(1.2)
    assert (found.outcome, found.version, found.holds) == ("would be published", None, [])
    assert world.weights() == {} and world.policies.policies() == []
    assert last_runs(world.lake) == {}


def test_each_version_is_published_after_the_canary_of_the_previous_one(
    world: World,
) -> None:
    world.add_hours(3)
    first = world.tune()["q"]
    assert first.outcome == "published"
    assert world.weights() == {"long": pytest.approx(0.8), "short": pytest.approx(1.2)}
    policy = world.policies.policy(first.version)
    assert (policy.author, policy.why, policy.is_canary, policy.state) == (
        "test",
        "shares of worker time",
        True,
        "active",
    )
    assert policy.input_to == to_micros(world.clock.at) and policy.input_rows == 6
    assert (
        policy.raw["long"] < policy.guarded["long"]
        and policy.reasons["long"] == "one step of x1.25"
    )
    again = world.tune()["q"]
    assert (again.outcome, again.holds) == (
        "held",
        [f"version {first.version} is in its canary window"],
    )
    world.add_hours(1)
    second = world.tune()["q"]
    assert (
        second.verdict == f"version {first.version} stays: 30% of the worker time is misallocated,"
        " 30% before the version"
    )
    assert second.outcome == "published" and world.weights()["long"] == pytest.approx(0.64)
    assert world.policies.policy(first.version).state == PolicyState.SUPERSEDED
    for _ in range(10):
        world.add_hours(1)
        last = world.tune()["q"]
    assert (last.outcome, last.holds) == ("nothing to change", [])
    # The worker time stays the same in every hour, so the weights converge to 4 : 1, except for the
    # pull towards the mean.
    assert world.weights()["short"] / world.weights()["long"] == pytest.approx(4, rel=0.15)
    assert last_runs(world.lake)["tune"]["state"] == "nothing to do"


def test_the_due_of_a_key_is_the_weight_of_its_tasks_unless_a_contract_sets_a_share(
    world: World,
) -> None:
    same = {"a": 1000.0, "b": 1000.0, "c": 1000.0}
    tasks = dict.fromkeys(same, 1000)
    world.add_hours(3, same, tasks, weight={"a": 3.0})
    assert world.tune(apply=False)["q"].outcome == "nothing to change"
    path = world.folder / "contracts.toml"
    path.write_text(CONTRACTS)
    found = world.tune(apply=False, settings=load(path))["q"]
    raw = {change.fairness_key: change.raw for change in found.changes}
    # Shares of 3, 2 and 1, in the sum of the weights.
    assert raw == pytest.approx({"a": 2.5, "b": 5 / 3, "c": 5 / 6})


def publish(world: World, **guarded: float) -> None:
    """Put these weights in force, as a version that passed its canary window two days ago."""
    now = to_micros(world.clock.at - timedelta(days=2))
    draft = PolicyDraft(
        queue="q", author="test", why="test", computed_at=now, guarded=guarded, judged_at=now
    )
    world.policies.publish(draft, None)


def test_contract_shares_keep_the_sum_of_the_weights_and_the_part_of_an_untouched_key(
    world: World,
) -> None:
    """Shares of 60 and 40 are percentages of two keys. A third key has too few tasks to be tuned."""
    path = world.folder / "contracts.toml"
    path.write_text(
        "".join(
            f'[[contract]]\nqueue = "q"\nfairness_key = "{key}"\nshare = {share}\n'
            for key, share in (("a", 60), ("b", 40))
        )
    )
    settings = load(path)
    busy, tasks = {"a": 240.0, "b": 240.0, "c": 20.0}, {"a": 240, "b": 240, "c": 2}
    world.add_hours(3, busy, tasks)
    for _ in range(12):
        found = world.tune(settings=settings)["q"]
        now = {change.fairness_key: change.guarded for change in found.changes}
        assert now["a"] + now["b"] == pytest.approx(2.0) and now["c"] == 1.0
        assert now["a"] >= 1.0 >= now["b"]
        world.add_hours(1, busy, tasks)
    # Worker time does not follow the weights here.
    assert now == pytest.approx({"a": 1.2, "b": 0.8, "c": 1.0})
    # The canary compares worker time with shares in the same unit.
    policy = world.policies.policy(found.version)
    assert policy.due == pytest.approx({"a": 1.2, "b": 0.8})


def test_every_number_of_a_plan_follows_from_the_rows_of_the_table(world: World) -> None:
    """Computed here from the rows alone. `b` appears every second hour."""
    rows = [
        # Hours ago, key, tasks, worker-seconds, weight, worker-seconds by weight.
        (6, "a", 200, 300.0, 2.0, 100.0),
        (4, "a", 100, 900.0, 1.5, 450.0),
        (4, "b", 400, 200.0, 4.0, 50.0),
        (2, "b", 300, 450.0, 1.0, 450.0),
        (2, "a", 250, 250.0, 1.0, 125.0),
        (1, "c", 10, 40.0, 5.0, 8.0),
    ]
    now = world.clock.at
    for ago, key, tasks, busy, weight, weighted in rows:
        for window_s in (3600, 60):
            row = {
                "window_start": now - timedelta(hours=ago),
                "window_s": window_s,
                "queue": "q",
                "fairness_key": key,
                "busy_us": round(busy * 1e6),
                "weight": weight,
                "weighted_us": weighted * 1e6,
                "demand_us": round(busy * 1e6),
                "claimed": tasks,
            }
            world.gold.write(TENANT_SHARE, [row])
    guards = Guards(half_life=7200.0)
    found = world.tune(apply=False, settings=TuneSettings(guards=guards))["q"]

    def total(key: str | None, of) -> float:
        return sum(
            0.5 ** ((ago - 1) / 2) * of(tasks, busy, weight, weighted)
            for ago, name, tasks, busy, weight, weighted in rows
            if key in (None, name)
        )

    tasks_of = {key: total(key, lambda n, busy, w, by_w: n) for key in (None, "a", "b", "c")}
    busy_of = {key: total(key, lambda n, busy, w, by_w: busy) for key in (None, "a", "b", "c")}
    by_task = {k: tasks_of[k] / total(k, lambda n, busy, w, by_w: n / w) for k in "abc"}
    by_time = {k: busy_of[k] / total(k, lambda n, busy, w, by_w: by_w) for k in "abc"}
    due = {key: min(by_task[key], by_time[key]) for key in "abc"}
    mean = busy_of[None] / tasks_of[None]
    wanted = {key: due[key] / ((busy_of[key] + 30 * mean) / (tasks_of[key] + 30)) for key in "ab"}
    scale = (due["a"] + due["b"]) / sum(wanted.values())
    assert [change.fairness_key for change in found.changes] == ["a", "b", "c"]
    for change in found.changes:
        key = change.fairness_key
        # A key starts at the lower of its mean and the weight of its latest hour.
        latest = {row[1]: row[4] for row in rows}[key]
        assert change.now == pytest.approx(min(due[key], latest))
        if change.raw is not None:
            assert change.raw == pytest.approx(wanted[key] * scale)
    assert [change.raw is not None for change in found.changes] == [True, True, False]


def test_a_weight_set_by_a_person_is_not_changed(world: World) -> None:
    world.add_hours(3, BUSY | {"third": 800.0}, TASKS | {"third": 400})
    world.app.management.set_weight("q", "long", 1.0)
    found = {change.fairness_key: change for change in world.tune()["q"].changes}
    assert found["long"].reason == "its weight was set by a person"
    assert world.weights()["long"] == 1.0
    assert world.policies.weights("q").by_person == {"long": 1.0}
    assert "long" not in world.policies.policies("q")[0].guarded


def test_a_key_without_tasks_loses_its_computed_weight(world: World) -> None:
    world.add_hours(3)
    world.tune()
    world.guards = Guards(half_life=600.0, least_time=1800.0)
    world.clock.at += timedelta(hours=3)
    world.add_hours(1, {"x": 4000.0, "y": 1000.0}, {"x": 1000, "y": 1000})
    assert world.tune()["q"].outcome == "published"
    assert world.weights().keys() == {"x", "y"}


# automatic rollback -------------------------------------------------------------------------------


def test_a_version_is_rolled_back_and_tuning_pauses_when_an_unchanged_key_waits_longer(
    world: World,
) -> None:
    busy, tasks = BUSY | {"pinned": 500.0}, TASKS | {"pinned": 500}
    world.app.management.set_weight("q", "pinned", 1.0)
    calm = {"short": 9.0, "long": 9.0, "pinned": 9.0}
    world.add_hours(3, busy, tasks, waits=calm)
    first = world.tune()["q"].version
    world.add_hours(1, busy, tasks, waits=calm | {"short": 90.0})  # a changed key may wait longer
    second = world.tune()["q"].version
    assert world.policies.policy(first).verdict.endswith("before the version")
    world.add_hours(1, busy, tasks, waits=calm | {"pinned": 90.0})
    shown = world.tune(apply=False)["q"]
    assert shown.verdict.startswith(
        f"version {second} rolled back: unchanged key 'pinned' waits 90.0 s"
    )
    assert (
        world.policies.policy(second).state == PolicyState.ACTIVE
    )  # the dry run rolled nothing back
    found = world.tune()["q"]
    assert found.verdict == shown.verdict and found.outcome == "held"
    assert world.policies.policy(second).state == PolicyState.ROLLED_BACK
    assert "'pinned'" in world.policies.policy(second).verdict
    assert world.weights() == {
        "pinned": 1.0,
        "long": pytest.approx(0.8),
        "short": pytest.approx(1.2),
    }
    assert world.policies.policy(found.version).supersedes == second
    world.add_hours(22, busy, tasks, waits=calm)
    held = world.tune()["q"]
    assert held.holds == [
        f"version {second} was rolled back 22.0 h ago; tuning pauses for 24 h after a rollback"
    ]
    world.add_hours(2, busy, tasks, waits=calm)
    assert world.tune()["q"].outcome == "published"


def test_a_canary_window_is_a_full_hour_that_the_tables_cover(world: World) -> None:
    world.add_hours(3)
    world.clock.at += timedelta(minutes=20)
    first = world.tune()["q"].version
    world.clock.at += timedelta(minutes=40)
    world.add_hours(1)  # 14:00 to 15:00; published at 13:20
    assert world.tune()["q"].verdict.startswith(f"version {first} stays")
    second = world.tune()["q"]
    assert second.holds == [f"version {second.version} is in its canary window"]
    world.clock.at += timedelta(minutes=119)
    assert world.tune()["q"].holds == [
        f"version {second.version} is in its canary window"
    ]  # the tables do not cover the hour after it


# canary -------------------------------------------------------------------------------------------


def add_hours_of_two_queues(world: World, count: int, busy: Mapping[str, float] = BUSY) -> None:
    """Append `count` hours of history of the queues `q` and `other`; `other` has twice the worker
    time."""
    for _ in range(count):
        world.gold.hour(
            world.clock.at, {key: 2 * us for key, us in BUSY.items()}, TASKS, queue="other"
        )
        world.gold.hour(world.clock.at, busy, TASKS, queue="q")
        world.clock.at += timedelta(hours=1)


def test_the_queue_with_least_work_is_the_canary_and_the_others_follow(
    world: World,
) -> None:
    add_hours_of_two_queues(world, 3)
    found = world.tune()
    assert (found["q"].outcome, found["other"].outcome) == ("published", "held")
    assert found["other"].holds == ["queue q is tuned first, and its canary window has not ended"]
    assert all(change.guarded == change.now for change in found["other"].changes)
    assert world.tune()["other"].holds == found["other"].holds  # still in its canary window
    assert world.weights("other") == {}
    add_hours_of_two_queues(world, 1)
    found = world.tune()
    assert (found["q"].outcome, found["other"].outcome) == ("published", "published")
    assert not world.policies.policies("other")[0].is_canary


def test_a_canary_that_is_rolled_back_holds_the_others(world: World) -> None:
    add_hours_of_two_queues(world, 3)
    world.tune()
    add_hours_of_two_queues(world, 1, {"short": 100.0, "long": 1900.0})
    found = world.tune()
    assert "rolled back" in found["q"].verdict
    assert found["other"].holds == ["queue q is tuned first, and its canary window has not ended"]
    add_hours_of_two_queues(world, 25)
    found = world.tune()
    assert (found["q"].outcome, found["other"].outcome) == (
        "published",
        "held",
    )  # q is tuned first again


# reasons to hold ----------------------------------------------------------------------------------


def held(world: World) -> list[str]:
    found = world.tune()["q"]
    assert found.outcome == ("held" if found.holds else "published")
    assert bool(found.holds) is not bool(world.weights())
    return found.holds


def test_stale_input_is_refused(world: World) -> None:
    world.add_hours(3)
    world.clock.at += timedelta(hours=2, seconds=1)
    assert held(world)[0].startswith("stale input: the newest attempt in the tables is 2.0 h old")
    world.clock.at -= timedelta(seconds=2)
    assert held(world) == []


def test_rows_with_a_future_time_do_not_make_stale_input_fresh(world: World) -> None:
    world.add_hours(3)
    world.gold.hour(world.clock.at + timedelta(hours=9), BUSY, TASKS)
    world.clock.at += timedelta(hours=3)
    assert held(world)[0].startswith("stale input")


def test_a_lake_without_tables_is_not_tuned(world: World) -> None:
    assert world.tune() == {}
    assert world.tune(queues=("q",))["q"].holds == [
        "no input: run `fairlead pipeline ingest` and `build`"
    ]


def test_an_unknown_queue_does_not_hold_another_queue(world: World) -> None:
    for queue in ("gone", "q"):
        for hours in range(3):
            world.gold.hour(world.clock.at + timedelta(hours=hours), BUSY, TASKS, queue=queue)
    world.clock.at += timedelta(hours=3)
    found = world.tune()
    assert found["gone"].holds == [
        "the queue is not in the store, because no worker has served it yet"
    ]
    assert found["q"].outcome == "published"


def test_tables_that_failed_a_check_are_refused(world: World) -> None:
    world.add_hours(3)
    with pytest.raises(CheckFailed), recorded(world.lake, world.clock, "check", {}):
        raise CheckFailed("keys are unique: expected 2, found 1")
    assert held(world) == [
        "the last check failed: keys are unique: expected 2, found 1; run `fairlead pipeline check` again"
    ]
    world.clock.at += timedelta(seconds=1)
    with recorded(world.lake, world.clock, "check", {}):
        pass
    assert held(world) == []


def test_weights_are_frozen_while_an_objective_burns(world: World) -> None:
    world.add_hours(3)
    world.gold.page(world.clock.at - timedelta(minutes=10))
    assert held(world) == ["incident: objective 'soon' burns its budget"]
    world.gold.page(world.clock.at - timedelta(minutes=5), "ok")
    assert held(world) == []


def test_weights_are_frozen_while_most_runs_fail(world: World) -> None:
    world.add_hours(3)
    world.gold.storm(world.clock.at - timedelta(hours=1), queue="other")
    world.gold.storm(world.clock.at - timedelta(hours=3))  # more than an hour ago
    assert world.tune(apply=False)["q"].holds == []
    world.gold.storm(world.clock.at - timedelta(hours=1))
    assert held(world) == ["incident: most runs of pay fail"]


def test_a_failure_storm_that_has_ended_does_not_freeze_weights(world: World) -> None:
    world.add_hours(3)
    world.gold.storm(
        world.clock.at - timedelta(hours=1), recovered_at=world.clock.at - timedelta(minutes=5)
    )
    assert held(world) == []


def test_weights_are_frozen_while_a_queue_is_paused(world: World) -> None:
    world.add_hours(3)
    world.app.management.pause("q")
    assert held(world) == ["incident: queue q is paused"]
    world.app.management.unpause("q")
    assert held(world) == []


async def send_heartbeat(world: World, node: str, queues: list[str]) -> None:
    await world.app.store.register_node(node, queues, [], world.clock.now(), FACTS)
    await world.app.store.database.close_async()


def test_weights_are_frozen_while_a_node_of_the_queue_sends_no_heartbeat(world: World) -> None:
    import asyncio

    world.add_hours(2)
    asyncio.run(send_heartbeat(world, "node-1", ["q"]))
    asyncio.run(send_heartbeat(world, "node-2", ["other"]))
    world.add_hours(1)
    asyncio.run(send_heartbeat(world, "node-3", ["q"]))
    assert held(world) == ["incident: node node-1 is silent"]
    asyncio.run(send_heartbeat(world, "node-1", ["q"]))
    assert held(world) == []


def test_one_of_two_concurrent_tuners_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tuner publishes after this tuner has read the active version and before it
    publishes."""
    world.add_hours(3)
    publish = PolicyManagement.publish

    def after_another(self: PolicyManagement, draft: PolicyDraft, supersedes: int | None) -> int:
        publish(self, draft, supersedes)
        return publish(self, draft, supersedes)

    monkeypatch.setattr(PolicyManagement, "publish", after_another)
    with pytest.raises(NotAllowed, match="queue q: another process"):
        world.tune()
    assert len(world.policies.policies()) == 1
    assert last_runs(world.lake)["tune"]["state"] == "failed"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[contract]]\nqueue = 'q'\nfairness_key = 'a'", "share"),
        ("[[contract]]\nqueue = 'q'\nfairness_key = 'a'\nshare = 0", "share"),
        ("[guards]\nstep = 1.0", "step"),
        ("[guards]\nspeed = 1.0", "speed"),
        (2 * "[[contract]]\nqueue = 'q'\nfairness_key = 'a'\nshare = 1\n", "duplicate; keep one"),
    ],
)
def test_the_error_of_an_invalid_settings_file_names_the_file_and_the_problem(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "contracts.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"contracts\.toml.*{problem}"):
        load(path)
