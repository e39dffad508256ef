"""The results of a simulation."""

from __future__ import annotations

import msgspec

from fairlead.lab.waits import Percentiles


class KeyReport(msgspec.Struct, frozen=True):
    """One key under one order."""

    key: str
    weight: float
    tasks: int
    waits: Percentiles | None
    """None if no task of the key was picked up."""


class OrderReport(msgspec.Struct, frozen=True):
    """One order. Waits are in polls; 1 is the first poll after the arrival."""

    order: str
    picked: int
    left: int
    """Tasks that the script never polled."""
    waits_of_tasks: Percentiles | None
    waits_of_keys: Percentiles | None
    """Percentiles with each key counted once, by the mean wait of its tasks."""
    jain_mean: float | None
    """Mean over the windows; None if no window has two keys that had work throughout."""
    jain_least: float | None
    gap: float
    """Largest gap in service / weight between two of the listed keys, in multiples of 1 / w_f + 1 /
    w_m."""
    gap_between: tuple[str, str] | None
    keys: list[KeyReport]
    """The keys with the most tasks."""
    sequence: list[list[str]] | None
    """The keys that a script picked up, one list for each of its polls."""


class SimulationReport(msgspec.Struct, frozen=True):
    """One workload under each order."""

    workload: str
    tasks: int
    keys: int
    partitions: int
    slots: int
    buffer: int
    counters: str
    seed: int
    jain_window: int
    """Pick-ups in a window."""
    orders: list[OrderReport]
