"""The order in which the tasks of one submit are stored."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair.stored_order import stored_order
from fairlead.model import tenant_of


class Keys(NamedTuple):
    fairness_key: str = ""
    weight: float = 1.0
    ordering_key: str | None = None
    unique_key: str | None = None


FEW = st.sampled_from([None, None, "x", "y"])
TASKS = st.lists(
    st.builds(
        Keys,
        st.sampled_from(["", "a", "b", "c", "t/1", "t/2", "/t", "t"]),
        st.sampled_from([0.001, 0.5, 1.0, 3.0, 1000.0]),
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


@given(st.lists(st.sampled_from(["a", "b", "c", "t/1", "t/2", "t/3"]), max_size=60))
def test_a_tenant_is_at_most_one_task_ahead_of_another_that_has_more(keys: list[str]) -> None:
    """However a tenant splits its tasks over keys: with equal weights, each prefix has as many of
    each tenant that still has tasks to come, but for one."""
    tasks = [Keys(key) for key in keys]
    left, come = defaultdict[str, int](int), defaultdict[str, int](int)
    for key in keys:
        left[tenant_of(key)] += 1
    for position in order_of(tasks):
        tenant = tenant_of(keys[position])
        left[tenant] -= 1
        come[tenant] += 1
        waiting = [come[other] for other in left if left[other]]
        assert not waiting or max(come.values()) <= min(waiting) + 1


def test_a_key_of_twice_the_weight_is_twice_as_dense() -> None:
    tasks = [Keys("light")] * 10 + [Keys("heavy", weight=2.0)] * 20
    stored = [tasks[position].fairness_key for position in order_of(tasks)]
    for end in range(3, 31, 3):
        assert stored[:end].count("heavy") == end / 3 * 2


def test_one_key_keeps_the_order_of_the_submit_at_no_cost() -> None:
    assert stored_order([Keys("a")] * 3) is None
