"""How many slots each hour of the next week needs; made by `fairlead pipeline capacity`, not by the
build."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

LATER = 7
"""Tasks of this priority and those behind it (to 9) are taken to be such as can wait for a quieter
hour."""

CAPACITY = Table(
    "gold.capacity",
    "what arrived at a queue in each hour of the week, a forecast of the week that begins at"
    " week_start, and the slots it needs",
    key=("week_start", "queue", "hour_of_week"),
    instant="week_start",
    by="date",
    columns=(
        Column(
            "week_start",
            "timestamp",
            "first instant of the week that is forecast; what came before is what is known",
        ),
        Column("hour_of_week", "int", "0 (Monday 00:00 UTC) to 167"),
        Column("queue", "string", "the queue"),
        Column("weeks", "int", "whole weeks of history that were looked at"),
        Column(
            "lambda_p50",
            "double",
            "arrivals a second, over the minutes of this hour in all weeks: the median",
        ),
        Column(
            "lambda_p90",
            "double",
            "arrivals a second that nine of ten of those minutes do not exceed",
        ),
        Column("lambda_p99", "double", "arrivals a second that 99 of 100 do not exceed"),
        Column(
            "mean_us",
            "double",
            "length of a run; of all hours together where this one had fewer than 30",
        ),
        Column(
            "cv2_arrival",
            "double",
            "variance of the arrivals of a minute over their mean, hour by hour; 1: Poisson",
        ),
        Column(
            "cv2_service", "double", "squared coefficient of variation of the runs; 1: exponential"
        ),
        Column(
            "deferrable_share",
            "double",
            "part of the worker time that was for tasks of priority 7 to 9, 0 to 1",
        ),
        Column(
            "forecast",
            "double",
            "arrivals a second that half of such hours are forecast not to exceed",
        ),
        Column(
            "forecast_p90",
            "double",
            "arrivals a second that nine of ten are forecast not to exceed",
        ),
        Column(
            "method",
            "string",
            "damped trend or seasonal naive: whichever was better on the weeks held out",
        ),
        Column("held_out", "int", "weeks on which both were judged; 0: too short a history"),
        Column(
            "pinball_loss",
            "double",
            "of the damped trend there, in tasks an hour; null: not judged",
            nullable=True,
        ),
        Column("pinball_naive", "double", "the same of the seasonal naive", nullable=True),
        Column("wait_us", "bigint", "the target: so long may a task wait"),
        Column("quantile", "double", "and so large a part of the tasks no longer"),
        Column(
            "slots_for_target",
            "int",
            "slots that forecast_p90 needs, by Erlang-C and Allen-Cunneen",
        ),
        Column(
            "utilisation",
            "double",
            "part of these slots that is busy at forecast_p90; 0 for no slots",
        ),
        WRITTEN_UNDER,
    ),
)
