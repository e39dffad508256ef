-- The tables of Fairlead in a SQLite file. Every instant is in microseconds since 1970 UTC.

-- Tasks ---------------------------------------------------------------------------------------------------------------

-- One row per unfinished task. The row is deleted when the task is DONE, FAILED or CANCELLED.
CREATE TABLE fairlead_tasks (
    seq            INTEGER PRIMARY KEY,           -- never reused; finds the row without another index
    id             TEXT    NOT NULL,              -- UUIDv7
    queue          TEXT    NOT NULL,
    partition      INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL,              -- WAITING, SUBMITTED, PROCESSING or ERROR
    version        INTEGER NOT NULL DEFAULT 1,    -- incremented by each change of state
    attempt        INTEGER NOT NULL DEFAULT 0,    -- number of runs so far
    tries          INTEGER NOT NULL DEFAULT 0,    -- number of runs that count against the retry policy
    priority       INTEGER NOT NULL,
    fairness_key   TEXT    NOT NULL,
    weight         REAL    NOT NULL,
    ordering_key   TEXT,
    unique_key     TEXT,
    keep_result    INTEGER NOT NULL,              -- boolean
    submitted_at   INTEGER NOT NULL,
    run_at         INTEGER NOT NULL,              -- earliest start of the next run
    ready_at       INTEGER,                       -- time at which the task last became SUBMITTED
    triggered_at   INTEGER,
    claimed_at     INTEGER,
    stuck_at       INTEGER,                       -- time after which a claimed task is stuck
    policy         INTEGER NOT NULL DEFAULT 0,    -- treatment of the task if it gets stuck or ends in ERROR; see `Claim.policy` in ports/task_store.py
    ready_seq      INTEGER,                       -- position in the lane; NULL while WAITING or in ERROR
    node           TEXT,                          -- node that has claimed the task
    trigger_path   TEXT    NOT NULL,              -- way of the last trigger: hook, poller, heal, spill or grant; see TriggerPath in model/states.py
    error_type     TEXT,
    error_text     TEXT,
    context        TEXT,                          -- JSON object of strings, or NULL
    tags           TEXT    NOT NULL DEFAULT '',   -- by which people find the task
    payload_format TEXT    NOT NULL,
    payload        BLOB    NOT NULL,
    checkpoint     BLOB,                          -- JSON that a run stored for the next one
    order_at       INTEGER                        -- position among the tasks of the ordering key; see below
) STRICT;

-- For a task with an ordering key, `order_at` is the run_at of its submission, or of its last rescheduling before its
-- first run. A retry does not change `order_at`. NULL means that the task is not bound by the order of its key.

-- A claim changes no index. The index entry of a task is deleted when the task ends or waits again.
CREATE UNIQUE INDEX fairlead_tasks_id ON fairlead_tasks (id);
-- All ready tasks, by lane and fairness key.
CREATE INDEX fairlead_tasks_key ON fairlead_tasks (queue, partition, priority, fairness_key, ready_seq) WHERE ready_seq IS NOT NULL;
-- Ready tasks with a fairness key, by lane. Tasks without one have no entry here: fairlead_tasks_key has them in this order.
CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL AND fairness_key <> '';
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (run_at) WHERE state = 'WAITING';
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE ordering_key IS NOT NULL;

-- One row with the greatest ready_seq assigned so far.
CREATE TABLE fairlead_sequence (
    value INTEGER NOT NULL
) STRICT;

INSERT INTO fairlead_sequence (value) VALUES (0);

-- Batches of tasks that were claimed together, one row per batch. The row is deleted when all tasks of the batch have
-- ended. Nodes look up the tasks of a dead node here, so that a claim need not change an index on fairlead_tasks.
CREATE TABLE fairlead_claims (
    batch    INTEGER PRIMARY KEY,
    node     TEXT    NOT NULL,
    stuck_at INTEGER NOT NULL,                    -- earliest stuck_at of the tasks in the batch
    seqs     TEXT    NOT NULL                     -- JSON array of fairlead_tasks.seq
) STRICT;

-- Results of finished tasks that were submitted with keep_result.
CREATE TABLE fairlead_results (
    task_id     TEXT    PRIMARY KEY,
    finished_at INTEGER NOT NULL,
    result      BLOB    NOT NULL                  -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

-- Notes of runs that reported progress or kept log lines, one row per run.
CREATE TABLE fairlead_run_notes (
    task_id     TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    began_at    INTEGER NOT NULL,                 -- time of the first note; never changed
    done        REAL,                             -- last progress; this and the next three are NULL without any
    total       REAL,
    note        TEXT,
    reported_at INTEGER,
    lines       TEXT,                             -- JSON array of [at, level, logger, text]; NULL until the run has ended
    dropped     INTEGER NOT NULL DEFAULT 0,       -- number of lines that were not kept
    PRIMARY KEY (task_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_run_notes_age ON fairlead_run_notes (began_at);

-- Unique keys in use, one row per key of a queue. A second task with a key in use is not inserted.
CREATE TABLE fairlead_unique_keys (
    queue        TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    kept_until   INTEGER,                         -- time from which the key is free, if its task has ended; NULL: at its end
    is_ended     INTEGER NOT NULL DEFAULT 0,      -- boolean
    PRIMARY KEY (queue, unique_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (kept_until) WHERE is_ended;

-- Whatever deletes the row of a task frees its key. Each body is one line, because a semicolon at the end of a line ends a
-- statement of this file.
CREATE TRIGGER fairlead_free_key AFTER DELETE ON fairlead_tasks WHEN OLD.unique_key IS NOT NULL BEGIN
    DELETE FROM fairlead_unique_keys WHERE (queue, unique_key, task_id) = (OLD.queue, OLD.unique_key, OLD.id) AND kept_until IS NULL; UPDATE fairlead_unique_keys SET is_ended = 1 WHERE (queue, unique_key, task_id) = (OLD.queue, OLD.unique_key, OLD.id); END;

-- Incidents: conditions that need an operator. Each incident is delivered to `on_incident` at least once.
CREATE TABLE fairlead_incidents (
    id           INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused
    kind         TEXT    NOT NULL,                -- one of the kinds in model/incident.py
    subject      TEXT    NOT NULL,                -- id of the task, or name of the lane, queue or node
    version      INTEGER NOT NULL,                -- version of the task; 0 without a task
    queue        TEXT    NOT NULL,                -- empty if the incident is not about one queue
    name         TEXT    NOT NULL,                -- name of the task; empty without a task
    since        INTEGER NOT NULL,                -- time at which the condition began
    seen_at      INTEGER NOT NULL,                -- time of the last report
    details      TEXT    NOT NULL,
    deliveries   INTEGER NOT NULL DEFAULT 0,      -- number of calls of `on_incident` so far
    deliver_at   INTEGER NOT NULL,                -- earliest time of the next call
    delivered_at INTEGER,                         -- time at which a call returned; NULL: none has returned
    UNIQUE (kind, subject, version)
) STRICT;

CREATE INDEX fairlead_incidents_undelivered ON fairlead_incidents (deliver_at, id) WHERE delivered_at IS NULL;

-- Queues and nodes ----------------------------------------------------------------------------------------------------

-- Queues that a node or a submitter has registered.
CREATE TABLE fairlead_queues (
    queue           TEXT    PRIMARY KEY,
    partitions      INTEGER NOT NULL,             -- greatest number ever registered
    paused          INTEGER NOT NULL DEFAULT 0,   -- boolean
    version         INTEGER NOT NULL DEFAULT 0    -- incremented by each change of the queue's settings, weights or limits
) STRICT, WITHOUT ROWID;

-- Worker processes that are running, and dead ones whose tasks are not yet resumed.
CREATE TABLE fairlead_nodes (
    node         TEXT    PRIMARY KEY,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,                -- time of the last heartbeat
    queues       TEXT    NOT NULL,                -- JSON array of names
    names        TEXT    NOT NULL,                -- JSON array of the names of tasks for which the node has handlers
    digest       TEXT    NOT NULL,                -- hash of queues and names
    slots        INTEGER NOT NULL,                -- runs at once
    version      TEXT    NOT NULL,                -- version of Fairlead
    python       TEXT    NOT NULL                 -- version of Python
) STRICT, WITHOUT ROWID;

-- Periodic tasks that nodes have declared. Each time at which one is to run is a slot. A row is deleted only by an operator's
-- command.
CREATE TABLE fairlead_periodics (
    name          TEXT    PRIMARY KEY,            -- name of the task; its second declaration is named with the suffix #2
    task          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    cron          TEXT    NOT NULL,
    timezone      TEXT    NOT NULL,
    catch_up      TEXT    NOT NULL,               -- last, all or none
    paused        INTEGER NOT NULL DEFAULT 0,     -- boolean
    version       INTEGER NOT NULL DEFAULT 1,     -- incremented by each change of the columns above and of passed_at
    registered_at INTEGER NOT NULL,               -- time of the first declaration; slots before it do not run
    passed_at     INTEGER NOT NULL,               -- every slot up to this time is submitted or skipped
    last_slot_at  INTEGER,                        -- time of the last slot that was submitted
    declared_at   INTEGER NOT NULL,               -- time of the last declaration by a running node
    declared_by   TEXT    NOT NULL                -- node of the last declaration
) STRICT, WITHOUT ROWID;

-- Leases of partitions and pollers. A lease ends when its holder expires.
CREATE TABLE fairlead_leases (
    name     TEXT    PRIMARY KEY,
    owner    TEXT    NOT NULL,                    -- node that holds the lease; empty: the lease is free
    range_id INTEGER NOT NULL,                    -- incremented by each change of the owner
    changed  INTEGER NOT NULL                     -- number of the lease's last change, from fairlead_changes
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_leases_changed ON fairlead_leases (changed);

-- Nodes that hold leases.
CREATE TABLE fairlead_holders (
    owner      TEXT    PRIMARY KEY,
    expires_at INTEGER NOT NULL                   -- every lease of the node ends then, unless the node renews them
) STRICT, WITHOUT ROWID;

-- Counters of changes, so that a node reads leases and queues again only if they changed.
CREATE TABLE fairlead_changes (
    kind   TEXT    PRIMARY KEY,                   -- leases or queues
    number INTEGER NOT NULL                       -- incremented by each transaction that changes rows of this kind
) STRICT, WITHOUT ROWID;

-- Permit ledgers: the number of permits that each node holds of a cluster-wide limit; see core/limits/permits.py and
-- sharded_permits.py.
CREATE TABLE fairlead_permits (
    limit_name text   NOT NULL,
    shard      text   NOT NULL,                   -- octal digits that begin the hashes of its keys; '': the first shard
    version    bigint NOT NULL,                   -- incremented by each write; a write fails unless it names the current version
    ledger     text   NOT NULL,                   -- JSON
    PRIMARY KEY (limit_name, shard)
);

-- History -------------------------------------------------------------------------------------------------------------

-- One row per run of a task, and one per task that ends without a run. Rows are never changed. The order of seq is the
-- order of commits.
CREATE TABLE fairlead_attempts (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id       TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    tries         INTEGER NOT NULL,
    queue         TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    partition     INTEGER NOT NULL,
    priority      INTEGER NOT NULL,
    fairness_key  TEXT    NOT NULL,
    weight        REAL    NOT NULL,
    ordering_key  TEXT,
    unique_key    TEXT,
    version       INTEGER NOT NULL,
    submitted_at  INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    ready_at      INTEGER,
    triggered_at  INTEGER,
    claimed_at    INTEGER,
    started_at    INTEGER,
    finished_at   INTEGER NOT NULL,
    outcome       TEXT    NOT NULL,               -- done, retried, failed, timed_out, snoozed, cancelled or lost
    next_state    TEXT    NOT NULL,               -- state of the task after the attempt
    error_type    TEXT,
    error_text    TEXT,
    node          TEXT,
    trigger_path  TEXT    NOT NULL,
    tags          TEXT    NOT NULL DEFAULT '',
    payload_bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

-- Events: one row per change that a command made to a task outside its runs. Rows are never changed. The order of seq is
-- the order of commits.
CREATE TABLE fairlead_events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,                -- version of the task before the change
    kind         TEXT    NOT NULL,                -- resumed, rescheduled, changed, cancelled or marked_failed
    at           INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,                -- earliest start of the next run after the change
    actor        TEXT,                            -- person who made the change; NULL: a program
    details      TEXT                             -- JSON object, or NULL
) STRICT;

-- Readers of the history. A reader has read every row up to (xid, seq). A row is deleted only after every reader has
-- read it.
CREATE TABLE fairlead_readers (
    name        TEXT    PRIMARY KEY,
    kind        TEXT    NOT NULL,                 -- lake, stream or events; see below
    xid         INTEGER NOT NULL,                 -- 0: SQLite has one writer
    seq         INTEGER NOT NULL,
    checked_xid INTEGER,                          -- position up to which a lake was last found equal to this store
    checked_seq INTEGER,
    updated_at  INTEGER NOT NULL,                 -- time at which the reader last saved its position
    checked_at  INTEGER                           -- time of the last comparison of the lake with this store
) STRICT, WITHOUT ROWID;

-- The store keeps attempts until each `lake` has checked them and each `stream` has read them, and events until each reader
-- of kind `events` has read them.

-- One row with the identity of this store. Exported rows carry it, so that a lake can distinguish the rows of several stores.
CREATE TABLE fairlead_store (
    store_id TEXT NOT NULL
) STRICT;

INSERT INTO fairlead_store (store_id) VALUES (lower(hex(randomblob(16))));

-- Fair queues ---------------------------------------------------------------------------------------------------------

-- Weights of fairness keys that were set at run time.
CREATE TABLE fairlead_weights (
    queue        TEXT NOT NULL,
    fairness_key TEXT NOT NULL,
    weight       REAL NOT NULL,                   -- applies instead of the weight with which a task was submitted
    policy       INTEGER,                         -- policy version that computed the weight; NULL: a person set it, so no policy changes it
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;

-- Limits of fairness keys that a person or the active policy has set. Limits in the code apply as well.
CREATE TABLE fairlead_limits (
    queue        TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    slots        INTEGER NOT NULL CHECK (slots >= 1),  -- number of slots that the key may hold on each node
    policy       INTEGER,                         -- policy version that computed the limit; NULL: a person set it, so no policy changes it
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;

-- Policies: weights and limits computed from the history and published within guard rails, one row per version.
CREATE TABLE fairlead_policies (
    version     INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT    NOT NULL,
    author      TEXT    NOT NULL,
    why         TEXT    NOT NULL,                 -- reason for the policy, such as an objective or a rollback
    computed_at INTEGER NOT NULL,
    input_from  INTEGER,                          -- start of the history that was used
    input_to    INTEGER,                          -- end of the history that was used
    input_rows  INTEGER NOT NULL,
    raw         TEXT    NOT NULL,                 -- JSON, by fairness key: weight as computed
    guarded     TEXT    NOT NULL,                 -- JSON, by fairness key: weight as published
    reasons     TEXT    NOT NULL,                 -- JSON, by fairness key: reason for the weight
    due         TEXT    NOT NULL,                 -- JSON, by fairness key: share of the worker time that the key is entitled to
    raw_limits  TEXT    NOT NULL,                 -- JSON, by fairness key: slots of each node as computed
    limits      TEXT    NOT NULL,                 -- JSON, by fairness key: slots of each node as published
    limit_reasons TEXT  NOT NULL,                 -- JSON, by fairness key: reason for the limit
    is_canary   INTEGER NOT NULL,                 -- boolean
    judged_at   INTEGER,                          -- end of the canary window; NULL: the window has not ended
    verdict     TEXT,
    state       TEXT    NOT NULL,                 -- active, superseded or rolled_back
    supersedes  INTEGER                           -- version that was active before
) STRICT;

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- At most one version of a queue is active, so two writers cannot both publish.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- Kill switches of the policies of a queue, or of all queues ('').
CREATE TABLE fairlead_policy_switches (
    queue  TEXT    PRIMARY KEY,
    mode   TEXT    NOT NULL,                      -- off: computed weights and limits do not apply; frozen: no new policy is published
    author TEXT    NOT NULL,
    why    TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Ordered queues ------------------------------------------------------------------------------------------------------

-- Log entries in the order of submission. An entry is deleted when its task is in the schedule.
CREATE TABLE fairlead_task_log (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    message   TEXT    NOT NULL                    -- JSON: a task to submit, or a key to drop
) STRICT;

CREATE INDEX fairlead_task_log_position ON fairlead_task_log (queue, partition, seq);

-- Fences of the schedules: the range id of each partition's present owner. A write with another range id is refused.
CREATE TABLE fairlead_schedule_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: low-water mark, at or below which all tasks are completed, and state for `fairlead ordered`
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

-- Unfinished tasks, by their key (run_at, ordering_key, unique_key). The hour bucket of a task is run_at / 3600000000.
CREATE TABLE fairlead_schedule (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,                -- earliest start at submission; a retry does not change it
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    id           TEXT    NOT NULL,                -- UUIDv7
    task         TEXT    NOT NULL,                -- JSON
    attempt      INTEGER NOT NULL DEFAULT 0,      -- number of runs so far
    tries        INTEGER NOT NULL DEFAULT 0,      -- number of runs that count against the retry policy
    retry_at     INTEGER,                         -- earliest start of the next run after a failed one
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;

-- Index by which an owner reads the tasks of one ordering key that it skipped while its memory was full.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key);

-- Index by which people find a task by its id alone. Two partitions may have the same task for a moment.
CREATE INDEX fairlead_schedule_id ON fairlead_schedule (id);

-- Keys of completed tasks. A second task with one of these keys does not run.
CREATE TABLE fairlead_completions (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    finished_at  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;

-- Actions of people --------------------------------------------------------------------------------------------------

-- Bulk actions: changes of all tasks that match a filter, one row per action. A performer changes a batch of tasks and this
-- row in one transaction.
CREATE TABLE fairlead_actions (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    verb        TEXT    NOT NULL,                 -- retry, resume, reschedule, change, cancel or fail
    change      TEXT    NOT NULL,                 -- JSON: the change with its values
    filter      TEXT    NOT NULL,                 -- JSON: the tasks that the action is about
    tenants     TEXT,                             -- JSON array of the tenants whose tasks may be changed; NULL: all
    most        INTEGER,                          -- greatest number of tasks to look at; NULL: all
    actor       TEXT    NOT NULL,
    asked_at    INTEGER NOT NULL,
    state       TEXT    NOT NULL,                 -- waiting, running, interrupted, done or failed
    is_stopping INTEGER NOT NULL DEFAULT 0,       -- boolean: whether a person has asked the performer to stop
    version     INTEGER NOT NULL DEFAULT 0,       -- incremented by each claim; a performer with another version changes nothing
    performer   TEXT,
    expires_at  INTEGER,                          -- time from which another process may claim the action
    cursor      TEXT,                             -- id of the last task that was looked at
    looked      INTEGER NOT NULL DEFAULT 0,
    changed     INTEGER NOT NULL DEFAULT 0,
    refused     INTEGER NOT NULL DEFAULT 0,       -- number of tasks whose state did not allow the change, or that had changed meanwhile
    error       TEXT,
    ended_at    INTEGER                           -- time at which the action ended or was stopped
) STRICT;

CREATE INDEX fairlead_actions_open ON fairlead_actions (id) WHERE state IN ('waiting', 'running');

-- Audit log: one row per action of a person. Rows are never changed.
CREATE TABLE fairlead_audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           INTEGER NOT NULL,
    actor        TEXT    NOT NULL,
    verb         TEXT    NOT NULL,
    outcome      TEXT    NOT NULL,                -- done, asked (it goes on after this transaction) or refused
    task_id      TEXT,
    queue        TEXT,
    fairness_key TEXT,
    tenant       TEXT,                            -- tenant of the fairness key
    subject      TEXT,                            -- name of another thing: a periodic task, an ordered task, a policy
    action       INTEGER,                         -- id of a bulk action
    details      TEXT                             -- new values, or the reason for a refusal
) STRICT;

CREATE INDEX fairlead_audit_actor ON fairlead_audit (actor, id);
CREATE INDEX fairlead_audit_task ON fairlead_audit (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX fairlead_audit_tenant ON fairlead_audit (tenant, id) WHERE tenant IS NOT NULL;

-- Sessions of the web console that a person ended before their time, so that every process of the console refuses a copy of
-- their cookies.
CREATE TABLE fairlead_ended_sessions (
    session TEXT    PRIMARY KEY,                  -- hash of the session's id
    ends_at INTEGER NOT NULL                       -- time from which the session would have ended anyway
) STRICT, WITHOUT ROWID;

-- Bulk submit ---------------------------------------------------------------------------------------------------------

-- Published bulk submits. The submitter chooses the submission id, so a repeated one submits no task twice.
CREATE TABLE fairlead_bulk_jobs (
    submission_id TEXT    PRIMARY KEY,
    content       TEXT,                           -- digest of the rows, if the submitter gave one
    inserted      INTEGER NOT NULL,
    duplicates    INTEGER NOT NULL,               -- number of rows not inserted because their unique key was in use
    published_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (published_at);

-- Tasks that wait for the commit of their bulk submit, in pieces.
CREATE TABLE fairlead_bulk_stage (
    attempt   TEXT    NOT NULL,                   -- id of an attempt of a task of Spark; only some of the attempts are published
    piece     INTEGER NOT NULL,                   -- from 1, without gaps
    staged_at INTEGER NOT NULL,
    tasks     BLOB    NOT NULL,                   -- checked tasks in MessagePack
    PRIMARY KEY (attempt, piece)
) STRICT;

CREATE INDEX fairlead_bulk_stage_age ON fairlead_bulk_stage (staged_at);
