"""Definition of gold.capacity."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

CAPACITY = Table(
    "gold.capacity",
    "arrivals at a queue by hour of the week, a forecast for the week that begins at"
    " week_start, and the slots that this week needs",
    key=("week_start", "queue", "hour_of_week"),
    instant="week_start",
    by="date",
    columns=columns_in(
        """
        week_start       timestamp first instant of the forecast week, and end of the history that
                                   was used
        hour_of_week     int       hour of the week, 0 (Monday 00:00 UTC) to 167
        queue            string    queue that the row is about
        weeks            int       number of whole weeks since the queue's first task that were used
                                   as history
        lambda_p50       double    arrivals a second: median over the minutes of this hour in all
                                   weeks
        lambda_p90       double    arrivals a second: 90th percentile over the same minutes
        lambda_p99       double    arrivals a second: 99th percentile over the same minutes
        mean_us          double    mean length of a run; if this hour had fewer than 30 runs, the
                                   mean over all hours
        cv2_arrival      double    variance of the arrivals per minute within an hour, divided by
                                   their mean; 1: Poisson
        cv2_service      double    squared coefficient of variation of runs; 1: exponential
        deferrable_share double    fraction of the worker time that tasks of priority 7 to 9 take, 0
                                   to 1
        forecast         double    arrivals a second: forecast of the median
        forecast_p90     double    arrivals a second: forecast of the 90th percentile
        method           string    method that was better on the held-out weeks: damped trend or
                                   seasonal naive
        held_out         int       number of weeks on which both methods were judged; 0 if the
                                   history is too short
        pinball_loss     double?   loss of the damped trend on the held-out weeks, in tasks an hour;
                                   null if not judged
        pinball_naive    double?   loss of the seasonal naive method on these weeks, in tasks an
                                   hour; null if not judged
        wait_us          bigint    target: longest wait of a task
        quantile         double    target: fraction of the tasks that wait no longer than wait_us
        slots_for_target int       number of slots that forecast_p90 needs to meet the target, by
                                   Erlang-C and Allen-Cunneen
        utilisation      double    fraction of these slots that are busy at forecast_p90; 0 for no
                                   slots
        """,
    ),
)
