"""Definitions of gold.slo_counts and gold.slo."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

STEP_S = 300

SPANS = {
    "burn_5m": STEP_S,
    "burn_30m": 1800,
    "burn_1h": 3600,
    "burn_6h": 21_600,
    "burn_3d": 259_200,
}
"""Length of each span in seconds, including the window itself."""

_WINDOW = columns_in(
    """
    window_start timestamp start of the five minutes that contain finished_at
    slo_id       string    id of the objective
    good         bigint    number of runs that did not fail and were no slower than the threshold
    bad          bigint    number of runs that failed or were slower than the threshold
    """,
)

_BURN = (
    "rate at which the error budget was spent over the {span} that end with this window, as a"
    " multiple of the rate that the objective allows"
)

SLO_COUNTS = Table(
    "gold.slo_counts",
    "good and bad runs by objective in windows of five minutes; a window without runs has no row",
    key=("window_start", "slo_id"),
    instant="window_start",
    by="date",
    columns=_WINDOW,
)

SLO = Table(
    "gold.slo",
    "burn rates of the error budget of each objective; a window without runs has no row",
    key=("window_start", "slo_id"),
    instant="window_start",
    by="date",
    columns=columns_in(
        *_WINDOW,
        "objective double fraction of the runs that must be good",
        *(f"{name} double {_BURN.format(span=name.removeprefix('burn_'))}" for name in SPANS),
        """
        budget_left double 1 - burn_3d: the fraction that is left of the error budget of three days;
                           below 0 if overspent
        state       string page: burn rate above 14.4 over both 1h and 5m, or above 6 over both 6h
                           and 30m; ticket: above 1 over both 3d and 6h; ok: neither
        """,
    ),
)
