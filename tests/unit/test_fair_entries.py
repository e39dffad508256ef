"""Ranks of fair triggers: when a key gets one, and when it gets it back."""

from __future__ import annotations

from itertools import count

from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import Level, PartitionKey, Trigger

numbers = count(1)


def trigger(
    id: str,
    name: str = "pay",
    ordering_key: str | None = None,
    order_at: int = 0,
    partition: int = 0,
    pass_: int = 0,
) -> Trigger:
    """Return a trigger whose fairness key is the first letter of its id. `pass_`: of its level,
    which does not decide its rank."""
    level = Level(pass_, next(numbers))
    return Trigger(
        id, 1, "q", partition, name, 5, id[0], 1.0, ordering_key, order_at=order_at, level=level
    )


def table_of(slots: int = 1_000_000, **limits: Limit) -> tuple[TriggerTable, SlotLedger]:
    ledger = SlotLedger(slots)
    ledger.register_queue("q")
    for name, limit in limits.items():
        ledger.register_task("q", name, limit)
    return TriggerTable(ledger), ledger


def push(table: TriggerTable, ids: str, **options) -> dict[str, Trigger]:
    pushed = {id: trigger(id, **options) for id in ids.split()}
    for each in pushed.values():
        table.push(each)
    return pushed


def ids(table: TriggerTable, limit: int = 1_000_000) -> str:
    return " ".join(taken.id for taken in table.take(limit, 0.0)[0])


def test_keys_take_turns_whatever_the_passes_of_their_levels() -> None:
    table, _ = table_of()
    push(table, "a1 a2 a3", pass_=0)
    push(table, "b1 b2", pass_=9_000_000)
    assert ids(table) == "a1 b1 a2 b2 a3"


def test_a_key_that_was_held_back_does_not_catch_up() -> None:
    table, ledger = table_of(slow=Limit(4))
    running = push(table, "z1 z2 z3 z4", name="slow")
    assert ids(table) == "z1 z2 z3 z4"
    push(table, "a1 a2 a3 a4", name="slow")
    push(table, "b1 b2 b3 b4 b5 b6 b7")
    assert ids(table, 5) == "b1 b2 b3 b4 b5"
    for each in running.values():
        table.freed(ledger.release(each, 0.0))
    assert ids(table) == "a1 a2 b6 a3 b7 a4"


def test_a_key_that_arrives_waits_for_one_task_of_each_other_key() -> None:
    table, _ = table_of()
    push(table, "a1 a2 a3 a4 b1 b2 b3 b4")
    assert ids(table, 4) == "a1 b1 a2 b2"
    push(table, "c1 c2")
    assert ids(table, 4) == "c1 a3 b3 c2"


def test_triggers_that_leave_without_a_run_cost_their_key_nothing() -> None:
    table, _ = table_of()
    left = push(table, "a1 a2")
    push(table, "a3", name="mail")
    push(table, "b1 b2 b3")
    for _ in range(5):
        table.remove(list(left.values()))
        for each in left.values():
            table.push(each)
    assert ids(table, 4).count("a") == 2


def test_a_flow_keeps_its_rank_when_its_first_trigger_leaves() -> None:
    table, _ = table_of()
    pushed = push(table, "a1 a2 a3 b1 b2 b3")
    assert ids(table, 1) == "a1"
    table.remove([pushed["a2"]])
    assert len(table) == 4
    assert ids(table) == "b1 a3 b2 b3"


def test_the_last_trigger_of_a_flow_may_leave_before_the_others_run() -> None:
    table, _ = table_of()
    pushed = push(table, "a1 b1 b2")
    table.remove([pushed["a1"]])
    assert ids(table) == "b1 b2"


def test_a_returned_trigger_runs_before_later_ones_of_its_key() -> None:
    table, ledger = table_of()
    pushed = push(table, "a1 a2 a3 b1 b2")
    assert ids(table, 1) == "a1"
    ledger.cancel(pushed["a1"], 0.0)
    table.push(pushed["a1"])
    assert ids(table) == "b1 a1 b2 a2 a3"


def test_triggers_with_and_without_a_level_share_a_column() -> None:
    """Granted triggers have no level; all of them are one flow."""
    table, _ = table_of()
    for n in range(3):
        table.push(Trigger(f"g{n}", 1, "q", 0, "pay", 5, "g", 1.0, None))
    push(table, "a1 a2 a3")
    table.push(Trigger("g3", 1, "q", 0, "pay", 5, "g", 1.0, None))
    assert ids(table, 3) == "g0 a1 g1"
    table.remove([Trigger("g2", 1, "q", 0, "pay", 5, "g", 1.0, None)])
    assert ids(table) == "a2 a3 g3"


def test_a_key_has_a_rank_of_its_own_in_each_partition() -> None:
    table, _ = table_of()
    push(table, "a1 a2 a3")
    push(table, "a4 a5 a6", partition=1)
    assert ids(table, 4) == "a1 a4 a2 a5"
    assert [one.id for one in table.drop([PartitionKey("q", 1)])] == ["a6"]
    assert ids(table) == "a3"


def test_tasks_of_an_ordering_key_run_in_its_order_at_the_ranks_of_their_fairness_keys() -> None:
    table, ledger = table_of()
    late = push(table, "a2", ordering_key="o", order_at=2)
    early = push(table, "b1", ordering_key="o", order_at=1)
    push(table, "b2 b3 a3")
    assert ids(table, 4) == "b1 a3 b2 b3"
    assert len(table) == len(late)
    ledger.release(early["b1"], 0.0)
    table.freed(ledger.release_reservation(next(iter(table._ordered))))
    assert ids(table) == "a2"


def test_an_ordering_key_goes_on_when_its_first_task_leaves() -> None:
    table, _ = table_of()
    pushed = push(table, "a1", ordering_key="o", order_at=1)
    push(table, "b2", ordering_key="o", order_at=2)
    push(table, "a3 a4")
    table.remove(list(pushed.values()))
    assert ids(table, 2) in ("b2 a3", "a3 b2")


def test_a_weight_set_at_run_time_acts_on_tasks_that_wait() -> None:
    table, _ = table_of()
    weights: dict[str, float] = {}
    table.weigh("q", weights)
    push(table, " ".join(f"{key}{n}" for n in range(12) for key in "ab"))
    assert ids(table, 4) == "a0 b0 a1 b1"
    weights["b"] = 5.0
    assert 9 <= ids(table, 12).count("b") <= 10
    weights.clear()
    assert len(ids(table, 2).split()) == 2


def test_changed_limits_of_keys_keep_the_turns_of_the_others() -> None:
    table, _ = table_of()
    push(table, "a1 a2 a3 b1 b2 b3 c1 c2 c3")
    assert ids(table, 3) == "a1 b1 c1"
    table.set_limits("q", {"a": 2})
    assert sorted(ids(table, 3).split()) == ["a2", "b2", "c2"]
    assert ids(table) == "b3 c3"
