"""States of a task, outcomes of an attempt, and what made its trigger."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a task stands. Every change is a compare-and-set on its version."""

    WAITING = "WAITING"  # run_at ahead, or a retry due later
    SUBMITTED = "SUBMITTED"  # may run now
    PROCESSING = "PROCESSING"  # claimed by one node
    DONE = "DONE"
    ERROR = "ERROR"  # retries used up, asks for a person
    FAILED = "FAILED"  # a person gave it up
    CANCELLED = "CANCELLED"


FINAL_STATES = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""A task in one of these has left the hot table; its attempts are what is left of it."""


class Outcome(StrEnum):
    """How one attempt ended (the column `outcome` of the attempts table)."""

    DONE = "done"
    FAILED = "failed"  # the last try: the task is now in ERROR, or a person marked it FAILED
    RETRIED = "retried"  # failed, another try is due
    SNOOZED = "snoozed"  # the handler asked to be run later; no try spent
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"  # its node died or stalled; the task was given to another


class TriggerPath(StrEnum):
    """What made the trigger of an attempt: the happy path is the hook."""

    HOOK = "hook"  # the submit's own commit
    POLLER = "poller"  # run_at or a retry came due
    HEAL = "heal"  # a lost trigger, found by a sweep, or a task resumed after its node died
    SPILL = "spill"
