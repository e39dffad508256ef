-- table: gold.fairness
-- doc: evenness of a queue's service to its keys in a window; a 'backlogged key' has waiting tasks
--   throughout the window
-- key: window_start, window_s, queue
-- partition: date of window_start
-- columns:
--   window_start  timestamp start of the window
--   window_s      int       length of the window in seconds: 60, 3600, or 86400 for a day (UTC)
--   queue         string    queue of the tasks
--   jain          double?   Jain's index of busy_us / entitled_us over the backlogged keys with an
--                           entitlement, from 1/n (one key has all) to 1 (even); null with fewer
--                           than 2 keys
--   n_keys        int       number of backlogged keys
--   max_min_ratio double?   greatest / least busy_us / entitled_us of the backlogged keys with an
--                           entitlement; null with fewer than 2 keys, or if one key got nothing
--   max_lag_us    bigint    greatest lag_us of any key of the queue
--   max_lag_key   string    key that has max_lag_us
--   sfq_gap       double?   greatest minus least busy_us / weight of backlogged keys; null with
--                           fewer than 2 keys
--   sfq_bound     double?   bound on sfq_gap under start-time fair queueing by worker time: sum of
--                           the two largest longest_run_us / weight, where longest_run_us is that
--                           of the day
--   bound_ok      boolean?  whether sfq_gap <= sfq_bound
--   claim_gap     double?   greatest minus least claims / weight of backlogged keys; null with
--                           fewer than 2 keys
--   claim_bound   double?   bound on claim_gap: sum of the two largest 1 / weight
--   starved_keys  int       number of keys that were starved in some minute of the window; see
--                           gold.tenant_share
--   noisy_key     string?   key that has noisy_score; null if no key with an entitlement had at
--                           least a tenth of the service
--   noisy_score   double?   greatest ratio of a key's share of service to its share of entitlement,
--                           over keys with at least a tenth of the service
WITH keys AS (
    SELECT *,
        CASE WHEN throughout THEN try_divide(busy_us, entitled_us) END AS got,
        CASE WHEN throughout THEN busy_us / weight END AS service,
        CASE WHEN throughout THEN claimed / weight END AS claims,
        CASE WHEN throughout THEN longest_run_us / weight END AS longest,
        CASE WHEN throughout THEN 1 / weight END AS stride,
        CASE
            WHEN share >= 0.1 AND entitled_us > 0
            THEN struct(try_divide(share, entitled_us) AS score, fairness_key)
        END AS noise
    FROM gold_tenant_share
), summed AS (
    SELECT
        window_start, window_s, queue,
        count(got) AS compared,
        -- Jain, Chiu and Hawe 1984: (sum x)^2 / (n sum x^2).
        try_divide(sum(got) * sum(got), count(got) * sum(got * got)) AS jain,
        CAST(count_if(throughout) AS int) AS n_keys,
        try_divide(max(got), min(got)) AS max_min_ratio,
        max(struct(lag_us, fairness_key)) AS behind,
        CASE WHEN count(service) >= 2 THEN max(service) - min(service) END AS sfq_gap,
        sort_array(collect_list(longest), false) AS longest,
        CASE WHEN count(claims) >= 2 THEN max(claims) - min(claims) END AS claim_gap,
        sort_array(collect_list(stride), false) AS strides,
        CAST(count_if(starved) AS int) AS starved_keys,
        max(noise) AS noisiest,
        sum(entitled_us) AS entitled_us
    FROM keys
    GROUP BY window_start, window_s, queue
)
SELECT
    window_start, window_s, queue,
    -- The index is 1 when every key got nothing. Rounding can put an even split just above 1.
    CASE WHEN compared >= 2 THEN least(coalesce(jain, 1), 1) END AS jain,
    n_keys,
    CASE WHEN compared >= 2 THEN max_min_ratio END AS max_min_ratio,
    behind.lag_us AS max_lag_us,
    behind.fairness_key AS max_lag_key,
    sfq_gap,
    get(longest, 0) + get(longest, 1) AS sfq_bound,
    sfq_gap <= sfq_bound AS bound_ok,
    claim_gap,
    get(strides, 0) + get(strides, 1) AS claim_bound,
    starved_keys,
    noisiest.fairness_key AS noisy_key,
    noisiest.score * entitled_us AS noisy_score
FROM summed
