"""Limits of fairness keys that change while a node runs are never exceeded, take effect at once, and
delay no other key."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import Trigger
from tests.builders import trigger
from tests.tiers import examples

KEYS = ("a", "b", "c")


class Node:
    """A table, its slot ledger, and the running tasks."""

    def __init__(self, *declared: Limit, slots: int = 1000) -> None:
        self.slot_ledger = SlotLedger(slots)
        self.slot_ledger.register_queue("q", *declared)
        self.table = TriggerTable(self.slot_ledger)
        self.running: dict[str, Trigger] = {}
        self._count = 0

    def push(self, keys: str, name: str = "pay", priority: int = 5) -> None:
        for key in keys:
            self._count += 1
            self.table.push(trigger(self._count, name, key, priority=priority))

    def take(self, limit: int = 1000) -> str:
        """Start the tasks that may run; return their keys in order."""
        taken, failed = self.table.take(limit, 0.0)
        assert not failed
        self.running |= {trigger.id: trigger for trigger in taken}
        return "".join(trigger.fairness_key for trigger in taken)

    def end(self, key: str) -> None:
        """End a run of a key."""
        for each in [each for each in self.running.values() if each.fairness_key == key][:1]:
            del self.running[each.id]
            self.table.freed(self.slot_ledger.release(each, 0.0))

    def limit(self, **limits: int) -> None:
        self.table.set_limits("q", limits)


def test_the_tighter_of_a_limit_in_the_code_and_one_set_at_run_time_counts() -> None:
    node = Node(Limit(3, per="fairness_key"))
    node.limit(a=5, b=2)
    node.push("aaaaaabbbbbbcccccc")
    assert Counter(node.take()) == {"a": 3, "b": 2, "c": 3}
    node.limit()
    assert Counter(node.take()) == {"b": 1}


def test_a_paused_queue_stays_paused_when_its_limits_change() -> None:
    node = Node()
    node.push("aab")
    node.table.pause("q")
    assert node.take() == ""
    node.limit(a=1)
    assert node.take() == ""
    node.table.resume("q")
    assert node.take() == "ab"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.text("abc", min_size=1, max_size=9), st.sampled_from([2, 5])),
        st.tuples(
            st.just("limit"), st.dictionaries(st.sampled_from(KEYS), st.integers(1, 4), max_size=3)
        ),
        st.tuples(st.just("take"), st.integers(1, 10)),
        st.tuples(st.just("end"), st.sampled_from(KEYS)),
        st.tuples(st.just("lose"), st.sampled_from(KEYS)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 12))
@settings(max_examples=examples(400))
def test_starts_never_exceed_a_limit_and_every_task_with_room_starts(
    done: list, slots: int
) -> None:
    """Compare with a model that holds only a list of waiting tasks: both start the same tasks after
    every change of limits."""
    node = Node(Limit(3, per="name"), slots=slots)
    waiting: list[tuple[int, str, str]] = []
    limits: dict[str, int] = {}
    numbers = 0
    for step in done:
        if step[0] == "push":
            for key in step[1]:
                numbers += 1
                name = "pay" if numbers % 2 else "mail"
                node.push(key, name, step[2])
                waiting.append((step[2], name, key))
        elif step[0] == "limit":
            limits = step[1]
            node.limit(**limits)
        elif step[0] == "end":
            node.end(step[1])
        elif step[0] == "lose":
            for trigger in [t for t in node.running.values() if t.fairness_key == step[1]][:1]:
                del node.running[trigger.id]
                node.table.freed(node.slot_ledger.cancel(trigger, 0.0))
        else:
            names = Counter(trigger.name for trigger in node.running.values())
            keys = Counter(trigger.fairness_key for trigger in node.running.values())
            expected, rest = [], []
            for one in sorted(waiting, key=lambda waits: waits[0]):
                _, name, key = one
                room = len(node.running) + len(expected) < slots and len(expected) < step[1]
                if room and names[name] < 3 and keys[key] < limits.get(key, 1000):
                    expected.append(key)
                    names[name] += 1
                    keys[key] += 1
                else:
                    rest.append(one)
            assert node.take(step[1]) == "".join(expected)
            waiting = rest
        assert node.slot_ledger.acquired == len(node.running)
    assert len(node.table) == len(waiting)
