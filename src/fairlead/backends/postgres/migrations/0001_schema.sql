-- The tables of Fairlead in a PostgreSQL database. Every instant is in microseconds since 1970 UTC; the view
-- fairlead_history shows instants as timestamps.

-- Tasks ---------------------------------------------------------------------------------------------------------------

-- Source of ready_seq, the positions of tasks in their lanes.
CREATE SEQUENCE fairlead_ready_seq;

-- One row per unfinished task. The row is deleted when the task is DONE, FAILED or CANCELLED.
--
-- No index contains the state, version or node of a task, so a claim is a heap-only update, and the fill factor leaves
-- room for the new row on the page. A claim never reads index entries of dead rows, even while an idle transaction keeps
-- vacuum from removing these rows.
CREATE TABLE fairlead_tasks (
    id             uuid             PRIMARY KEY,  -- UUIDv7
    queue          text             NOT NULL,
    partition      smallint         NOT NULL,
    name           text             NOT NULL,
    state          text             NOT NULL,     -- WAITING, SUBMITTED, PROCESSING or ERROR
    version        integer          NOT NULL DEFAULT 1, -- incremented by each change of state
    attempt        integer          NOT NULL DEFAULT 0, -- number of runs so far
    tries          integer          NOT NULL DEFAULT 0, -- number of runs that count against the retry policy
    priority       smallint         NOT NULL,
    fairness_key   text             NOT NULL,
    weight         double precision NOT NULL,
    ordering_key   text,
    unique_key     text,
    keep_result    boolean          NOT NULL,
    submitted_at   bigint           NOT NULL,
    run_at         bigint           NOT NULL,     -- earliest start of the next run
    ready_at       bigint,                        -- time at which the task last became SUBMITTED
    triggered_at   bigint,
    claimed_at     bigint,
    stuck_at       bigint,                        -- time after which a claimed task is stuck
    policy         smallint         NOT NULL DEFAULT 0, -- treatment of the task if it gets stuck or ends in ERROR; see `Claim.policy` in ports/task_store.py
    ready_seq      bigint           DEFAULT nextval('fairlead_ready_seq'),  -- position in the lane; NULL while WAITING or in ERROR
    due_at         bigint,                        -- run_at while WAITING, else NULL
    due_seq        bigint,                        -- position of the last change of due_at other than to NULL; NULL as due_at
    node           text,                          -- node that has claimed the task
    trigger_path   text             NOT NULL DEFAULT 'hook',  -- way of the last trigger: hook, poller, heal, spill or grant; see TriggerPath in model/states.py
    error_type     text,
    error_text     text,
    context        text,                          -- JSON object of strings, or NULL
    tags           text             NOT NULL DEFAULT '', -- by which people find the task
    payload_format text             NOT NULL,
    payload        bytea            NOT NULL,
    checkpoint     bytea,                         -- JSON that a run stored for the next one
    order_at       bigint,                        -- position among the tasks of the ordering key; see below
    order_seq      bigint           DEFAULT nextval('fairlead_ready_seq')  -- position of the last change of order_at other than to NULL
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- For a task with an ordering key, `order_at` is the run_at of its submission, or of its last rescheduling before its
-- first run. A retry does not change `order_at`. NULL means that the task is not bound by the order of its key.

CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL;
-- Index by which the owner of a long lane reads the tasks of each fairness key. Tasks without a key have no entry. The
-- expression keeps the planner from the index above, which it would take for a lane that it expects to be short.
CREATE INDEX fairlead_tasks_key ON fairlead_tasks (queue, partition, priority, fairness_key, ready_seq)
 WHERE coalesce(ready_seq, 0) > 0 AND fairness_key <> '';
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (due_at, id) WHERE due_at IS NOT NULL;
-- The waiting tasks as they came (see low_water.py). The expression keeps the planner from the index above.
CREATE INDEX fairlead_tasks_due_arrival ON fairlead_tasks (due_seq, coalesce(due_at, 0)) WHERE due_seq IS NOT NULL;
-- Indexes of the tasks with an ordering key. Each has a condition of its own, so that the planner cannot take one for another:
-- the tasks that the order binds, in their order; those that left the order; and all of them as they came (see low_water.py).
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE order_at IS NOT NULL;
CREATE INDEX fairlead_tasks_unordered ON fairlead_tasks (queue, ordering_key) WHERE ordering_key IS NOT NULL AND order_at IS NULL;
CREATE INDEX fairlead_tasks_arrival ON fairlead_tasks (queue, ordering_key, order_seq) WHERE order_seq IS NOT NULL;

-- Results of finished tasks that were submitted with keep_result.
CREATE TABLE fairlead_results (
    task_id     uuid   PRIMARY KEY,
    finished_at bigint NOT NULL,
    result      bytea  NOT NULL                   -- JSON
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

-- Notes of runs that reported progress or kept log lines, one row per run. No index contains the progress, so a report is
-- a heap-only update, and the fill factor leaves room for it.
CREATE TABLE fairlead_run_notes (
    task_id     uuid             NOT NULL,
    attempt     integer          NOT NULL,
    began_at    bigint           NOT NULL,        -- time of the first note; never changed
    done        double precision,                 -- last progress; this and the next three are NULL without any
    total       double precision,
    note        text,
    reported_at bigint,
    lines       text,                             -- JSON array of [at, level, logger, text]; NULL until the run has ended
    dropped     integer          NOT NULL DEFAULT 0, -- number of lines that were not kept
    PRIMARY KEY (task_id, attempt)
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_run_notes_age ON fairlead_run_notes (began_at);

-- Unique keys in use, one row per key of a queue. A second task with a key in use is not inserted.
CREATE TABLE fairlead_unique_keys (
    queue        text    NOT NULL,
    unique_key   text    NOT NULL,
    task_id      uuid    NOT NULL,
    kept_until   bigint,                          -- time from which the key is free, if its task has ended; NULL: at its end
    is_ended     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (queue, unique_key)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (kept_until) WHERE is_ended;

-- Whatever deletes the row of a task frees its key. The body has no line that ends with a semicolon, which would end the
-- statement in this file.
CREATE FUNCTION fairlead_free_key() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM fairlead_unique_keys
     WHERE queue = OLD.queue AND unique_key = OLD.unique_key AND task_id = OLD.id AND kept_until IS NULL; -- the usual case
    IF NOT FOUND THEN
        UPDATE fairlead_unique_keys  -- no earlier than now, so that the cleaning need not look back
           SET is_ended = true, kept_until = greatest(kept_until, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
         WHERE queue = OLD.queue AND unique_key = OLD.unique_key AND task_id = OLD.id; END IF; RETURN NULL; END $$;

CREATE TRIGGER fairlead_free_key AFTER DELETE ON fairlead_tasks FOR EACH ROW WHEN (OLD.unique_key IS NOT NULL)
EXECUTE FUNCTION fairlead_free_key();

-- Incidents: conditions that need an operator. Each incident is delivered to `on_incident` at least once.
CREATE TABLE fairlead_incidents (
    id           bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never reused
    kind         text    NOT NULL,                -- one of the kinds in model/incident.py
    subject      text    NOT NULL,                -- id of the task, or name of the lane, queue or node
    version      integer NOT NULL,                -- version of the task; 0 without a task
    queue        text    NOT NULL,                -- empty if the incident is not about one queue
    name         text    NOT NULL,                -- name of the task; empty without a task
    since        bigint  NOT NULL,                -- time at which the condition began
    seen_at      bigint  NOT NULL,                -- time of the last report
    details      text    NOT NULL,
    deliveries   integer NOT NULL DEFAULT 0,      -- number of calls of `on_incident` so far
    deliver_at   bigint  NOT NULL,                -- earliest time of the next call
    delivered_at bigint,                          -- time at which a call returned; NULL: none has returned
    UNIQUE (kind, subject, version)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_incidents_undelivered ON fairlead_incidents (deliver_at, id) WHERE delivered_at IS NULL;

-- Queues and nodes ----------------------------------------------------------------------------------------------------

-- Queues that a node or a submitter has registered.
CREATE TABLE fairlead_queues (
    queue           text    PRIMARY KEY,
    partitions      integer NOT NULL,             -- greatest number ever registered
    paused          boolean NOT NULL DEFAULT false,
    version         integer NOT NULL DEFAULT 0    -- incremented by each change of the queue's settings, weights or limits
);

-- Worker processes that are running, and dead ones whose tasks are not yet resumed.
CREATE TABLE fairlead_nodes (
    node         text   PRIMARY KEY,
    started_at   bigint NOT NULL,
    queues       text   NOT NULL,                 -- JSON array of names
    names        text   NOT NULL,                 -- JSON array of the names of tasks for which the node has handlers
    digest       text   NOT NULL,                 -- hash of queues and names
    slots        integer NOT NULL,                -- runs at once
    version      text    NOT NULL,                -- version of Fairlead
    python       text    NOT NULL                 -- version of Python
);

-- Last heartbeats of these nodes, one row each. They have a table of their own because each claim looks for its node, and
-- would read the replaced rows of all heartbeats beside a transaction that stays open. The key has the heartbeat too, so that
-- a search begins at the last one known.
CREATE TABLE fairlead_heartbeats (
    node         text   NOT NULL,
    heartbeat_at bigint NOT NULL,
    locked_on    bigint,                          -- start of the server if the node held its lock then, else NULL
    PRIMARY KEY (node, heartbeat_at)
) WITH (vacuum_truncate = off);

-- Tasks that each node held at its last heartbeat, one row per node, because no index has the state of a task.
CREATE TABLE fairlead_running (
    node  text PRIMARY KEY,
    tasks text NOT NULL                           -- JSON array of ids, the oldest claim first, at most 1,000
) WITH (vacuum_truncate = off);

-- Periodic tasks that nodes have declared, one row each. Each time at which one is to run is a slot. A row is deleted only by
-- an operator's command.
CREATE TABLE fairlead_periodics (
    name          text    PRIMARY KEY,            -- name of the task; its second declaration is named with the suffix #2
    task          text    NOT NULL,
    queue         text    NOT NULL,
    cron          text    NOT NULL,
    timezone      text    NOT NULL,
    catch_up      text    NOT NULL,               -- last, all or none
    paused        boolean NOT NULL DEFAULT false,
    version       bigint  NOT NULL DEFAULT 1,     -- incremented by each change of the columns from task on and of passed_at
    registered_at bigint  NOT NULL,               -- time of the first declaration; slots before it do not run
    passed_at     bigint  NOT NULL,               -- every slot up to this time is submitted or skipped
    last_slot_at  bigint,                         -- time of the last slot that was submitted
    declared_at   bigint  NOT NULL,               -- time of the last declaration by a running node
    declared_by   text    NOT NULL                -- node of the last declaration
) WITH (vacuum_truncate = off);

-- Leases of partitions and pollers. A lease ends when its holder expires.
CREATE TABLE fairlead_leases (
    name     text   PRIMARY KEY,
    owner    text   NOT NULL,                    -- node that holds the lease; empty: the lease is free
    range_id bigint NOT NULL,                    -- incremented by each change of the owner
    changed  bigint NOT NULL                     -- number of the lease's last change, from fairlead_changes
);

CREATE INDEX fairlead_leases_changed ON fairlead_leases (changed);

-- Nodes that hold leases, one row each. Replaced rows have expired, so searches by `expires_at` pass few of them.
CREATE TABLE fairlead_holders (
    owner      text   NOT NULL,
    expires_at bigint NOT NULL,                  -- every lease of the node ends then, unless the node renews them
    PRIMARY KEY (owner, expires_at)
) WITH (vacuum_truncate = off);

CREATE INDEX fairlead_holders_expiry ON fairlead_holders (expires_at);

-- Counters of changes, so that a node reads leases and queues again only if they changed.
CREATE TABLE fairlead_changes (
    kind   text   PRIMARY KEY,                   -- leases or queues
    number bigint NOT NULL                       -- incremented by each transaction that changes rows of this kind
);

-- Permit ledgers: the number of permits that each node holds of a cluster-wide limit; see core/limits/permits.py and
-- sharded_permits.py. One row of each shard has its present version, another one has version 0.
CREATE TABLE fairlead_permits (
    limit_name text   NOT NULL,
    shard      text   NOT NULL,                   -- octal digits that begin the hashes of its keys; '': the first shard
    version    bigint NOT NULL,                   -- incremented by each write; a write fails unless it names the current version; 0: see new_ledger in task_store.sql
    ledger     text   NOT NULL,                   -- JSON
    PRIMARY KEY (limit_name, shard, version)
) WITH (vacuum_truncate = off);

-- History -------------------------------------------------------------------------------------------------------------

-- One row per run of a task, and one per task that ends without a run. Rows are never changed. A reader reads the rows
-- with xid < pg_snapshot_xmin(pg_current_snapshot()) in the order (xid, seq), so that it misses no row that commits late.
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
    next_state    text             NOT NULL,      -- state of the task after the attempt
    error_type    text,
    error_text    text,
    node          text,
    trigger_path  text             NOT NULL,
    tags          text             NOT NULL DEFAULT '',
    payload_bytes integer          NOT NULL,
    PRIMARY KEY (xid, seq)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

-- View of the attempts for people, with instants as timestamps.
CREATE VIEW fairlead_history AS
SELECT task_id, attempt, queue, name, fairness_key, outcome, next_state, node,
       to_timestamp(submitted_at / 1e6) AS submitted_at,
       to_timestamp(started_at / 1e6) AS started_at,
       to_timestamp(finished_at / 1e6) AS finished_at,
       error_type, error_text
  FROM fairlead_attempts;

-- Events: one row per change that a command made to a task outside its runs. Rows are never changed. A reader reads them
-- in the same way as the attempts.
CREATE TABLE fairlead_events (
    xid          xid8             NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint           GENERATED ALWAYS AS IDENTITY,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,       -- version of the task before the change
    kind         text             NOT NULL,       -- resumed, rescheduled, changed, cancelled or marked_failed
    at           bigint           NOT NULL,
    queue        text             NOT NULL,
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    priority     smallint         NOT NULL,
    run_at       bigint           NOT NULL,       -- earliest start of the next run after the change
    actor        text,                            -- person who made the change; NULL: a program
    details      text,                            -- JSON object, or NULL
    PRIMARY KEY (xid, seq)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- Readers of the history, one row each. A reader has read every row of the history up to (xid, seq). A row of the history is
-- deleted only after every reader has read it.
CREATE TABLE fairlead_readers (
    name        text   PRIMARY KEY,
    kind        text   NOT NULL,                  -- lake, stream or events; see below
    xid         bigint NOT NULL,
    seq         bigint NOT NULL,
    checked_xid bigint,                           -- position up to which a lake was last found equal to this store
    checked_seq bigint,
    updated_at  bigint NOT NULL,                  -- time at which the reader last saved its position
    checked_at  bigint                            -- time of the last comparison of the lake with this store
) WITH (vacuum_truncate = off);

-- The store keeps attempts until each `lake` has checked them and each `stream` has read them, and events until each reader
-- of kind `events` has read them.

-- One row with the identity of this store. Exported rows carry it, so that a lake can distinguish the rows of several stores.
CREATE TABLE fairlead_store (
    store_id text NOT NULL
);

INSERT INTO fairlead_store (store_id) VALUES (gen_random_uuid()::text);

-- Fair queues ---------------------------------------------------------------------------------------------------------

-- Weights of fairness keys that were set at run time.
CREATE TABLE fairlead_weights (
    queue        text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,       -- applies instead of the weight with which a task was submitted
    policy       bigint,                          -- policy version that computed the weight; NULL: a person set it, so no policy changes it
    PRIMARY KEY (queue, fairness_key)
);

-- Limits of fairness keys that a person or the active policy has set. Limits in the code apply as well.
CREATE TABLE fairlead_limits (
    queue        text    NOT NULL,
    fairness_key text    NOT NULL,
    slots        integer NOT NULL CHECK (slots >= 1), -- number of slots that the key may hold on each node
    policy       bigint,                          -- policy version that computed the limit; NULL: a person set it, so no policy changes it
    PRIMARY KEY (queue, fairness_key)
);

-- Policies: weights and limits computed from the history and published within guard rails, one row per version.
CREATE TABLE fairlead_policies (
    version       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue         text    NOT NULL,
    author        text    NOT NULL,
    why           text    NOT NULL,               -- reason for the policy, such as an objective or a rollback
    computed_at   bigint  NOT NULL,
    input_from    bigint,                         -- start of the history that was used
    input_to      bigint,                         -- end of the history that was used
    input_rows    bigint  NOT NULL,
    raw           text    NOT NULL,               -- JSON, by fairness key: weight as computed
    guarded       text    NOT NULL,               -- JSON, by fairness key: weight as published
    reasons       text    NOT NULL,               -- JSON, by fairness key: reason for the weight
    due           text    NOT NULL,               -- JSON, by fairness key: share of the worker time that the key is entitled to
    raw_limits    text    NOT NULL,               -- JSON, by fairness key: slots of each node as computed
    limits        text    NOT NULL,               -- JSON, by fairness key: slots of each node as published
    limit_reasons text    NOT NULL,               -- JSON, by fairness key: reason for the limit
    is_canary     boolean NOT NULL,
    judged_at     bigint,                         -- end of the canary window; NULL: the window has not ended
    verdict       text,
    state         text    NOT NULL,               -- active, superseded or rolled_back
    supersedes    bigint                          -- version that was active before
);

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- At most one version of a queue is active, so two writers cannot both publish.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- Kill switches of the policies of a queue, or of all queues ('').
CREATE TABLE fairlead_policy_switches (
    queue  text   PRIMARY KEY,
    mode   text   NOT NULL,                       -- off: computed weights and limits do not apply; frozen: no new policy is published
    author text   NOT NULL,
    why    text   NOT NULL,
    at     bigint NOT NULL
);

-- Ordered queues ------------------------------------------------------------------------------------------------------

-- Log entries in the order of submission. An entry is deleted when its task is in the schedule, so a reader that starts
-- at the first entry misses no entry that commits late.
CREATE TABLE fairlead_task_log (
    seq       bigint   GENERATED ALWAYS AS IDENTITY,
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    message   text     NOT NULL,                  -- JSON: a task to submit, or a key to drop
    PRIMARY KEY (queue, partition, seq)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- Fences of the schedules: the range id of each partition's present owner. A write with another range id is refused.
CREATE TABLE fairlead_schedule_owners (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    range_id  bigint   NOT NULL,
    PRIMARY KEY (queue, partition)
);

-- Saved state of the partitions, one row each. A write gives its row a new number, and begins at the last number known, so
-- that it reads no replaced rows beside a transaction that stays open.
CREATE TABLE fairlead_schedule_records (
    queue     text     NOT NULL,
    partition smallint NOT NULL,
    number    bigint   NOT NULL,                  -- incremented by each write
    record    text     NOT NULL,                  -- JSON: low-water mark, at or below which all tasks are completed, and state for `fairlead ordered`
    PRIMARY KEY (queue, partition, number)
) WITH (vacuum_truncate = off);

-- Unfinished tasks, by their key (run_at, ordering_key, unique_key). The hour bucket of a task is run_at / 3600000000.
-- Texts are compared by code point, as the engine compares them.
CREATE TABLE fairlead_schedule (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,       -- earliest start at submission; a retry does not change it
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    id           uuid             NOT NULL,       -- UUIDv7
    task         text             NOT NULL,       -- JSON
    attempt      integer          NOT NULL DEFAULT 0, -- number of runs so far
    tries        integer          NOT NULL DEFAULT 0, -- number of runs that count against the retry policy
    retry_at     bigint,                          -- earliest start of the next run after a failed one
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- Index by which an owner reads the tasks of one ordering key that it skipped while its memory was full. All tasks meet the
-- condition, which only these reads state: the planner would take the index for other reads too, and sort what it finds.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key)
 WHERE octet_length(ordering_key) >= 0;

-- Index by which people find a task by its id alone. Two partitions may have the same task for a moment.
CREATE INDEX fairlead_schedule_id ON fairlead_schedule (id);

-- Keys of completed tasks. A second task with one of these keys does not run.
CREATE TABLE fairlead_completions (
    queue        text             NOT NULL,
    partition    smallint         NOT NULL,
    run_at       bigint           NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C" NOT NULL,
    finished_at  bigint           NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- Actions of people --------------------------------------------------------------------------------------------------

-- Bulk actions: changes of all tasks that match a filter, one row per action. A performer changes a batch of tasks and this
-- row in one transaction.
CREATE TABLE fairlead_actions (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    verb        text    NOT NULL,                 -- retry, resume, reschedule, change, cancel or fail
    change      text    NOT NULL,                 -- JSON: the change with its values
    filter      text    NOT NULL,                 -- JSON: the tasks that the action is about
    tenants     text,                             -- JSON array of the tenants whose tasks may be changed; NULL: all
    most        bigint,                           -- greatest number of tasks to look at; NULL: all
    actor       text    NOT NULL,
    asked_at    bigint  NOT NULL,
    state       text    NOT NULL,                 -- waiting, running, interrupted, done or failed
    is_stopping boolean NOT NULL DEFAULT false,   -- whether a person has asked the performer to stop
    version     bigint  NOT NULL DEFAULT 0,       -- incremented by each claim; a performer with another version changes nothing
    performer   text,
    expires_at  bigint,                           -- time from which another process may claim the action
    cursor      text,                             -- id of the last task that was looked at
    looked      bigint  NOT NULL DEFAULT 0,
    changed     bigint  NOT NULL DEFAULT 0,
    refused     bigint  NOT NULL DEFAULT 0,       -- number of tasks whose state did not allow the change, or that had changed meanwhile
    error       text,
    ended_at    bigint                            -- time at which the action ended or was stopped
) WITH (fillfactor = 50);

CREATE INDEX fairlead_actions_open ON fairlead_actions (id) WHERE state IN ('waiting', 'running');

-- Audit log: one row per action of a person. Rows are never changed.
CREATE TABLE fairlead_audit (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           bigint NOT NULL,
    actor        text   NOT NULL,
    verb         text   NOT NULL,
    outcome      text   NOT NULL,                 -- done, asked (it goes on after this transaction) or refused
    task_id      text,
    queue        text,
    fairness_key text,
    tenant       text,                            -- tenant of the fairness key
    subject      text,                            -- name of another thing: a periodic task, an ordered task, a policy
    action       bigint,                          -- id of a bulk action
    details      text                             -- new values, or the reason for a refusal
);

CREATE INDEX fairlead_audit_actor ON fairlead_audit (actor, id);
CREATE INDEX fairlead_audit_task ON fairlead_audit (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX fairlead_audit_tenant ON fairlead_audit (tenant, id) WHERE tenant IS NOT NULL;

-- Sessions of the web console that a person ended before their time, so that every process of the console refuses a copy of
-- their cookies.
CREATE TABLE fairlead_ended_sessions (
    session text   PRIMARY KEY,                  -- hash of the session's id
    ends_at bigint NOT NULL                       -- time from which the session would have ended anyway
);

-- Bulk submit ---------------------------------------------------------------------------------------------------------

-- Published bulk submits. The submitter chooses the submission id, so a repeated one submits no task twice.
CREATE TABLE fairlead_bulk_jobs (
    submission_id text   PRIMARY KEY,
    content       text,                           -- digest of the rows, if the submitter gave one
    inserted      bigint NOT NULL,
    duplicates    bigint NOT NULL,                -- number of rows not inserted because their unique key was in use
    published_at  bigint NOT NULL
);

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (published_at);

-- Tasks that wait for the commit of their bulk submit, in pieces.
CREATE TABLE fairlead_bulk_stage (
    attempt   text    NOT NULL,                   -- id of an attempt of a task of Spark; only some of the attempts are published
    piece     integer NOT NULL,                   -- from 1, without gaps
    staged_at bigint  NOT NULL,
    tasks     bytea   NOT NULL,                   -- checked tasks in MessagePack
    PRIMARY KEY (attempt, piece)
);

CREATE INDEX fairlead_bulk_stage_age ON fairlead_bulk_stage (staged_at);

-- Room ----------------------------------------------------------------------------------------------------------------

-- The server plans a statement for the number of pages that a table has, and keeps the plan. So the tables with a row for
-- each task or run, and those whose rows are replaced often, begin with pages enough that an index is the cheapest way to a
-- row, and with `vacuum_truncate = off` they never have fewer. The rows below fill about a hundred pages of each table.

INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, keep_result, submitted_at,
       run_at, ready_seq, payload_format, payload)
SELECT gen_random_uuid(), 'room', 0, '', 'ERROR', 0, '', 1, false, 0, 0, NULL, 'json', convert_to(repeat('-', 1700), 'UTF8')
  FROM generate_series(1, 200);
DELETE FROM fairlead_tasks WHERE queue = 'room';

INSERT INTO fairlead_attempts (task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, version,
       submitted_at, run_at, finished_at, outcome, next_state, error_text, trigger_path, payload_bytes)
SELECT gen_random_uuid(), 0, 0, 'room', '', 0, 0, '', 1, 0, 0, 0, 0, 'done', 'DONE', repeat('-', 1700), 'hook', 0
  FROM generate_series(1, 400);
DELETE FROM fairlead_attempts WHERE queue = 'room';

INSERT INTO fairlead_events (task_id, version, kind, at, queue, name, fairness_key, weight, priority, run_at, details)
SELECT gen_random_uuid(), 0, 'changed', 0, 'room', '', '', 1, 0, 0, repeat('-', 1700) FROM generate_series(1, 400);
DELETE FROM fairlead_events WHERE queue = 'room';

INSERT INTO fairlead_results (task_id, finished_at, result)
SELECT gen_random_uuid(), 0, convert_to(repeat('-', 1700), 'UTF8') FROM generate_series(1, 400);
DELETE FROM fairlead_results WHERE finished_at = 0;

INSERT INTO fairlead_unique_keys (queue, unique_key, task_id)
SELECT 'room', n || repeat('-', 1700), gen_random_uuid() FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_unique_keys WHERE queue = 'room';

INSERT INTO fairlead_task_log (queue, partition, message)
SELECT 'room', 0, repeat('-', 1700) FROM generate_series(1, 400);
DELETE FROM fairlead_task_log WHERE queue = 'room';

INSERT INTO fairlead_schedule (queue, partition, run_at, ordering_key, unique_key, id, task)
SELECT 'room', 0, n, '', '', gen_random_uuid(), repeat('-', 1700) FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_schedule WHERE queue = 'room';

INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT 'room', 0, n, '', repeat('-', 1700), 0 FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_completions WHERE queue = 'room';

INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at, delivered_at)
SELECT 'room', n::text, 0, 'room', '', 0, 0, repeat('-', 1700), 0, 0 FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_incidents WHERE queue = 'room';

INSERT INTO fairlead_heartbeats (node, heartbeat_at) SELECT repeat('-', 1700), n FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_heartbeats WHERE node LIKE '-%';

INSERT INTO fairlead_holders (owner, expires_at) SELECT repeat('-', 1700), n FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_holders WHERE owner LIKE '-%';

INSERT INTO fairlead_permits (limit_name, shard, version, ledger)
SELECT 'room', '', n, repeat('-', 1700) FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_permits WHERE limit_name = 'room';

INSERT INTO fairlead_schedule_records (queue, partition, number, record)
SELECT 'room', 0, n, repeat('-', 1700) FROM generate_series(1, 400) AS n;
DELETE FROM fairlead_schedule_records WHERE queue = 'room';
