-- The tables of levels in a SQLite file, beside those of the migrations, for an application whose fair queues keep levels
-- there.

-- Fences of the backlogs: the range id of each partition's present owner. A write with another range id is refused.
CREATE TABLE fairlead_backlog_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

-- Saved state of the lanes, which the next owner of a partition loads.
CREATE TABLE fairlead_backlog_lanes (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: ack, read and max level, position in the channel, next pass by tenant
    PRIMARY KEY (queue, partition, priority)
) STRICT, WITHOUT ROWID;

-- Triggers that do not fit in memory, ordered by level. They are written, read and deleted by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    pass         INTEGER NOT NULL,                -- first part of the level (pass, id)
    id           INTEGER NOT NULL,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,                -- version of the task that the trigger may claim
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    ordering_key TEXT,
    seq          INTEGER NOT NULL,                -- position in the channel
    order_at     INTEGER NOT NULL,                -- position among the tasks of the ordering key; 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) STRICT, WITHOUT ROWID;

-- Index by which an owner finds the level of a trigger that the channel delivers again. Task ids ascend in time, so new
-- entries are at the end of the index.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);
