-- Fair queues: the backlogs of their lanes, weights set at run time; and the order of an ordering key.

-- One row per owned partition: who writes must know its range id.
CREATE TABLE fairlead_backlog_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    PRIMARY KEY (queue, partition)
);

CREATE TABLE fairlead_backlog_lanes (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    priority  smallint NOT NULL,
    record    text     NOT NULL,                  -- JSON: A, R and M, virtual time, place in the channel, next passes
    PRIMARY KEY (queue, partition, priority)
) WITH (fillfactor = 50);

-- Rows come and go by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    priority     smallint         NOT NULL,
    pass         bigint           NOT NULL,       -- the level is (pass, id)
    id           bigint           NOT NULL,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    ordering_key text,
    seq          bigint           NOT NULL,       -- place in the channel
    order_at     bigint           NOT NULL,       -- place among the tasks of its ordering key, 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- For what a second look at the channel brings: has it a level? Ids ascend in time, so it grows at its end.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);

CREATE TABLE fairlead_weights (
    queue        text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,       -- counts instead of the tasks' own
    PRIMARY KEY (queue, fairness_key)
);

-- Raised by each change of its weights, so that nodes read them only then.
ALTER TABLE fairlead_queues ADD COLUMN weights_version integer NOT NULL DEFAULT 0;

-- The run_at a task of an ordering key was submitted or rescheduled with: its place among the tasks of the key, which no
-- retry changes. NULL when it stands outside the order.
ALTER TABLE fairlead_tasks ADD COLUMN order_at bigint;
UPDATE fairlead_tasks SET order_at = run_at WHERE ordering_key IS NOT NULL;
DROP INDEX fairlead_tasks_order;
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE ordering_key IS NOT NULL;
