-- The tables of Fairlead in a PostgreSQL database. Every instant is in microseconds since 1970 UTC; the view
-- fairlead_history shows instants as timestamps.

-- Tasks ---------------------------------------------------------------------------------------------------------------

-- Gives the positions in the lanes (ready_seq).
CREATE SEQUENCE fairlead_ready_seq;

-- One row per unfinished task. A task that is DONE, FAILED or CANCELLED leaves this table.
--
-- No index has the state, version or node of a task, so a claim is a heap-only update; the fill factor leaves room for it
-- on the page. A claim never walks index entries of dead rows, even while an idle transaction keeps vacuum from them.
CREATE TABLE fairlead_tasks (
    id             uuid             PRIMARY KEY,  -- UUIDv7
    queue          text             NOT NULL,
    partition      smallint         NOT NULL,
    name           text             NOT NULL,
    state          text             NOT NULL,     -- WAITING, SUBMITTED, PROCESSING or ERROR
    version        integer          NOT NULL DEFAULT 1, -- raised by each change of state
    attempt        integer          NOT NULL DEFAULT 0, -- runs so far
    tries          integer          NOT NULL DEFAULT 0, -- runs that count against the retry policy
    priority       smallint         NOT NULL,
    fairness_key   text             NOT NULL,
    weight         double precision NOT NULL,
    ordering_key   text,
    unique_key     text,
    keep_result    boolean          NOT NULL,
    submitted_at   bigint           NOT NULL,
    run_at         bigint           NOT NULL,     -- earliest start of the next run
    ready_at       bigint,                        -- when the task last became SUBMITTED
    triggered_at   bigint,
    claimed_at     bigint,
    stuck_at       bigint,                        -- when a claimed task counts as stuck
    policy         smallint         NOT NULL DEFAULT 0, -- bits of the last claim: see `Claim.policy` in ports/task_store.py
    ready_seq      bigint           DEFAULT nextval('fairlead_ready_seq'),  -- position in the lane; NULL while WAITING or in ERROR
    due_at         bigint,                        -- run_at while WAITING, else NULL
    node           text,                          -- the node that has claimed the task
    trigger_path   text             NOT NULL DEFAULT 'hook',  -- hook, poller or heal: how the task was triggered last
    error_type     text,
    error_text     text,
    context        text,                          -- JSON object of strings, or NULL
    payload_format text             NOT NULL,
    payload        bytea            NOT NULL,
    order_at       bigint                         -- position among the tasks of the ordering key, see below
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- `order_at` is the run_at with which a task of an ordering key was submitted or rescheduled. No retry changes it. NULL
-- means that the order of its key does not apply to the task.

CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL;
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE ordering_key IS NOT NULL;

-- Results of finished tasks that were submitted with keep_result.
CREATE TABLE fairlead_results (
    task_id     uuid   PRIMARY KEY,
    finished_at bigint NOT NULL,
    result      bytea  NOT NULL                   -- JSON
);

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

-- Unique keys in use, one row per key of a queue. A second task with the same key is not inserted.
CREATE TABLE fairlead_unique_keys (
    queue        text   NOT NULL,
    unique_key   text   NOT NULL,
    task_id      uuid   NOT NULL,
    submitted_at bigint NOT NULL,
    PRIMARY KEY (queue, unique_key)
);

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (submitted_at);

-- Incidents: conditions that need a person, each delivered to `on_incident` at least once.
CREATE TABLE fairlead_incidents (
    id           bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never used twice
    kind         text    NOT NULL,                -- error, stuck, lane_unreadable, unserved_queue or blocked_loop
    subject      text    NOT NULL,                -- the id of the task; the lane, queue or node
    version      integer NOT NULL,                -- the version of the task; 0 without a task
    queue        text    NOT NULL,                -- empty: no single queue
    name         text    NOT NULL,                -- the name of the task; empty without a task
    since        bigint  NOT NULL,                -- when the condition began
    seen_at      bigint  NOT NULL,                -- when it was last reported
    details      text    NOT NULL,
    deliveries   integer NOT NULL DEFAULT 0,      -- calls of `on_incident` so far
    deliver_at   bigint  NOT NULL,                -- earliest next call
    delivered_at bigint,                          -- when a call had returned; NULL: not yet
    UNIQUE (kind, subject, version)
);

CREATE INDEX fairlead_incidents_undelivered ON fairlead_incidents (deliver_at, id) WHERE delivered_at IS NULL;

-- Queues and nodes ----------------------------------------------------------------------------------------------------

-- Queues that a node or a submitter has registered.
CREATE TABLE fairlead_queues (
    queue           text    PRIMARY KEY,
    partitions      integer NOT NULL,             -- the greatest number ever registered
    paused          boolean NOT NULL DEFAULT false,
    weights_version integer NOT NULL DEFAULT 0    -- raised by each change of weights or limits, so that nodes read them only then
);

-- Worker processes that are running, or that died and whose tasks were not resumed yet.
CREATE TABLE fairlead_nodes (
    node         text   PRIMARY KEY,
    started_at   bigint NOT NULL,
    heartbeat_at bigint NOT NULL,                 -- the last heartbeat
    queues       text   NOT NULL,                 -- JSON array of names
    names        text   NOT NULL                  -- JSON array of the task names that it has handlers for
);

-- Periodic tasks that a node has declared. Only a person removes a row.
CREATE TABLE fairlead_periodics (
    name          text    PRIMARY KEY,            -- the name of the task; the second declaration of a task adds #2
    task          text    NOT NULL,
    queue         text    NOT NULL,
    cron          text    NOT NULL,
    timezone      text    NOT NULL,
    catch_up      text    NOT NULL,               -- last, all or none
    paused        boolean NOT NULL DEFAULT false,
    version       bigint  NOT NULL DEFAULT 1,     -- raised by each change of the columns above and of passed_at
    registered_at bigint  NOT NULL,               -- the first declaration; no earlier slot runs
    passed_at     bigint  NOT NULL,               -- slots up to here are submitted, or skipped for good
    last_slot_at  bigint,                         -- the slot that was submitted last
    declared_at   bigint  NOT NULL,               -- when a living node last declared the periodic task
    declared_by   text    NOT NULL                -- this node
);

-- Leases of partitions and pollers.
CREATE TABLE fairlead_leases (
    name       text   PRIMARY KEY,
    owner      text   NOT NULL,                   -- a node; empty: the lease is free
    range_id   bigint NOT NULL,                   -- raised by each change of the owner
    expires_at bigint NOT NULL
);

-- Permit ledgers: how many permits of each cluster-wide limit a node holds; see core/limits/permits.py.
CREATE TABLE fairlead_permits (
    limit_name text   PRIMARY KEY,
    version    bigint NOT NULL,                   -- raised by each write; a write names the version it has read
    ledger     text   NOT NULL                    -- JSON
);

-- History -------------------------------------------------------------------------------------------------------------

-- One row per run of a task, or per end without a run. Append-only. A reader takes the rows with
-- xid < pg_snapshot_xmin(pg_current_snapshot()) in the order (xid, seq), and so misses no row that commits late.
CREATE TABLE fairlead_attempts (
    xid           xid8             NOT NULL DEFAULT pg_current_xact_id(),
    seq           bigint           GENERATED ALWAYS AS IDENTITY (CACHE 100),
    task_id       uuid             NOT NULL,
    attempt       integer          NOT NULL,
    tries         integer          NOT NULL,
    queue         text             NOT NULL,
    name          text             NOT NULL,
    partition     smallint         NOT NULL,
    priority      smallint         NOT NULL,
    fairness_key  text             NOT NULL,
    weight        double precision NOT NULL,
    ordering_key  text,
    unique_key    text,
    version       integer          NOT NULL,
    submitted_at  bigint           NOT NULL,
    run_at        bigint           NOT NULL,
    ready_at      bigint,
    triggered_at  bigint,
    claimed_at    bigint,
    started_at    bigint,
    finished_at   bigint           NOT NULL,
    outcome       text             NOT NULL,      -- done, retried, failed, timed_out, snoozed, cancelled or lost
    next_state    text             NOT NULL,      -- the state of the task from then on
    error_type    text,
    error_text    text,
    node          text,
    trigger_path  text             NOT NULL,
    payload_bytes integer          NOT NULL,
    PRIMARY KEY (xid, seq)
);

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

-- The attempts for people, with instants as timestamps.
CREATE VIEW fairlead_history AS
SELECT task_id, attempt, queue, name, fairness_key, outcome, next_state, node,
       to_timestamp(submitted_at / 1e6) AS submitted_at,
       to_timestamp(started_at / 1e6) AS started_at,
       to_timestamp(finished_at / 1e6) AS finished_at,
       error_type, error_text
  FROM fairlead_attempts;

-- One row per change that a person, or a program for a person, made to a task outside its runs. Append-only; read in the
-- same order as the attempts.
CREATE TABLE fairlead_events (
    xid          xid8             NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint           GENERATED ALWAYS AS IDENTITY,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,       -- the version of the task before the change
    kind         text             NOT NULL,       -- resumed, rescheduled, cancelled or marked_failed
    at           bigint           NOT NULL,
    queue        text             NOT NULL,
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    priority     smallint         NOT NULL,
    run_at       bigint           NOT NULL,       -- earliest start of the next run after the change
    actor        text,                            -- who made the change; NULL: a program
    details      text,                            -- JSON object, or NULL
    PRIMARY KEY (xid, seq)
);

-- Readers of the history. Rows that one of them has not read are not cleaned. A reader has read everything up to
-- (xid, seq).
CREATE TABLE fairlead_readers (
    name        text   PRIMARY KEY,
    kind        text   NOT NULL,                  -- lake, stream or events, see below
    xid         bigint NOT NULL,
    seq         bigint NOT NULL,
    checked_xid bigint,                           -- of a lake: up to here it was compared with this store and agreed
    checked_seq bigint,
    updated_at  bigint NOT NULL,                  -- when the reader last reported its position
    checked_at  bigint                            -- when the lake was last compared
);

-- Attempts are kept for a `lake` until they are checked, and for a `stream` until they are read. Events are kept for
-- `events` until they are read.

-- The identity of this store, in one row: tells its rows from those of another store after an export.
CREATE TABLE fairlead_store (
    store_id text NOT NULL
);

INSERT INTO fairlead_store (store_id) VALUES (gen_random_uuid()::text);

-- Fair queues ---------------------------------------------------------------------------------------------------------

-- Fences of the backlogs, one row per owned partition. A write with another range id is refused.
CREATE TABLE fairlead_backlog_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    PRIMARY KEY (queue, partition)
);

-- Records of the lanes, for their next owner.
CREATE TABLE fairlead_backlog_lanes (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    priority  smallint NOT NULL,
    record    text     NOT NULL,                  -- JSON: levels A, R and M, virtual time, position in the channel, next passes
    PRIMARY KEY (queue, partition, priority)
) WITH (fillfactor = 50);

-- Triggers that do not fit in memory, ordered by level. They are written, read and deleted by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    priority     smallint         NOT NULL,
    pass         bigint           NOT NULL,       -- the level is (pass, id)
    id           bigint           NOT NULL,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,       -- the version at which the task may be claimed
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    ordering_key text,
    seq          bigint           NOT NULL,       -- position in the channel
    order_at     bigint           NOT NULL,       -- position among the tasks of the ordering key; 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Finds out whether a trigger that the channel brings again has a level. Task ids ascend in time, so the index grows at
-- its end.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);

-- Weights of fairness keys that were set at run time.
CREATE TABLE fairlead_weights (
    queue        text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,       -- replaces the weights of the tasks
    policy       bigint,                          -- version that computed the weight; NULL: a person set it, and no policy changes it
    PRIMARY KEY (queue, fairness_key)
);

-- Limits of fairness keys in the active policy. Limits in the code apply as well.
CREATE TABLE fairlead_limits (
    queue        text    NOT NULL,
    fairness_key text    NOT NULL,
    slots        integer NOT NULL CHECK (slots >= 1), -- slots of each node that the key may hold at once
    policy       bigint  NOT NULL,                -- version that computed the limit
    PRIMARY KEY (queue, fairness_key)
);

-- Policies: weights and limits computed from the history and published within guard rails, one row per version.
CREATE TABLE fairlead_policies (
    version       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue         text    NOT NULL,
    author        text    NOT NULL,
    why           text    NOT NULL,               -- the purpose, such as an objective or a rollback
    computed_at   bigint  NOT NULL,
    input_from    bigint,                         -- the history that was used: from here
    input_to      bigint,                         -- to here
    input_rows    bigint  NOT NULL,
    raw           text    NOT NULL,               -- JSON, by fairness key: weight as computed
    guarded       text    NOT NULL,               -- JSON, by fairness key: weight as published
    reasons       text    NOT NULL,               -- JSON, by fairness key: reason for the weight
    due           text    NOT NULL,               -- JSON, by fairness key: share of the worker time it is entitled to
    raw_limits    text    NOT NULL,               -- JSON, by fairness key: slots of each node as computed
    limits        text    NOT NULL,               -- JSON, by fairness key: slots of each node as published
    limit_reasons text    NOT NULL,               -- JSON, by fairness key: reason for the limit
    is_canary     boolean NOT NULL,
    state         text    NOT NULL,               -- active, superseded or rolled_back
    supersedes    bigint,                         -- the version that was active before
    judged_at     bigint,                         -- end of the canary window; NULL: it has not ended
    verdict       text
);

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- At most one version of a queue is active, so two writers cannot both publish.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- Kill switches of the policies of a queue, or of all queues ('').
CREATE TABLE fairlead_policy_switches (
    queue  text   PRIMARY KEY,
    mode   text   NOT NULL,                       -- off: declared weights apply; frozen: nothing is published
    author text   NOT NULL,
    why    text   NOT NULL,
    at     bigint NOT NULL
);

-- Ordered queues ------------------------------------------------------------------------------------------------------

-- Entries of the log, in the order of submit. An entry is deleted when it is in the schedule, so an entry that commits
-- late is not passed over.
CREATE TABLE fairlead_task_log (
    seq       bigint   GENERATED ALWAYS AS IDENTITY,
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    message   text     NOT NULL,                  -- JSON: a task to submit, or a key to drop
    PRIMARY KEY (queue, partition, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Fences of the schedules, one row per owned partition. A write with another range id is refused.
CREATE TABLE fairlead_schedule_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    record    text     NOT NULL,                  -- JSON: the low-water mark, below which all is completed; the owner's report
    PRIMARY KEY (queue, partition)
) WITH (fillfactor = 50);

-- Unfinished tasks, by their key (run_at, ordering_key, unique_key). The hour bucket of a task is run_at / 3600000000.
-- Texts are compared by code point, as the engine compares them.
CREATE TABLE fairlead_schedule (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,       -- earliest start as submitted; no retry changes it
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    id           uuid             NOT NULL,       -- UUIDv7
    task         text             NOT NULL,       -- JSON
    attempt      integer          NOT NULL DEFAULT 0, -- runs so far
    tries        integer          NOT NULL DEFAULT 0, -- runs that count against the retry policy
    retry_at     bigint,                          -- earliest start of the next run after a failed one
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Finds the tasks of an ordering key that were passed over while memory was full.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key);

-- Keys of completed tasks. A second task with the same key is not run.
CREATE TABLE fairlead_completions (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    finished_at  bigint           NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
);

-- Bulk submit ---------------------------------------------------------------------------------------------------------

-- Jobs that submit many tasks. The submitter names the job, so a repeat changes nothing.
CREATE TABLE fairlead_bulk_jobs (
    submission_id     text    PRIMARY KEY,
    number            bigint  GENERATED ALWAYS AS IDENTITY,  -- short name of the job in the stage
    epoch             text    NOT NULL,           -- of the run that may publish; a later run takes over with its own epoch
    state             text    NOT NULL,           -- open, publishing (chunked: some chunks are published), committed, aborted
    publish           text    NOT NULL,           -- atomic or chunked
    opened_at         bigint  NOT NULL,           -- when that run began
    touched_at        bigint  NOT NULL,           -- when the job was last changed
    parts             text,                       -- JSON: the parts to publish; NULL before publishing begins
    staged            bigint  NOT NULL DEFAULT 0, -- rows of these parts
    published_through bigint  NOT NULL DEFAULT 0, -- rows handled so far, in order
    inserted          bigint  NOT NULL DEFAULT 0,
    duplicates        bigint  NOT NULL DEFAULT 0, -- rows not inserted because their unique key was in use
    rejected          bigint  NOT NULL DEFAULT 0,
    swept             boolean NOT NULL DEFAULT false -- the stage has no rows of the job any more
);

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (touched_at);

-- Staged rows; each attempt (one run of one Spark task) writes its rows in one transaction. The table is logged, because a
-- job that is published in chunks must survive a crash of the server between two chunks.
CREATE TABLE fairlead_bulk_stage (
    job            bigint           NOT NULL,     -- fairlead_bulk_jobs.number
    attempt        uuid             NOT NULL,
    ordinal        bigint           NOT NULL,     -- from 0, without gaps
    id             uuid             NOT NULL,
    partition      smallint         NOT NULL,
    priority       smallint         NOT NULL,
    weight         double precision NOT NULL,
    keep_result    boolean          NOT NULL,
    queue          text             NOT NULL,
    name           text             NOT NULL,
    fairness_key   text             NOT NULL,
    ordering_key   text,
    unique_key     text,
    run_at         bigint,                        -- NULL: at once
    context        text,
    payload_format text             NOT NULL,
    payload        bytea            NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_bulk_stage_order ON fairlead_bulk_stage (job, attempt, ordinal);

-- Rows that were refused under on_error = quarantine.
CREATE TABLE fairlead_bulk_rejects (
    submission_id text    NOT NULL,
    attempt       uuid    NOT NULL,               -- one run of one Spark task
    part          integer NOT NULL,               -- partition of the DataFrame
    ordinal       bigint  NOT NULL,               -- row of that partition, from 0
    column_name   text    NOT NULL,
    reason        text    NOT NULL,
    value         text    NOT NULL,               -- the first characters of the refused value
    published     boolean NOT NULL DEFAULT false, -- false: of a failed attempt, or of a job that is not published yet
    PRIMARY KEY (submission_id, attempt, ordinal)
);
