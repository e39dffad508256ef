"""Strides of start-time fair queueing (Goyal, Vin and Cheng 1996): the virtual time from one task
to the next of the same flow."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

STRIDE_SCALE = 1_000_000


@lru_cache(1000)
def stride(weight: float) -> int:
    """Return the virtual time of one task of this weight (dimensionless, >= 1). Waldspurger 1995,
    section 3."""
    # Integers, because the stores compare passes, and floats would compare differently.
    return max(1, round(STRIDE_SCALE / weight))


def step(charge: int, weight: float) -> int:
    """Return the virtual time from a task to the next one. `charge`: of the task at weight 1."""
    return stride(weight) if charge == STRIDE_SCALE else max(1, round(charge / weight))


def phase(key: str, step: int) -> int:
    """Return a virtual time below `step`, by which the first tags of many keys are spread."""
    return crc32(key.encode()) * step >> 32
