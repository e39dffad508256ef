-- Ordered queues: the log that takes their tasks in, the schedule of what has not ended, and the keys that are completed.

-- A row is an entry; it is deleted when it is in the schedule.
CREATE TABLE fairlead_task_log (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    message   TEXT    NOT NULL                    -- JSON: a task to submit, or a key to drop
) STRICT;

CREATE INDEX fairlead_task_log_place ON fairlead_task_log (queue, partition, seq);

-- One row per owned partition: who writes must know its range id.
CREATE TABLE fairlead_schedule_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: the floor, below which all is completed; what its owner says
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

-- The key of a task is (run_at, ordering_key, unique_key). Its hour bucket is run_at / 3600000000: here the key says that.
CREATE TABLE fairlead_schedule (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,                -- earliest start, as submitted: no retry changes it
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    id           TEXT    NOT NULL,                -- UUIDv7
    task         TEXT    NOT NULL,                -- JSON
    attempt      INTEGER NOT NULL DEFAULT 0,      -- runs so far
    tries        INTEGER NOT NULL DEFAULT 0,      -- runs spent against the retry policy
    retry_at     INTEGER,                         -- earliest start of the next run, after one that failed
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;

-- What was left behind of an ordering key while memory was full.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key);

CREATE TABLE fairlead_completions (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    finished_at  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;
