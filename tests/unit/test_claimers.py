"""Claimers: which one claims a trigger, and in which order they are asked."""

from __future__ import annotations

from fairlead.engine.claimers import Claimers

TASKS, ORDERED = object(), object()


def test_what_is_claimed_from_memory_is_claimed_before_the_task_store_is_asked() -> None:
    """A task of an ordered queue waits neither for the store's answer nor for its outage."""
    claimers = Claimers(TASKS, ORDERED, ["reminders"])  # type: ignore[arg-type]
    items = ["mail 1", "reminders 1", "mail 2", "reminders 2"]
    assert list(claimers.split(items, lambda item: item.split()[0])) == [
        (ORDERED, ["reminders 1", "reminders 2"]),
        (TASKS, ["mail 1", "mail 2"]),
    ]


def test_a_claimer_without_items_is_not_asked() -> None:
    claimers = Claimers(TASKS, ORDERED, ["reminders"])  # type: ignore[arg-type]
    assert list(claimers.split(["mail 1"], lambda item: item.split()[0])) == [(TASKS, ["mail 1"])]
