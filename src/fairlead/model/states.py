"""States of a task, outcomes of an attempt, and paths of a trigger."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """State of a task. Every change is a compare-and-set on the task's version."""

    WAITING = "WAITING"  # run_at lies ahead, or a retry is due later
    SUBMITTED = "SUBMITTED"  # may run now
    PROCESSING = "PROCESSING"  # claimed by one node
    DONE = "DONE"
    ERROR = "ERROR"  # retries used up: a person must decide
    FAILED = "FAILED"  # a person ended it
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing changes any more: DONE, FAILED or CANCELLED."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""States of tasks that have left the hot table; only their attempts remain."""


class Outcome(StrEnum):
    """End of one attempt (the column `outcome` of the attempts table)."""

    DONE = "done"
    FAILED = "failed"  # the last try: the task is now in ERROR, or a person marked it FAILED
    RETRIED = "retried"  # failed, another try is due
    SNOOZED = "snoozed"  # the handler asked to run later; no try spent
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"  # its node died or stalled; the task went to another node


class TriggerPath(StrEnum):
    """Path by which a task got its trigger; the hook is the usual one."""

    HOOK = "hook"  # the submit's own commit
    POLLER = "poller"  # run_at or a retry came due
    HEAL = "heal"  # a sweep found a lost trigger, or a task was resumed after its node died
    SPILL = "spill"  # a backlog store read it back into memory
    GRANT = "grant"  # the owner of its partition granted it to another node
