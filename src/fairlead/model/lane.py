"""The record of a lane: what its owner keeps for the next one."""

from __future__ import annotations

import msgspec

from fairlead.model.trigger import LOWEST, Level


class RunTimesRecord(msgspec.Struct, frozen=True):
    """What a queue that charges run time has learnt, for the next owner and for people."""

    unit: int = 0
    """Microseconds: the run time for which a key of weight 1 is charged a whole stride; 0: not
    known yet."""
    means: list[tuple[str, str, int, int]] = []
    """(task name, fairness key, mean run time in microseconds, runs it rests on), those that ran
    last."""


class LaneRecord(msgspec.Struct, frozen=True):
    """What is kept of a lane's fair backlog beside its rows, for the next owner and for people."""

    ack_level: Level = LOWEST
    """A: everything at or below has been dispatched."""
    read_level: Level = LOWEST
    """R when this was written; only for people."""
    max_level: Level = LOWEST
    """M: no row is above."""
    virtual_time: int = 0
    """The furthest pass dispatched."""
    read_seq: int = 0
    """Every trigger of the channel up to this place that was there has been given a level."""
    buffered: int = 0
    """Triggers in the owner's memory when this was written; only for people."""
    next_passes: list[tuple[str, int]] = []
    """(fairness key, next pass) of the keys furthest ahead."""
    run_times: RunTimesRecord | None = None
    """None: the queue counts tasks."""
