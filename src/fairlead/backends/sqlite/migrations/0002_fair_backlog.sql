-- Fair queues: the backlogs of their lanes, weights set at run time; and the order of an ordering key.

-- One row per owned partition: who writes must know its range id.
CREATE TABLE fairlead_backlog_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE fairlead_backlog_lanes (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: A, R and M, virtual time, place in the channel, next passes
    PRIMARY KEY (queue, partition, priority)
) STRICT, WITHOUT ROWID;

-- Rows come and go by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    pass         INTEGER NOT NULL,                -- the level is (pass, id)
    id           INTEGER NOT NULL,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    ordering_key TEXT,
    seq          INTEGER NOT NULL,                -- place in the channel
    order_at     INTEGER NOT NULL,                -- place among the tasks of its ordering key, 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) STRICT, WITHOUT ROWID;

-- For what a second look at the channel brings: has it a level? Ids ascend in time, so it grows at its end.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);

CREATE TABLE fairlead_weights (
    queue        TEXT NOT NULL,
    fairness_key TEXT NOT NULL,
    weight       REAL NOT NULL,                   -- counts instead of the tasks' own
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;

-- Raised by each change of its weights, so that nodes read them only then.
ALTER TABLE fairlead_queues ADD COLUMN weights_version INTEGER NOT NULL DEFAULT 0;

-- The run_at a task of an ordering key was submitted or rescheduled with: its place among the tasks of the key, which no
-- retry changes. NULL when it stands outside the order.
ALTER TABLE fairlead_tasks ADD COLUMN order_at INTEGER;
UPDATE fairlead_tasks SET order_at = run_at WHERE ordering_key IS NOT NULL;
DROP INDEX fairlead_tasks_order;
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE ordering_key IS NOT NULL;
