-- The tables of levels in a PostgreSQL database, beside those of the migrations, for an application whose fair queues keep levels
-- there.

-- Fences of the backlogs: the range id of each partition's present owner. A write with another range id is refused.
CREATE TABLE fairlead_backlog_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    PRIMARY KEY (queue, partition)
);

-- Saved state of the lanes, one row each, which the next owner of a partition loads. A write gives its row a new number, and
-- begins at the last number known, so that it reads no replaced rows beside a transaction that stays open.
CREATE TABLE fairlead_backlog_lanes (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    priority  smallint NOT NULL,
    number    bigint   NOT NULL,                  -- incremented by each write
    record    text     NOT NULL,                  -- JSON: ack, read and max level, position in the channel, next pass by tenant
    PRIMARY KEY (queue, partition, priority, number)
) WITH (vacuum_truncate = off);

-- Triggers that do not fit in memory, ordered by level. They are written, read and deleted by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    priority     smallint         NOT NULL,
    pass         bigint           NOT NULL,       -- first part of the level (pass, id)
    id           bigint           NOT NULL,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,       -- version of the task that the trigger may claim
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    ordering_key text,
    seq          bigint           NOT NULL,       -- position in the channel
    order_at     bigint           NOT NULL,       -- position among the tasks of the ordering key; 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- Index by which an owner finds the level of a trigger that the channel delivers again. Task ids ascend in time, so new
-- entries are at the end of the index.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);

-- Room, as in 0001_schema.sql.

INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name, fairness_key, weight, seq, order_at)
SELECT 'room', 0, 0, 0, n, gen_random_uuid(), 0, '', repeat('-', 1700), 1, 0, 0 FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_backlog WHERE queue = 'room';

INSERT INTO fairlead_backlog_lanes (queue, partition, priority, number, record)
SELECT 'room', 0, 0, n, repeat('-', 1700) FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_backlog_lanes WHERE queue = 'room';
