"""A lane that leaves triggers in their rows: what memory takes, and its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.charged_runs import ChargedRuns
from fairlead.core.fair.flows import FairLane
from fairlead.core.fair.groups import Scope
from fairlead.core.fair.keyed_lane import KeyedLane
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import Feed, LaneKey, Trigger, tenant_of
from tests.builders import trigger
from tests.tiers import examples


def name_of(one: Trigger) -> Hashable:
    return one.name


def lane_of(capacity: int) -> KeyedLane:
    """Return a lane in which each name is a column."""
    core = KeyedLane(FairLane(5, Scope(), {}, ChargedRuns()), name_of)
    core.capacity = capacity
    return core


def rows(first: int, last: int, key: str = "a", name: str = "slow") -> list[Trigger]:
    return [trigger(seq, name, key) for seq in range(first, last + 1)]


# what does not fit --------------------------------------------------------------------------------


def test_what_does_not_fit_in_memory_is_left_from_the_first_such_row_of_each_key_on() -> None:
    core = lane_of(4)
    batch = [trigger(seq, key="ab"[seq % 2]) for seq in range(1, 10)]
    kept, left = core.keep(batch)
    assert [*kept] == batch[:5]
    assert left == {Feed("a"): 5, Feed("b"): 6}
    assert core.held == core.size == core.most == 5
    assert core.keep(rows(10, 10, "c")) == ([], {Feed("c"): 9})


# what begins --------------------------------------------------------------------------------------


def test_a_new_key_keeps_its_place_until_the_lane_opens() -> None:
    """Else it began up to one turn of all other keys later, as if it had waited among them."""
    table = TriggerTable(SlotLedger(1))
    table.weigh("q", {})
    core = KeyedLane(table.lane(LaneKey("q", 0, 5)), table.column)
    core.capacity, core.is_open = 1000, False
    core.remember((), [Feed(f"old {n}") for n in range(200)])
    core.remember(["new"], ())
    assert core.choose(200, 0)
    waiting = [trigger(n, key=f"old {n}") for n in range(200)] + [trigger(200, key="new")]
    core.came(waiting)
    core.remember((), [Feed("new")])  # it may have more rows
    assert [feed.key for feed, _ in core.choose(1, 0)] == ["new"]
    for one in waiting:
        table.push(one)
    core.is_open = True
    [first], _ = table.take(1, 0.0)
    assert first.fairness_key == "new"


# counts -------------------------------------------------------------------------------------------

KEYS, NAMES = ["a", "b", "t", "t/1", "t/2"], ["slow", "fast"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["keep", "came"]),
            st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(NAMES)), max_size=12),
        ),
        st.tuples(st.just("left"), st.sets(st.integers(0, 15))),
        st.tuples(st.just("apart"), st.tuples(st.sampled_from(NAMES), st.integers(1, 4))),
        st.tuples(st.just("change"), st.booleans()),
        st.tuples(st.just("choose"), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS, st.integers(1, 12), st.booleans())
def test_counts_are_those_of_the_triggers_in_memory(
    steps: list[tuple[str, Any]], capacity: int, is_fair: bool
) -> None:
    """Draws triggers that come, start, are left, and are read apart, and limits that change.
    `is_fair`: else the lane is one of a fifo queue, with one key."""
    columns: list[object] = [dict.fromkeys(NAMES, 0)]

    def column_of(one: Trigger) -> Hashable:
        return (len(columns), one.name, one.fairness_key if columns[-1] is True else "")

    flows = FairLane(5, Scope(), {} if is_fair else None, ChargedRuns())
    core = KeyedLane(flows, column_of)
    core.capacity = capacity
    held: list[Trigger] = []
    seq = 0
    for what, value in steps:
        if what in ("keep", "came"):
            new = [trigger(seq + n, name, key) for n, (key, name) in enumerate(value, 1)]
            seq += len(value)
            if what == "came":
                core.came(new)
                held += new
                continue
            kept, feeds = core.keep(new)
            dropped = [one for one in new if one not in kept]
            assert set(map(core.key, dropped)) == {feed.key for feed in feeds}
            for one in dropped:
                assert min(at for feed, at in feeds.items() if feed.key == core.key(one)) < one.seq
            held += kept
            core.remember((), [*feeds])
        elif what == "left":
            started = [one for n, one in enumerate(held) if n in value]
            core.left(started)
            held = [one for one in held if one not in started]
        elif what == "apart":
            name, most = value
            named = [one for one in held if one.name == name]
            of_column = [one for one in named if column_of(one) == column_of(named[0])]
            if len(of_column) > most:
                gone, left = core.set_apart(column_of(of_column[0]), of_column, most)
                assert [*gone] == of_column[most:]
                held = [one for one in held if one not in gone]
                core.remember((), [*left])
        elif what == "change":
            columns.append(value and is_fair)  # a fifo lane reads whole names apart
            core.columns_changed()
        else:
            core.choose(len(KEYS), value)
        _check(core, held)


def _check(core: KeyedLane, held: list[Trigger]) -> None:
    assert core.size == len(held)
    assert core.held >= 0 and all(apart.held >= 0 for apart in core._apart.values())
    assert core._held.keys == Counter(map(core.key, held))
    assert core._held.tenants == Counter(tenant_of(core.key(one)) for one in held)
