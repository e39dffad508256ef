"""The order in which the tasks of one submit are stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair.stored_order import IN_TURN, RUN, stored_order


class Keys(NamedTuple):
    fairness_key: str = ""
    ordering_key: str | None = None
    unique_key: str | None = None


FEW = st.sampled_from([None, None, "x", "y"])
TASKS = st.lists(
    st.builds(
        Keys,
        st.sampled_from(["", "a", "b", "c", "t/1", "t/2", "/t", "t"]),
        FEW,
        FEW,
    ),
    max_size=40,
)


def order_of(tasks: list[Keys]) -> list[int]:
    order = stored_order(tasks)
    return [*range(len(tasks))] if order is None else order


@given(TASKS)
def test_each_position_comes_once(tasks: list[Keys]) -> None:
    assert sorted(order_of(tasks)) == list(range(len(tasks)))


@given(TASKS)
def test_tasks_of_one_key_of_any_kind_stay_in_their_order(tasks: list[Keys]) -> None:
    seen = defaultdict[tuple[str, str | None], list[int]](list)
    for position in order_of(tasks):
        task = tasks[position]
        for name in ("fairness_key", "ordering_key", "unique_key"):
            seen[name, getattr(task, name)].append(position)
    for (name, key), positions in seen.items():
        assert key is None or positions == sorted(positions), name


@given(st.lists(st.sampled_from(["a", "b", "t/1", "t/2"]), max_size=80))
def test_a_key_is_at_most_one_run_ahead_of_another_that_has_more(keys: list[str]) -> None:
    left, come = Counter(keys), Counter[str]()
    for position in order_of([Keys(key) for key in keys]):
        left[keys[position]] -= 1
        come[keys[position]] += 1
        waiting = [come[other] for other in left if left[other]]
        ahead = max(come.values()) - min(waiting, default=max(come.values()))
        assert ahead <= (1 if max(come.values()) <= IN_TURN else RUN)


def test_one_key_keeps_the_order_of_the_submit_at_no_cost() -> None:
    assert stored_order([Keys("a")] * 3) is None
