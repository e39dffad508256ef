"""What a simulation found."""

from __future__ import annotations

import msgspec

from fairlead.lab.waits import Percentiles


class KeyReport(msgspec.Struct, frozen=True):
    """One key under one order."""

    key: str
    weight: float
    tasks: int
    waits: Percentiles | None
    """None: none of its tasks was picked up."""


class OrderReport(msgspec.Struct, frozen=True):
    """One order. Waits are in polls; 1 is the first poll after the arrival."""

    order: str
    picked: int
    left: int
    """Tasks that a script never polled."""
    waits_of_tasks: Percentiles | None
    waits_of_keys: Percentiles | None
    """Each key counted once, with the mean wait of its tasks."""
    jain_mean: float | None
    """Over the windows; None: in no window had two keys work throughout."""
    jain_least: float | None
    gap: float
    """Largest gap in service / weight between two of the keys listed, in multiples of 1 / w_f + 1 /
    w_m."""
    gap_between: tuple[str, str] | None
    keys: list[KeyReport]
    """Those with most tasks."""
    sequence: list[list[str]] | None
    """Of a script: the keys picked up, a list for each of its polls."""


class Report(msgspec.Struct, frozen=True):
    """The same workload under each order."""

    workload: str
    tasks: int
    keys: int
    partitions: int
    slots: int
    buffer: int
    counters: str
    seed: int
    jain_window: int
    """Pick-ups."""
    orders: list[OrderReport]
