"""Claimers, which claim the tasks of one kind of queue each: the choice among them, and the order
of their calls."""

from __future__ import annotations

from fairlead.engine.claimers import Claimers

TASKS, ORDERED = object(), object()


def test_claims_from_memory_come_before_claims_from_the_task_store() -> None:
    """A task of an ordered queue is claimed from memory, so a slow store must not delay it."""
    claimers = Claimers(TASKS, ORDERED, ["reminders"])  # type: ignore[arg-type]
    items = ["mail 1", "reminders 1", "mail 2", "reminders 2"]
    assert list(claimers.split(items, lambda item: item.split()[0])) == [
        (ORDERED, ["reminders 1", "reminders 2"]),
        (TASKS, ["mail 1", "mail 2"]),
    ]


def test_a_claimer_without_items_is_not_called() -> None:
    claimers = Claimers(TASKS, ORDERED, ["reminders"])  # type: ignore[arg-type]
    assert list(claimers.split(["mail 1"], lambda item: item.split()[0])) == [(TASKS, ["mail 1"])]
