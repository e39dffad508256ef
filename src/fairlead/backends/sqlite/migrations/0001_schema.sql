-- The tables of Fairlead in a SQLite file. Every instant is in microseconds since 1970 UTC.

-- Tasks ---------------------------------------------------------------------------------------------------------------

-- One row per unfinished task. A task that is DONE, FAILED or CANCELLED leaves this table.
CREATE TABLE fairlead_tasks (
    seq            INTEGER PRIMARY KEY,           -- never used twice; finds the row without an index
    id             TEXT    NOT NULL,              -- UUIDv7
    queue          TEXT    NOT NULL,
    partition      INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL,              -- WAITING, SUBMITTED, PROCESSING or ERROR
    version        INTEGER NOT NULL DEFAULT 1,    -- raised by each change of state
    attempt        INTEGER NOT NULL DEFAULT 0,    -- runs so far
    tries          INTEGER NOT NULL DEFAULT 0,    -- runs that count against the retry policy
    priority       INTEGER NOT NULL,
    fairness_key   TEXT    NOT NULL,
    weight         REAL    NOT NULL,
    ordering_key   TEXT,
    unique_key     TEXT,
    keep_result    INTEGER NOT NULL,              -- boolean
    submitted_at   INTEGER NOT NULL,
    run_at         INTEGER NOT NULL,              -- earliest start of the next run
    ready_at       INTEGER,                       -- when the task last became SUBMITTED
    triggered_at   INTEGER,
    claimed_at     INTEGER,
    stuck_at       INTEGER,                       -- when a claimed task counts as stuck
    policy         INTEGER NOT NULL DEFAULT 0,    -- bits of the last claim: see `Claim.policy` in ports/task_store.py
    ready_seq      INTEGER,                       -- position in the lane; NULL while WAITING or in ERROR
    node           TEXT,                          -- the node that has claimed the task
    trigger_path   TEXT    NOT NULL,              -- hook, poller or heal: how the task was triggered last
    error_type     TEXT,
    error_text     TEXT,
    context        TEXT,                          -- JSON object of strings, or NULL
    payload_format TEXT    NOT NULL,
    payload        BLOB    NOT NULL,
    order_at       INTEGER                        -- position among the tasks of the ordering key, see below
) STRICT;

-- `order_at` is the run_at with which a task of an ordering key was submitted or rescheduled. No retry changes it. NULL
-- means that the order of its key does not apply to the task.

-- A claim changes no index: an entry leaves its lane when the task ends or waits again.
CREATE UNIQUE INDEX fairlead_tasks_id ON fairlead_tasks (id);
CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL;
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (run_at) WHERE state = 'WAITING';
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, order_at, id) WHERE ordering_key IS NOT NULL;

-- The greatest ready_seq given so far, in one row.
CREATE TABLE fairlead_sequence (
    value INTEGER NOT NULL
) STRICT;

INSERT INTO fairlead_sequence (value) VALUES (0);

-- Tasks that were claimed together, one row per batch. The row is deleted when all tasks of the batch have ended. The
-- tasks of a dead node are found here, so no index on fairlead_tasks has to follow every claim.
CREATE TABLE fairlead_claims (
    batch    INTEGER PRIMARY KEY,
    node     TEXT    NOT NULL,
    stuck_at INTEGER NOT NULL,                    -- the earliest one of the tasks
    seqs     TEXT    NOT NULL                     -- JSON array of fairlead_tasks.seq
) STRICT;

-- Results of finished tasks that were submitted with keep_result.
CREATE TABLE fairlead_results (
    task_id     TEXT    PRIMARY KEY,
    finished_at INTEGER NOT NULL,
    result      BLOB    NOT NULL                  -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

-- Unique keys in use, one row per key of a queue. A second task with the same key is not inserted.
CREATE TABLE fairlead_unique_keys (
    queue        TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    submitted_at INTEGER NOT NULL,
    PRIMARY KEY (queue, unique_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (submitted_at);

-- Incidents: conditions that need a person, each delivered to `on_incident` at least once.
CREATE TABLE fairlead_incidents (
    id           INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice
    kind         TEXT    NOT NULL,                -- error, stuck, lane_unreadable, unserved_queue or blocked_loop
    subject      TEXT    NOT NULL,                -- the id of the task; the lane, queue or node
    version      INTEGER NOT NULL,                -- the version of the task; 0 without a task
    queue        TEXT    NOT NULL,                -- empty: no single queue
    name         TEXT    NOT NULL,                -- the name of the task; empty without a task
    since        INTEGER NOT NULL,                -- when the condition began
    seen_at      INTEGER NOT NULL,                -- when it was last reported
    details      TEXT    NOT NULL,
    deliveries   INTEGER NOT NULL DEFAULT 0,      -- calls of `on_incident` so far
    deliver_at   INTEGER NOT NULL,                -- earliest next call
    delivered_at INTEGER,                         -- when a call had returned; NULL: not yet
    UNIQUE (kind, subject, version)
) STRICT;

CREATE INDEX fairlead_incidents_undelivered ON fairlead_incidents (deliver_at, id) WHERE delivered_at IS NULL;

-- Queues and nodes ----------------------------------------------------------------------------------------------------

-- Queues that a node or a submitter has registered.
CREATE TABLE fairlead_queues (
    queue           TEXT    PRIMARY KEY,
    partitions      INTEGER NOT NULL,             -- the greatest number ever registered
    paused          INTEGER NOT NULL DEFAULT 0,   -- boolean
    weights_version INTEGER NOT NULL DEFAULT 0    -- raised by each change of weights or limits, so that nodes read them only then
) STRICT, WITHOUT ROWID;

-- Worker processes that are running, or that died and whose tasks were not resumed yet.
CREATE TABLE fairlead_nodes (
    node         TEXT    PRIMARY KEY,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,                -- the last heartbeat
    queues       TEXT    NOT NULL,                -- JSON array of names
    names        TEXT    NOT NULL                 -- JSON array of the task names that it has handlers for
) STRICT, WITHOUT ROWID;

-- Periodic tasks that a node has declared. Only a person removes a row.
CREATE TABLE fairlead_periodics (
    name          TEXT    PRIMARY KEY,            -- the name of the task; the second declaration of a task adds #2
    task          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    cron          TEXT    NOT NULL,
    timezone      TEXT    NOT NULL,
    catch_up      TEXT    NOT NULL,               -- last, all or none
    paused        INTEGER NOT NULL DEFAULT 0,     -- boolean
    version       INTEGER NOT NULL DEFAULT 1,     -- raised by each change of the columns above and of passed_at
    registered_at INTEGER NOT NULL,               -- the first declaration; no earlier slot runs
    passed_at     INTEGER NOT NULL,               -- slots up to here are submitted, or skipped for good
    last_slot_at  INTEGER,                        -- the slot that was submitted last
    declared_at   INTEGER NOT NULL,               -- when a living node last declared the periodic task
    declared_by   TEXT    NOT NULL                -- this node
) STRICT, WITHOUT ROWID;

-- Leases of partitions and pollers.
CREATE TABLE fairlead_leases (
    name       TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,                  -- a node; empty: the lease is free
    range_id   INTEGER NOT NULL,                  -- raised by each change of the owner
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Permit ledgers: how many permits of each cluster-wide limit a node holds; see core/limits/permits.py.
CREATE TABLE fairlead_permits (
    limit_name text   PRIMARY KEY,
    version    bigint NOT NULL,                   -- raised by each write; a write names the version it has read
    ledger     text   NOT NULL                    -- JSON
);

-- History -------------------------------------------------------------------------------------------------------------

-- One row per run of a task, or per end without a run. Append-only; the order of seq is the order of commits.
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
    next_state    TEXT    NOT NULL,               -- the state of the task from then on
    error_type    TEXT,
    error_text    TEXT,
    node          TEXT,
    trigger_path  TEXT    NOT NULL,
    payload_bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

-- One row per change that a person, or a program for a person, made to a task outside its runs. Append-only; the order
-- of seq is the order of commits.
CREATE TABLE fairlead_events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,                -- the version of the task before the change
    kind         TEXT    NOT NULL,                -- resumed, rescheduled, cancelled or marked_failed
    at           INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,                -- earliest start of the next run after the change
    actor        TEXT,                            -- who made the change; NULL: a program
    details      TEXT                             -- JSON object, or NULL
) STRICT;

-- Readers of the history. Rows that one of them has not read are not cleaned. A reader has read everything up to
-- (xid, seq).
CREATE TABLE fairlead_readers (
    name        TEXT    PRIMARY KEY,
    kind        TEXT    NOT NULL,                 -- lake, stream or events, see below
    xid         INTEGER NOT NULL,                 -- 0: SQLite has one writer
    seq         INTEGER NOT NULL,
    checked_xid INTEGER,                          -- of a lake: up to here it was compared with this store and agreed
    checked_seq INTEGER,
    updated_at  INTEGER NOT NULL,                 -- when the reader last reported its position
    checked_at  INTEGER                           -- when the lake was last compared
) STRICT, WITHOUT ROWID;

-- Attempts are kept for a `lake` until they are checked, and for a `stream` until they are read. Events are kept for
-- `events` until they are read.

-- The identity of this store, in one row: tells its rows from those of another store after an export.
CREATE TABLE fairlead_store (
    store_id TEXT NOT NULL
) STRICT;

INSERT INTO fairlead_store (store_id) VALUES (lower(hex(randomblob(16))));

-- Fair queues ---------------------------------------------------------------------------------------------------------

-- Fences of the backlogs, one row per owned partition. A write with another range id is refused.
CREATE TABLE fairlead_backlog_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

-- Records of the lanes, for their next owner.
CREATE TABLE fairlead_backlog_lanes (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: levels A, R and M, virtual time, position in the channel, next passes
    PRIMARY KEY (queue, partition, priority)
) STRICT, WITHOUT ROWID;

-- Triggers that do not fit in memory, ordered by level. They are written, read and deleted by ranges of levels.
CREATE TABLE fairlead_backlog (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    pass         INTEGER NOT NULL,                -- the level is (pass, id)
    id           INTEGER NOT NULL,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,                -- the version at which the task may be claimed
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    ordering_key TEXT,
    seq          INTEGER NOT NULL,                -- position in the channel
    order_at     INTEGER NOT NULL,                -- position among the tasks of the ordering key; 0 without one
    PRIMARY KEY (queue, partition, priority, pass, id)
) STRICT, WITHOUT ROWID;

-- Finds out whether a trigger that the channel brings again has a level. Task ids ascend in time, so the index grows at
-- its end.
CREATE INDEX fairlead_backlog_task ON fairlead_backlog (task_id);

-- Weights of fairness keys that were set at run time.
CREATE TABLE fairlead_weights (
    queue        TEXT NOT NULL,
    fairness_key TEXT NOT NULL,
    weight       REAL NOT NULL,                   -- replaces the weights of the tasks
    policy       INTEGER,                         -- version that computed the weight; NULL: a person set it, and no policy changes it
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;

-- Limits of fairness keys in the active policy. Limits in the code apply as well.
CREATE TABLE fairlead_limits (
    queue        TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    slots        INTEGER NOT NULL CHECK (slots >= 1),  -- slots of each node that the key may hold at once
    policy       INTEGER NOT NULL,                -- version that computed the limit
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;

-- Policies: weights and limits computed from the history and published within guard rails, one row per version.
CREATE TABLE fairlead_policies (
    version     INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT    NOT NULL,
    author      TEXT    NOT NULL,
    why         TEXT    NOT NULL,                 -- the purpose, such as an objective or a rollback
    computed_at INTEGER NOT NULL,
    input_from  INTEGER,                          -- the history that was used: from here
    input_to    INTEGER,                          -- to here
    input_rows  INTEGER NOT NULL,
    raw         TEXT    NOT NULL,                 -- JSON, by fairness key: weight as computed
    guarded     TEXT    NOT NULL,                 -- JSON, by fairness key: weight as published
    reasons     TEXT    NOT NULL,                 -- JSON, by fairness key: reason for the weight
    due         TEXT    NOT NULL,                 -- JSON, by fairness key: share of the worker time it is entitled to
    raw_limits  TEXT    NOT NULL,                 -- JSON, by fairness key: slots of each node as computed
    limits      TEXT    NOT NULL,                 -- JSON, by fairness key: slots of each node as published
    limit_reasons TEXT  NOT NULL,                 -- JSON, by fairness key: reason for the limit
    is_canary   INTEGER NOT NULL,                 -- boolean
    state       TEXT    NOT NULL,                 -- active, superseded or rolled_back
    supersedes  INTEGER,                          -- the version that was active before
    judged_at   INTEGER,                          -- end of the canary window; NULL: it has not ended
    verdict     TEXT
) STRICT;

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- At most one version of a queue is active, so two writers cannot both publish.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- Kill switches of the policies of a queue, or of all queues ('').
CREATE TABLE fairlead_policy_switches (
    queue  TEXT    PRIMARY KEY,
    mode   TEXT    NOT NULL,                      -- off: declared weights apply; frozen: nothing is published
    author TEXT    NOT NULL,
    why    TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Ordered queues ------------------------------------------------------------------------------------------------------

-- Entries of the log, in the order of submit. An entry is deleted when it is in the schedule.
CREATE TABLE fairlead_task_log (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    message   TEXT    NOT NULL                    -- JSON: a task to submit, or a key to drop
) STRICT;

CREATE INDEX fairlead_task_log_position ON fairlead_task_log (queue, partition, seq);

-- Fences of the schedules, one row per owned partition. A write with another range id is refused.
CREATE TABLE fairlead_schedule_owners (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    range_id  INTEGER NOT NULL,
    record    TEXT    NOT NULL,                   -- JSON: the low-water mark, below which all is completed; the owner's report
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

-- Unfinished tasks, by their key (run_at, ordering_key, unique_key). The hour bucket of a task is run_at / 3600000000.
CREATE TABLE fairlead_schedule (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,                -- earliest start as submitted; no retry changes it
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    id           TEXT    NOT NULL,                -- UUIDv7
    task         TEXT    NOT NULL,                -- JSON
    attempt      INTEGER NOT NULL DEFAULT 0,      -- runs so far
    tries        INTEGER NOT NULL DEFAULT 0,      -- runs that count against the retry policy
    retry_at     INTEGER,                         -- earliest start of the next run after a failed one
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;

-- Finds the tasks of an ordering key that were passed over while memory was full.
CREATE INDEX fairlead_schedule_order ON fairlead_schedule (queue, partition, ordering_key, run_at, unique_key);

-- Keys of completed tasks. A second task with the same key is not run.
CREATE TABLE fairlead_completions (
    queue        TEXT    NOT NULL,
    partition    INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    ordering_key TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    finished_at  INTEGER NOT NULL,
    PRIMARY KEY (queue, partition, run_at, ordering_key, unique_key)
) STRICT, WITHOUT ROWID;

-- Bulk submit ---------------------------------------------------------------------------------------------------------

-- Jobs that submit many tasks. The submitter names the job, so a repeat changes nothing. The staged rows are in files in
-- the folder <database>-bulk.
CREATE TABLE fairlead_bulk_jobs (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    submission_id     TEXT    NOT NULL UNIQUE,
    epoch             TEXT    NOT NULL,           -- of the run that may publish; a later run takes over with its own epoch
    state             TEXT    NOT NULL,           -- open, publishing (chunked: some chunks are published), committed, aborted
    publish           TEXT    NOT NULL,           -- atomic or chunked
    opened_at         INTEGER NOT NULL,           -- when that run began
    touched_at        INTEGER NOT NULL,           -- when the job was last changed
    parts             TEXT,                       -- JSON: the parts to publish; NULL before publishing begins
    staged            INTEGER NOT NULL DEFAULT 0, -- rows of these parts
    published_through INTEGER NOT NULL DEFAULT 0, -- rows handled so far, in order
    inserted          INTEGER NOT NULL DEFAULT 0,
    duplicates        INTEGER NOT NULL DEFAULT 0, -- rows not inserted because their unique key was in use
    rejected          INTEGER NOT NULL DEFAULT 0,
    swept             INTEGER NOT NULL DEFAULT 0  -- boolean: the stage has no rows of the job any more
) STRICT;

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (touched_at);

-- Rows that were refused under on_error = quarantine.
CREATE TABLE fairlead_bulk_rejects (
    submission_id TEXT    NOT NULL,
    attempt       TEXT    NOT NULL,               -- one run of one Spark task
    part          INTEGER NOT NULL,               -- partition of the DataFrame
    ordinal       INTEGER NOT NULL,               -- row of that partition, from 0
    column_name   TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    value         TEXT    NOT NULL,               -- the first characters of the refused value
    published     INTEGER NOT NULL,               -- always 1: rejects are written when the job is published
    PRIMARY KEY (submission_id, attempt, ordinal)
) STRICT, WITHOUT ROWID;
