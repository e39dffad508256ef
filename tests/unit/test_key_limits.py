"""Limits of fairness keys that change while a node runs: never exceeded, nobody else held up, taken
up at once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.limits.key_limits import KeyLimit
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.core.triggers.columns import Column
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import Trigger
from tests.tiers import examples

KEYS = ("a", "b", "c")


class Node:
    """A table, its booking, and what it runs."""

    def __init__(self, *declared: Limit, slots: int = 1000) -> None:
        self.slot_ledger = SlotLedger(slots)
        self.slot_ledger.register_queue("q", *declared)
        self.table = TriggerTable(self.slot_ledger)
        self.running: dict[str, Trigger] = {}
        self._count = 0

    def push(
        self,
        keys: str,
        name: str = "pay",
        priority: int = 5,
        queue: str = "q",
        ordered: bool = False,
    ) -> None:
        for key in keys:
            self._count += 1
            made = f"{key}{self._count}"
            order_at = self._count if ordered else 0
            self.table.push(
                Trigger(
                    made,
                    1,
                    queue,
                    0,
                    name,
                    priority,
                    key,
                    1.0,
                    key if ordered else None,
                    order_at=order_at,
                )
            )

    def take(self, limit: int = 1000) -> str:
        """Starts what may; answers the keys in that order."""
        taken, failed = self.table.take(limit, 0.0)
        assert not failed
        self.running |= {trigger.id: trigger for trigger in taken}
        return "".join(trigger.fairness_key for trigger in taken)

    def end(self, key: str, count: int = 1) -> None:
        """So many of its runs end."""
        for trigger in [
            trigger for trigger in self.running.values() if trigger.fairness_key == key
        ][:count]:
            del self.running[trigger.id]
            self.table.freed(self.slot_ledger.release(trigger, 0.0))
            if trigger.ordering_key is not None:
                self.table.freed(
                    self.slot_ledger.release_reservation(
                        OrderingKey(trigger.queue, trigger.ordering_key)
                    )
                )

    def limit(self, queue: str = "q", **limits: int) -> None:
        self.table.set_limits(queue, limits)


def test_a_limit_that_comes_while_tasks_wait_holds_up_its_key_and_no_other() -> None:
    node = Node()
    node.push("aaabab")
    node.limit(a=2)
    assert node.take() == "aabb"
    node.end("a")
    assert node.take() == "a"
    assert node.take() == ""


def test_keys_with_limits_hold_up_neither_one_another_nor_those_without() -> None:
    node = Node()
    node.limit(a=1, b=3)
    node.push("aabbbcaabc")
    assert node.take() == "abbbcc"
    node.end("b")
    assert node.take() == "b"


def test_what_runs_already_counts_and_is_not_touched() -> None:
    node = Node()
    node.push("aaaa")
    assert node.take() == "aaaa"
    node.push("aaab")
    node.limit(a=3)
    assert node.take() == "b" and len(node.running) == 5
    node.end("a")
    assert node.take() == ""  # three of four still run
    node.end("a")
    assert node.take() == "a"


def test_raised_it_lets_in_at_once_as_many_as_there_is_room_for() -> None:
    node = Node()
    node.limit(a=1)
    node.push("aaaaaa")
    node.push("aa", name="mail")
    assert node.take() == "a"
    node.limit(a=4)
    assert node.take() == "aaa"
    node.limit(a=7)
    assert node.take() == "aaa"
    node.limit(a=6)
    assert node.take() == ""


def test_raised_it_lets_in_another_task_than_the_one_that_a_limit_in_the_code_stops() -> None:
    node = Node()
    node.slot_ledger.register_task("q", "pay", Limit(1))
    node.limit(a=1)
    node.push("aaa")
    node.push("aa", name="mail")
    assert node.take() == "a"
    node.limit(a=3)
    assert node.take() == "aa"
    assert Counter(trigger.name for trigger in node.running.values()) == {"pay": 1, "mail": 2}


def test_taken_away_all_may_run_again_in_their_old_order() -> None:
    node = Node()
    node.limit(a=1)
    node.push("abaaba")
    assert node.take(1) == "a"
    node.limit()
    assert node.take() == "baaba"


def test_the_order_of_arrival_and_priorities_outlive_a_change_of_limits() -> None:
    node = Node()
    node.push("ab", priority=5)
    node.push("ba", priority=2)
    node.limit(a=10)
    node.push("cab", priority=5)
    node.limit(b=10)
    assert node.take() == "baabcab"


def test_a_key_is_limited_in_its_queue_only_and_over_all_its_names() -> None:
    node = Node()
    node.limit(a=2)
    node.push("aa", name="pay")
    node.push("aa", name="mail")
    node.push("aaa", queue="other")
    assert node.take() == "aaaaa"
    assert Counter(trigger.queue for trigger in node.running.values()) == {"q": 2, "other": 3}


def test_the_tighter_of_a_limit_in_the_code_and_one_set_at_run_time_counts() -> None:
    node = Node(Limit(3, per="fairness_key"))
    node.limit(a=5, b=2)
    node.push("aaaaaabbbbbbcccccc")
    assert Counter(node.take()) == {"a": 3, "b": 2, "c": 3}
    node.limit()
    assert Counter(node.take()) == {"b": 1}


def test_a_limit_is_another_thing_than_an_ordering_key_of_that_name() -> None:
    node = Node()
    node.limit(a=1)
    node.push("a")
    assert node.take() == "a"
    node.push("a", ordered=True)
    assert node.take() == ""  # full is the key's limit, not its turn
    assert KeyLimit("q", "a") != OrderingKey("q", "a")
    node.end("a")
    assert node.take() == "a"


def test_serial_tasks_keep_their_turns_under_a_limit() -> None:
    node = Node()
    node.push("aa", ordered=True)
    node.push("bb", ordered=True)
    assert node.take() == "ab"
    node.limit(a=1, b=1)
    node.end("a")
    assert node.take() == "a"
    node.limit()
    node.end("b")
    assert node.take() == "b"


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
def test_no_limit_is_ever_exceeded_by_what_begins_and_whatever_has_room_begins(
    done: list, slots: int
) -> None:
    """Against a node that remembers only a list of what waits: the same tasks start, whatever
    limits came and went."""
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


def test_a_freed_slot_of_a_key_costs_one_look_however_many_wait(monkeypatch) -> None:
    """Of 1000 columns that wait for the limit one is tried."""
    node = Node()
    node.limit(a=1)
    for n in range(1000):
        node.push("a", name=f"task{n}")
    assert node.take() == "a"
    looked: list[Column] = []
    plain = TriggerTable._take_from
    monkeypatch.setattr(
        TriggerTable,
        "_take_from",
        lambda self, column, *rest: (looked.append(column), plain(self, column, *rest))[1],
    )
    node.end("a")
    assert node.take() == "a" and len(looked) <= 2
