"""Flows of the trigger table: one rank for each key, whatever limits its triggers have."""

from __future__ import annotations

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import ConcurrencyPolicy, Full, Limit
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import Level, Trigger, TriggerPath
from tests.builders import trigger


class Lane:
    """A table with one fair lane, whose triggers get levels in the order of their arrival."""

    def __init__(self, *names: tuple[str, ConcurrencyPolicy], slots: int = 1_000_000) -> None:
        self.ledger = SlotLedger(slots)
        for name, policy in names:
            self.ledger.register_task("q", name, policy)
        self.table = TriggerTable(self.ledger)
        self.table.weigh("q", {})
        self._number = 0

    def push(
        self, key: str, name: str = "pay", count: int = 1, ordering_key: str | None = None
    ) -> None:
        for _ in range(count):
            n = self._number = self._number + 1
            about = {"seq": n, "level": Level(n, n), "order_at": n, "ordering_key": ordering_key}
            self.table.push(trigger(f"{key}{n}", name, key, **about))

    def take(self, limit: int = 1_000_000) -> list[Trigger]:
        taken, failed = self.table.take(limit, 0.0)
        assert not failed
        return taken

    def end(self, trigger: Trigger) -> None:
        freed = self.ledger.release(trigger, 0.0)
        if trigger.ordering_key is not None:
            freed += self.ledger.release_reservation(OrderingKey("q", trigger.ordering_key))
        self.table.freed(freed)

    def run(self, count: int) -> list[str]:
        """Run tasks one by one; return their ids."""
        ran = []
        for _ in range(count):
            [trigger] = self.take(1)
            ran.append(trigger.id)
            self.end(trigger)
        return ran


def ids(triggers: list[Trigger]) -> list[str]:
    return [trigger.id for trigger in triggers]


class Counted(Limit):
    tries = 0

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        self.tries += 1
        return super().acquire(trigger, now)


# order --------------------------------------------------------------------------------------------


def test_lent_triggers_are_the_next_of_their_keys_and_charge_them() -> None:
    lane = Lane(slots=1)
    for name in ("pay", "mail", "post"):
        lane.push("a", name)
    lane.push("b", "pay", 3)
    [running] = lane.take()
    lent = lane.table.lend(3, lambda trigger: True)
    assert ids([running, *lent]) == ["a1", "b4", "a2", "b5"]
    lane.end(running)
    assert ids(lane.take()) == ["a3"]


def test_a_name_that_no_other_node_wants_is_skipped_and_still_runs_here() -> None:
    lane = Lane(slots=1)
    for name in ("pay", "mail", "pay", "mail"):
        lane.push("a", name)
    [running] = lane.take()
    lent = lane.table.lend(9, lambda trigger: trigger.name == "pay")
    assert [each.id for each in lent] == ["a3"]
    assert lane.table.spare_names() == [("q", "mail")]
    lane.end(running)
    assert lane.run(2) == ["a2", "a4"]


# what waits ---------------------------------------------------------------------------------------


def test_a_full_limit_is_tried_once_however_many_keys_and_ordering_keys_wait_for_it() -> None:
    limit = Counted(2)
    lane = Lane(("pay", limit))
    for n in range(1000):
        lane.push(f"k{n % 200}", ordering_key=f"o{n}" if n % 2 else None)
    running = lane.take()
    assert len(running) == 2 and limit.tries == 3
    for _ in range(100):
        limit.tries = 0
        lane.end(running.pop(0))
        running += lane.take()
        assert len(running) == 2 and limit.tries == 2


def test_granted_triggers_of_a_fair_queue_run_in_the_order_of_arrival() -> None:
    lane = Lane(slots=1)
    lane.push("a", count=2)
    grant = trigger("g", key="c", partition=1, path=TriggerPath.GRANT)
    lane.table.push(grant)
    assert lane.run(3) == ["g", "a1", "a2"]
