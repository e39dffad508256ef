-- table: gold.cost
-- doc: division of a day's bill among queues and keys; the amounts of the rows that share a bill
--   add up to it exactly
-- key: day, queue, fairness_key
-- partition: date of day
-- given: cost_bills (day, queue, worker_us, amount), in which '*' is the bill of all queues without
--   one; :method, usage, peak or reserved
-- columns:
--   day               timestamp     start of the day (UTC)
--   queue             string        queue that the row is about
--   fairness_key      string        fairness key; '*': a bill for which no key ran anything
--   busy_us           bigint        worker time that the key got
--   wasted_us         bigint        part of busy_us spent on runs that did not succeed
--   idle_allocated_us bigint        the key's part of the worker time that was paid for and not
--                                   used
--   price             double?       price of a paid worker-hour; null without a bill, or if the
--                                   bill has no worker time
--   amount            decimal(18,6) the key's part of the bill, in the bill's currency; 0 without a
--                                   bill
--   method            string        rule by which idle time was divided: usage, peak or reserved
WITH hours AS (
    SELECT
        date_trunc('DAY', window_start) AS day,
        queue, fairness_key,
        sum(busy_us) AS busy_us,
        sum(wasted_us) AS wasted_us,
        sum(weighted_us) AS weighted_us,
        max(weight) AS weight
    FROM silver_service
    GROUP BY date_trunc('DAY', window_start), queue, fairness_key, date_trunc('HOUR', window_start)
), used AS (
    SELECT
        day, queue, fairness_key,
        sum(busy_us) AS busy_us,
        sum(wasted_us) AS wasted_us,
        max(busy_us) AS peak_us,
        -- The weight of a day is the mean over its worker time, so that one heavy run does not set
        -- it.
        CAST(
            round(1000000 * coalesce(try_divide(sum(busy_us), sum(weighted_us)), max(weight)))
            AS bigint
        ) AS reserved
    FROM hours
    GROUP BY day, queue, fairness_key
), bills AS (
    SELECT
        CAST(day AS timestamp) AS day,
        queue AS bill,
        CAST(sum(worker_us) AS bigint) AS worker_us,
        CAST(sum(amount) AS decimal(18, 6)) AS bill_amount
    FROM cost_bills
    GROUP BY day, queue
), own AS (
    SELECT day, bill AS queue, bill AS own_bill FROM bills
), shared AS (
    -- All queues of a day without a bill of their own share the bill for the queue '*'.
    SELECT /*+ BROADCAST(own) */ used.*, coalesce(own_bill, '*') AS bill
    FROM used
    LEFT JOIN own USING (day, queue)
), billed AS (
    SELECT
        day, bill,
        coalesce(queue, bill) AS queue,
        coalesce(fairness_key, '*') AS fairness_key,
        coalesce(busy_us, 0) AS busy_us,
        coalesce(wasted_us, 0) AS wasted_us,
        -- Idle time is divided in proportion to worker time, to worker time of the busiest hour or
        -- to weights.
        coalesce(
            CASE :method WHEN 'usage' THEN busy_us WHEN 'peak' THEN peak_us ELSE reserved END, 0
        ) AS use,
        worker_us, bill_amount,
        coalesce(CAST(bill_amount * 1000000 AS bigint), 0) AS bill_millionths
    FROM shared
    FULL JOIN bills USING (day, bill)
), idle AS (
    -- Divide by largest remainder; ties by key. All numbers are integers, because a double would
    -- lose the last digits. The split is even where no row has a part.
    SELECT *,
        greatest(worker_us - sum(busy_us) OVER sharing, 0) AS idle_us,
        CAST(CASE WHEN sum(use) OVER sharing > 0 THEN use ELSE 1 END AS decimal(19, 0)) AS part
    FROM billed
    WINDOW sharing AS (PARTITION BY day, bill)
), idle_exact AS (
    SELECT *,
        CAST(idle_us AS decimal(19, 0)) * part AS exact,
        sum(part) OVER (PARTITION BY day, bill) AS parts
    FROM idle
), paid AS (
    SELECT *,
        (exact div parts) + CASE
            WHEN row_number() OVER largest_first <= idle_us - sum(exact div parts) OVER sharing
            THEN 1 ELSE 0
        END AS idle_allocated_us
    FROM idle_exact
    WINDOW
        sharing AS (PARTITION BY day, bill),
        largest_first AS (
            PARTITION BY day, bill ORDER BY exact % parts DESC, queue, fairness_key
        )
), due AS (
    SELECT * EXCEPT (part, exact, parts),
        CAST(
            CASE
                WHEN sum(busy_us + idle_allocated_us) OVER sharing > 0
                THEN busy_us + idle_allocated_us ELSE 1
            END AS decimal(19, 0)
        ) AS part
    FROM paid
    WINDOW sharing AS (PARTITION BY day, bill)
), due_exact AS (
    SELECT *,
        CAST(bill_millionths AS decimal(19, 0)) * part AS exact,
        sum(part) OVER (PARTITION BY day, bill) AS parts
    FROM due
), split AS (
    SELECT *,
        (exact div parts) + CASE
            WHEN row_number() OVER largest_first
                <= bill_millionths - sum(exact div parts) OVER sharing
            THEN 1 ELSE 0
        END AS millionths
    FROM due_exact
    WINDOW
        sharing AS (PARTITION BY day, bill),
        largest_first AS (
            PARTITION BY day, bill ORDER BY exact % parts DESC, queue, fairness_key
        )
)
SELECT
    day, queue, fairness_key, busy_us, wasted_us, idle_allocated_us,
    try_divide(CAST(bill_amount AS double) * 3600000000, worker_us) AS price,
    CAST(CAST(millionths AS decimal(24, 6)) / 1000000 AS decimal(18, 6)) AS amount,
    :method AS method
FROM split
