-- Ordered queues: the log that takes their tasks in, the schedule of what has not ended, and the keys that are completed.

-- A row is an entry; it is deleted when it is in the schedule. So one that commits late is not passed over.
CREATE TABLE fairlead_task_log (
    seq       bigint   GENERATED ALWAYS AS IDENTITY,
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    message   text     NOT NULL,                  -- JSON: a task to submit, or a key to drop
    PRIMARY KEY (queue, partition, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- One row per owned partition: who writes must know its range id.
CREATE TABLE fairlead_schedule_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    record    text     NOT NULL,                  -- JSON: the floor, below which all is completed; what its owner says
    PRIMARY KEY (queue, partition)
) WITH (fillfactor = 50);

-- The key of a task is (run_at, ordering_key, unique_key). Its hour bucket is run_at / 3600000000: here the key says that.
-- Texts are compared by code point, as the engine does it.
CREATE TABLE fairlead_schedule (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,       -- earliest start, as submitted: no retry changes it
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    id           uuid             NOT NULL,
    task         text             NOT NULL,       -- JSON
    attempt      integer          NOT NULL DEFAULT 0, -- runs so far
    tries        integer          NOT NULL DEFAULT 0, -- runs spent against the retry policy
    retry_at     bigint,                          -- earliest start of the next run, after one that failed
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What was left behind of an ordering key while memory was full.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key);

CREATE TABLE fairlead_completions (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    finished_at  bigint           NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
);
