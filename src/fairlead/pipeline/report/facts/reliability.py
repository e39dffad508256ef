"""Facts of the report about error budgets, failed runs and storms of failures."""

from __future__ import annotations

import pandas as pd

from fairlead.pipeline.definitions.slo import STEP_S
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS

MOST_OBJECTIVES = 50
"""Maximum number of objectives in the report; it lists those with the least budget left."""

MOST_ERROR_TYPES = 5
"""Maximum number of error types that the chart of failures draws in their own colour; all other
types share one colour."""

_STATES = ("ok", "ticket", "page")
_HOUR_S = 3600


def objectives(tables: Frames, period: Period) -> pd.DataFrame:
    """Return the state of each objective at the end of the period, ordered by the budget left,
    least first.

    Columns from the last window: slo_id, at (its start), objective, budget_left, burn_1h, burn_6h,
    burn_3d, state. Columns over the whole period: good and bad (numbers of runs), page_s and
    ticket_s (seconds in that state). At most 50 rows.
    """
    return period.frame(
        tables, "objectives", MOST_OBJECTIVES, most=MOST_OBJECTIVES, slo_step_s=STEP_S
    )


def budgets_over_time(tables: Frames, period: Period, objectives: pd.DataFrame) -> pd.DataFrame:
    """Return the budget and state of each objective over time, in steps of at least five minutes.

    Columns: at (start of the step), slo_id, budget_left (at the end of the step), state (the worst
    of the step). At most 202 rows for each objective.
    """
    most = (MOST_POINTS + 2) * len(objectives)
    return period.frame(
        tables,
        "budgets_over_time",
        most,
        STEP_S,
        slo_ids=list(objectives["slo_id"]),
        states=list(_STATES),
    )


def failures(tables: Frames, period: Period, top: int) -> pd.DataFrame:
    """Return the groups of similar errors that made the most runs fail.

    Columns: queue, name, error_type and error_text (both of the earliest error), n (number of
    failed runs), wasted_us, first_seen, last_seen, retry_amplification (its maximum over the
    hours), storm_hours (number of hours with a storm). At most `top` rows.
    """
    return period.frame(tables, "failures", top, top=top)


def failures_over_time(tables: Frames, period: Period) -> pd.DataFrame:
    """Return the number of failed runs over time, in steps of at least an hour.

    Columns: at (start of the step), error_type (null for all types except the five most frequent),
    n (number of failed runs). At most 6 x 202 rows.
    """
    most = (MOST_ERROR_TYPES + 1) * (MOST_POINTS + 2)
    return period.frame(tables, "failures_over_time", most, _HOUR_S, most=MOST_ERROR_TYPES)


def storms(tables: Frames, period: Period, top: int) -> pd.DataFrame:
    """Return the latest storms, one row for each hour of a storm. In a storm, one error makes at
    least 100 runs of a task name fail in an hour, and more than half of all its runs.

    Columns: hour, queue, name, error_type, n (number of failed runs), retry_amplification,
    wasted_us, last_seen, recovered_at (null if no run succeeded after the storm in that hour). At
    most `top` rows.
    """
    return period.frame(tables, "storms", top, top=top)
