"""Tenants: a fairness key "acme/user-7" belongs to "acme". Shares go to tenants first, and inside a
tenant to its keys: in the trigger table, in levels, in the order of reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from operator import attrgetter

import pytest

from fairlead.core.fair import flows
from fairlead.core.fair.flows import TenantFlow
from fairlead.core.fair.table import TriggerTable
from fairlead.core.levels.levels import Levels
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import LaneKey, Level, tenant_of
from tests.builders import trigger
from tests.simulation.stored_lane import StoredLane

MANY = 2_000
LANE = LaneKey("q", 0, 5)


@pytest.mark.parametrize(
    ("key", "tenant"),
    [
        ("", ""),
        ("acme", "acme"),
        ("acme/user-7", "acme"),
        ("acme/user-7/cart", "acme"),
        ("acme/", "acme"),
        ("acme//x", "acme"),
        ("/", "/"),
        ("/home/acme", "/home"),
        ("//", "/"),
    ],
)
def test_the_tenant_is_the_text_before_the_first_slash_that_is_not_at_the_start(
    key: str, tenant: str
) -> None:
    assert tenant_of(key) == tenant


class Lane:
    """A table with one fair lane, whose triggers get levels in the order of their arrival."""

    def __init__(self, *limits: tuple[str, ConcurrencyPolicy], slots: int = 1) -> None:
        self.ledger = SlotLedger(slots)
        for name, policy in limits:
            self.ledger.register_task("q", name, policy)
        self.table = TriggerTable(self.ledger)
        self.weights: dict[str, float] = {}
        self.table.weigh("q", self.weights)
        self._number = 0

    def push(self, key: str, count: int = 1, name: str = "pay", weight: float = 1.0) -> None:
        for _ in range(count):
            self._number += 1
            level = Level(1, self._number)
            self.table.push(trigger(self._number, name, key, weight=weight, level=level))

    def run(self, count: int) -> list[str]:
        """Run tasks one by one; return their keys."""
        ran = []
        for _ in range(count):
            [one], _ = self.table.take(1, 0.0)
            ran.append(one.fairness_key)
            self.table.freed(self.ledger.release(one, 0.0))
        return ran


def by_tenant(keys: list[str]) -> Counter[str]:
    return Counter(map(tenant_of, keys))


# in the table -------------------------------------------------------------------------------------


def test_a_tenant_that_splits_its_flood_over_many_keys_gains_nothing() -> None:
    lane = Lane()
    for n in range(MANY):
        lane.push(f"big/{n}", 2)
    lane.push("small", 300)
    assert by_tenant(lane.run(600)) == {"big": 300, "small": 300}


def test_the_keys_of_one_tenant_share_what_the_tenant_gets() -> None:
    lane = Lane()
    lane.push("acme/flood", 1000)
    lane.push("acme/few", 100)
    lane.push("acme", 100)
    lane.push("other", 1000)
    assert Counter(lane.run(600)) == {"acme/flood": 100, "acme/few": 100, "acme": 100, "other": 300}


def test_weights_act_among_tenants_and_inside_each() -> None:
    lane = Lane()
    lane.weights |= {"acme": 3.0, "acme/b": 2.0}
    lane.push("acme/a", 1000, weight=4.0)
    lane.push("acme/b", 1000, weight=100.0)
    lane.push("other", 1000)
    ran = Counter(lane.run(1200))
    assert ran["other"] == 300
    assert ran["acme/a"] == pytest.approx(600, abs=2)
    assert ran["acme/b"] == pytest.approx(300, abs=2)


def test_the_own_weight_of_a_task_counts_inside_its_tenant_if_its_key_is_a_path() -> None:
    lane = Lane()
    lane.push("acme/a", 1000, weight=100.0)
    lane.push("other", 1000, weight=3.0)
    ran = Counter(lane.run(400))
    assert ran["other"] == pytest.approx(300, abs=1)


def test_the_first_path_of_a_tenant_moves_the_tasks_that_wait_under_its_plain_name() -> None:
    lane = Lane(("mail", Limit(1)), slots=2)
    for name in ("pay", "mail") * 50:
        lane.push("acme", name=name)
    lane.push("other", 200)
    assert by_tenant(lane.run(50)) == {"acme": 25, "other": 25}
    lane.push("acme/x", 100)
    ran = Counter(lane.run(100))
    assert ran == {"other": 50, "acme": 25, "acme/x": 25}
    assert len(lane.table) == 250


def test_idle_keys_of_tenants_are_dropped_once_their_tenant_has_passed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flows, "_FEWEST", 10)
    monkeypatch.setattr(flows, "MOST_IDLE", 20)
    lane = Lane()
    for n in range(1000):
        lane.push(f"acme/{n}")
        lane.push(f"t{n % 100}/{n}")
        lane.run(2)
    [fair] = lane.table._board.lanes.values()
    assert fair.size < 100
    assert fair.size == sum(
        1 + (len(flow.members) if isinstance(flow, TenantFlow) else 0)
        for flow in fair.flows.values()
    )


# levels -------------------------------------------------------------------------------------------


def test_stored_levels_give_a_tenant_the_same_share_however_many_keys_it_has() -> None:
    levels = Levels(1)
    keys = [*(f"big/{n}" for n in range(MANY)), *["small"] * 300]
    levelled = [levels.assign(trigger(n, key=key)) for n, key in enumerate(keys)]
    levelled.sort(key=attrgetter("level"))
    first = [each.fairness_key for each in levelled[:600]]
    assert by_tenant(first) == {"big": 300, "small": 300}
    assert [key for key in first if key != "small"] == [f"big/{n}" for n in range(300)]


# rows that are read by key ------------------------------------------------------------------------


class ReadLane(StoredLane):
    """A lane whose rows are read by key, one start after the other."""

    def __init__(self, keys: Collection[str], capacity: int) -> None:
        self.weights: dict[str, float] = {}
        self._ledger = SlotLedger(1)
        table = TriggerTable(self._ledger)
        table.weigh("q", self.weights)
        super().__init__(keys, capacity, table)

    def weigh(self, key: str, weight: float) -> None:
        self.weights[key] = weight
        self._table.reweigh(LANE, {key})
        self.core.reweigh({key})

    def run(self, count: int) -> list[str]:
        """Run tasks one by one; return their keys."""
        ran = []
        for _ in range(count):
            if self.choose():
                self.read()
            [one], _ = self._table.take(1, 0.0)
            self.started(one)
            self._table.freed(self._ledger.release(one, 0.0))
            ran.append(one.fairness_key)
        return ran


@pytest.mark.parametrize(
    "capacity",
    [1, 40],
)
def test_a_path_of_a_tenant_is_read_beside_its_plain_key(capacity: int) -> None:
    lane = ReadLane(["a", "a/b", "a/b/c", "other"], capacity)
    lane.run(100)
    ran = Counter(lane.run(1200))
    assert ran["other"] == pytest.approx(600, abs=20)
    for key in ("a", "a/b", "a/b/c"):
        assert ran[key] == pytest.approx(200, abs=20)


def test_a_new_key_of_a_tenant_with_a_flood_is_read_before_the_rest_of_the_flood() -> None:
    lane = ReadLane(["big/flood", "small"], 4000)
    lane.run(50)
    lane.core.remember(["big/new"], ())
    assert lane.core.held > 2500  # not because memory is low
    assert "big/new" in lane.run(3)


@pytest.mark.parametrize(
    ("others", "heavy"), [("big/{}", "big/heavy"), ("{}", "heavy"), ("t{}/user", "heavy/a")]
)
def test_a_new_weight_of_one_of_very_many_keys_or_tenants_shows_at_once(
    others: str, heavy: str
) -> None:
    lane = ReadLane([*(others.format(n) for n in range(MANY)), heavy], 400)
    lane.run(500)
    lane.weigh(heavy if others == "big/{}" else tenant_of(heavy), MANY / 3)
    for _ in range(3):
        assert lane.run(800).count(heavy) / 800 == pytest.approx(1 / 4, abs=0.1)


def test_very_many_keys_of_tenants_leave_nothing_in_memory_when_they_have_run() -> None:
    lane = ReadLane([], 40)
    for low in range(0, MANY, 100):
        lane.core.remember([f"t{n % 7}/{n}" for n in range(low, low + 100)], ())
        assert len({*lane.run(100)}) == 100
        assert lane.core.held == 0
    assert not lane.core.choose(0, 0) and not lane.core.has_unread
    unread = lane.core._unread
    assert not lane.core._held.keys and not unread._inside and not lane.core._new
    assert not unread._tenants._weights and unread.weight == 0
