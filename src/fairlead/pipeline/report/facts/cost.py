"""Cost by key: worker time, its part of the idle time, its part of the bill."""

from __future__ import annotations

import pandas as pd

from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.period import Period


def by_key(tables: Frames, period: Period, top: int) -> pd.DataFrame:
    """Return the most expensive keys, by rank, and the rest as one row.

    The days are whole, even where the period has only a part of one. The key '*' stands for paid
    time in which no key ran anything. Columns: rank (from 1; null for the rest), fairness_key (null
    for the rest), keys (number of keys in the row), busy_us, wasted_us, idle_allocated_us, amount
    (Decimal). The order is by amount, then by worker time, because all amounts are 0 without a
    bill. At most top + 1 rows.
    """
    return period.frame(tables, "cost_by_key", top + 1, top=top)


def is_billed(cost: pd.DataFrame) -> bool:
    """Return whether there was a bill or a price to divide."""
    return bool(cost["amount"].sum() > 0)


def parts_of_whole(cost: pd.DataFrame) -> pd.Series:
    """Return the part of each row, 0 to 1: of the bill, or of the worker time without a bill."""
    values = cost["amount" if is_billed(cost) else "busy_us"].astype(float)
    return values / max(values.sum(), 1e-9)
