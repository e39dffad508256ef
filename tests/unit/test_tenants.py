"""Tenants: a fairness key "acme/user-7" belongs to "acme". Shares go to tenants first, and inside a
tenant to its keys: in levels, and in the order of reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from operator import attrgetter

import pytest

from fairlead.core.fair.table import TriggerTable
from fairlead.core.levels.levels import Levels
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import LaneKey, tenant_of
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


def by_tenant(keys: list[str]) -> Counter[str]:
    return Counter(map(tenant_of, keys))


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
