-- Statements of a node behind a pooler in transaction mode, which cannot listen.

-- name: changes
-- Returns the last position given to a task, the oldest open transaction, the next transaction, the number of changes of
-- leases and queues, and the earliest time of a waiting task, by the statement in place of NEXT_DUE.
SELECT CASE WHEN positions.is_called THEN positions.last_value ELSE 0 END, pg_snapshot_xmin(seen)::text::bigint, pg_snapshot_xmax(seen)::text::bigint,
       (SELECT coalesce(sum(number), 0) FROM fairlead_changes)::bigint,
       (NEXT_DUE)
  FROM fairlead_ready_seq AS positions, pg_current_snapshot() AS seen

-- name: lanes_above
-- $1: low-water marks of lanes, $2: position. The statement that finds lanes is in place of LANES. The order, in place of EXISTS, keeps
-- the planner from a read of all tasks above the position, which SELECT hides.
SELECT queue, partition, priority
  FROM (LANES) AS lane
 WHERE (SELECT t.ready_seq FROM fairlead_tasks t
         WHERE t.state = 'SUBMITTED' AND t.queue = lane.queue AND t.partition = lane.partition
           AND t.priority = lane.priority AND t.ready_seq > (SELECT $2::bigint)
         ORDER BY t.ready_seq LIMIT 1) IS NOT NULL
