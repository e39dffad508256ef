"""Tenants: a fairness key "acme/user-7" belongs to "acme". Shares go to tenants first, and inside a
tenant to its keys: in the trigger table, in levels, in the choice of keys to read, by run time."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import pytest

from fairlead.core.fair import tenants
from fairlead.core.fair.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.levels import TenantPasses
from fairlead.core.fair.passes import Passes
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers import flows
from fairlead.core.triggers.flows import TenantFlow
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import LOWEST, LaneKey, LaneRecord, Level, tenant_of
from tests.builders import trigger

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


@pytest.mark.parametrize("by_time", [False, True])
def test_stored_levels_give_a_tenant_the_same_share_however_many_keys_it_has(by_time: bool) -> None:
    counters = Counters()
    passes = Passes(counters, None, RunTimes() if by_time else None)
    heap: list[tuple[int, int, str]] = []
    for n in range(MANY):
        heappush(heap, (passes.assign(f"big/{n}", 1.0, 1), n, f"big/{n}"))
    for n in range(MANY, MANY + 300):
        heappush(heap, (passes.assign("small", 1.0, 1), n, "small"))
    first = [heappop(heap)[2] for _ in range(600)]
    assert by_tenant(first) == {"big": 300, "small": 300}
    assert [key for key in first if key != "small"] == [f"big/{n}" for n in range(300)]


def test_passes_of_a_tenant_whose_triggers_leave_without_a_run_take_bounded_memory() -> None:
    passes = TenantPasses()
    for n in range(1000):
        passes.came(n)
        if n >= 10:
            assert not passes.left()
        assert len(passes._passes) <= 50


# the choice of keys to read -----------------------------------------------------------------------


class Channel:
    """A backlog that reads by key, and the rows that its channel keeps."""

    def __init__(self, unread: dict[str, int], capacity: int = 4000) -> None:
        self.unread = dict(unread)
        self.lane = Lane()
        self.passes = Passes(Counters(), self.lane.weights)
        self.backlog = Backlog(1, LaneRecord(), self.passes, capacity, Timing(), is_new=True)
        self.backlog.is_read_by_key = True
        self.backlog.remember((), unread)
        self.lane.table.spread(LANE, self.backlog.turns_taken)
        self._number = 0

    def weigh(self, key: str, weight: float) -> None:
        self.lane.weights[key] = weight
        assert self.backlog.reweigh({key}) == ([], [])
        self.lane.table.reweigh(LANE, {key})

    def read(self) -> None:
        tenants = len({tenant_of(key) for key in self.unread})
        for key, limit in self.backlog.choose_keys(tenants, 0):
            count = min(limit, self.unread[key])
            self.add([key] * count)
            self.unread[key] -= count
            if self.unread[key]:
                self.backlog.remember((), [key])
            else:
                del self.unread[key]

    def add(self, keys: list[str]) -> None:
        added = self.backlog.add(
            [trigger(n, key=key) for n, key in enumerate(keys, start=self._number + 1)]
        )
        self._number += len(keys)
        if isinstance(added, BacklogWrite):
            added = self.backlog.written(added)
        self._apply(added)

    def _apply(self, changes: Changes) -> None:
        self.lane.table.remove(changes.dropped)
        for each in changes.added:
            self.lane.table.push(each)

    def run(self, count: int) -> list[str]:
        ran = []
        for _ in range(count):
            if self.backlog.is_asking:
                self.read()
            [one], _ = self.lane.table.take(1, 0.0)
            self.backlog.take([one])
            self.backlog.ack([one])
            ran.append(one.fairness_key)
            self.lane.table.freed(self.lane.ledger.release(one, 0.0))
        return ran


@pytest.mark.parametrize("heavy", [1.0, 1000.0])
def test_a_tenant_whose_keys_are_read_many_times_keeps_its_share_against_one_of_a_single_key(
    heavy: float,
) -> None:
    """Charge the tenant for the triggers that came, whatever number was asked for."""
    unread = {f"big/{n}": 10 for n in range(300)} | {"big/heavy": 1, "small": 3000}
    channel = Channel(unread, capacity=400)
    channel.lane.weights["big/heavy"] = heavy
    for _ in range(16):
        assert by_tenant(channel.run(150))["big"] == pytest.approx(75, abs=2)


def test_the_keys_of_a_tenant_are_read_in_turns() -> None:
    channel = Channel({f"big/{n}": 10 for n in range(1000)}, capacity=400)
    ran = Counter(channel.run(2000))
    assert len(ran) == 1000 and set(ran.values()) == {2}


@pytest.mark.parametrize("capacity", [1, 40])
def test_a_path_of_a_tenant_is_read_beside_its_plain_key(capacity: int) -> None:
    channel = Channel({"a": 2000, "a/b": 2000, "a/b/c": 2000, "other": 2000}, capacity)
    channel.run(100)
    ran = Counter(channel.run(1200))
    assert ran["other"] == pytest.approx(600, abs=20)
    for key in ("a", "a/b", "a/b/c"):
        assert ran[key] >= 60, ran  # not exact with so little memory


def test_a_new_key_of_a_tenant_with_a_flood_is_read_before_the_rest_of_the_flood() -> None:
    channel = Channel({"big/flood": 10_000, "small": 10_000})
    channel.run(50)
    channel.unread["big/new"] = 5
    channel.backlog.remember(["big/new"], ())
    channel.read()
    assert len(channel.backlog) > 2500  # not because memory is low
    assert channel.run(30).count("big/new") == 5


def test_a_new_weight_of_one_of_very_many_keys_of_a_tenant_shows_at_once() -> None:
    channel = Channel({f"big/{n}": 10 for n in range(MANY)} | {"big/heavy": 10_000}, capacity=400)
    channel.run(500)
    channel.weigh("big/heavy", MANY / 3)
    for _ in range(3):
        share = channel.run(800).count("big/heavy") / 800
        assert share == pytest.approx(1 / 4, abs=0.1)


def test_turns_are_spread_and_taken_once_however_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "MOST_TURNS", 100)
    channel = Channel({f"big/{n}": 10 for n in range(300)}, capacity=40)
    assert set(Counter(channel.run(300)).values()) == {1}
    assert len(channel.passes.turns_taken) <= 100


def test_new_keys_of_a_tenant_beyond_their_credit_take_turns_with_the_keys_that_wait() -> None:
    channel = Channel({f"big/{n}": 10 for n in range(1000)}, capacity=400)
    channel.run(100)
    new = {f"big/new {n}": 1 for n in range(2000)}
    channel.unread |= new
    channel.backlog.remember(new, ())
    ran = channel.run(1000)
    assert 300 <= sum(key in new for key in ran) <= 800


def test_the_time_of_a_tenant_does_not_go_back_when_its_turns_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "MOST_TURNS", 100)
    turns = tenants.Turns()
    assert turns.take("a", "a/1", 5_000)
    for n in range(1000):
        turns.count("b", f"b/{n}", 1)
    assert turns.now("a") >= 5_000
    assert not turns.take("a", "a/2", 4_000)


def test_turns_of_very_many_keys_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MOST_TURNS", 100)
    turns = tenants.Turns()
    for n in range(1000):
        turns.count(f"t{n % 7}", f"t{n % 7}/{n}", 1)
        assert turns._size == sum(map(len, turns._next.values())) <= 100


def test_new_weights_of_a_tenant_move_the_tasks_of_all_its_keys() -> None:
    weights: dict[str, float] = {}
    passes = Passes(Counters(), weights)
    backlog = Backlog(1, LaneRecord(), passes, 100, Timing(), is_new=True)
    backlog.add([trigger(n, key=f"acme/{n}") for n in range(10)])
    weights["acme/3"] = 5.0
    assert backlog.reweigh({"acme/3"}) == ([], [])
    weights["acme"] = 10.0
    old, _ = backlog.reweigh({"acme"})
    assert len(old) == 9  # the first keeps its pass
    span = backlog.loaded()[-1].level
    assert span is not None and span > LOWEST and span.pass_ < 1_000_001
