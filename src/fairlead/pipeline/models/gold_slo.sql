-- table: gold.slo
-- doc: burn rates of the error budget of each objective; a window without runs has no row
-- key: window_start, slo_id
-- partition: date of window_start
-- given: slo_objectives (slo_id, queue, name or '*', measure, threshold_us, objective)
-- columns:
--   window_start timestamp start of the five minutes that contain finished_at
--   slo_id       string    id of the objective
--   good         bigint    number of runs that did not fail and were no slower than the threshold
--   bad          bigint    number of runs that failed or were slower than the threshold
--   objective    double    fraction of the runs that must be good
--   burn_5m      double    rate at which the error budget was spent over the 5m that end with this
--                          window, as a multiple of the rate that the objective allows
--   burn_30m     double    rate at which the error budget was spent over the 30m that end with this
--                          window, as a multiple of the rate that the objective allows
--   burn_1h      double    rate at which the error budget was spent over the 1h that end with this
--                          window, as a multiple of the rate that the objective allows
--   burn_6h      double    rate at which the error budget was spent over the 6h that end with this
--                          window, as a multiple of the rate that the objective allows
--   burn_3d      double    rate at which the error budget was spent over the 3d that end with this
--                          window, as a multiple of the rate that the objective allows
--   budget_left  double    1 - burn_3d: the fraction that is left of the error budget of three
--                          days; below 0 if overspent
--   state        string    page: burn rate above 14.4 over both 1h and 5m, or above 6 over both 6h
--                          and 30m; ticket: above 1 over both 3d and 6h; ok: neither
WITH windows AS (
    SELECT /*+ BROADCAST(slo_objectives) */
        window_start, slo_id, good, bad, objective,
        1 - objective AS allowed,
        good + bad AS runs,
        unix_seconds(window_start) AS start
    FROM gold_slo_counts
    JOIN slo_objectives USING (slo_id)
), burnt AS (
    -- A span includes the window itself.
    SELECT *,
        bad / runs / allowed AS burn_5m,
        sum(bad) OVER last_30m / sum(runs) OVER last_30m / allowed AS burn_30m,
        sum(bad) OVER last_1h / sum(runs) OVER last_1h / allowed AS burn_1h,
        sum(bad) OVER last_6h / sum(runs) OVER last_6h / allowed AS burn_6h,
        sum(bad) OVER last_3d / sum(runs) OVER last_3d / allowed AS burn_3d
    FROM windows
    WINDOW
        last_30m AS (PARTITION BY slo_id ORDER BY start RANGE 1500 PRECEDING),
        last_1h AS (PARTITION BY slo_id ORDER BY start RANGE 3300 PRECEDING),
        last_6h AS (PARTITION BY slo_id ORDER BY start RANGE 21300 PRECEDING),
        last_3d AS (PARTITION BY slo_id ORDER BY start RANGE 258900 PRECEDING)
)
SELECT
    window_start, slo_id, good, bad, objective, burn_5m, burn_30m, burn_1h, burn_6h, burn_3d,
    1 - burn_3d AS budget_left,
    -- Multi-window alerts of the SRE workbook: 2 % of a 30 d budget in 1 h, 5 % in 6 h, 10 % in
    -- 3 d. The short span ends the alert.
    CASE
        WHEN burn_1h > 14.4D AND burn_5m > 14.4D OR burn_6h > 6 AND burn_30m > 6 THEN 'page'
        WHEN burn_3d > 1 AND burn_6h > 1 THEN 'ticket'
        ELSE 'ok'
    END AS state
FROM burnt
