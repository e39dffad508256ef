-- Tasks, their history, and what nodes share. Instants are microseconds since 1970 UTC.

CREATE TABLE fairlead_tasks (
    seq            INTEGER PRIMARY KEY,           -- given once, never again: finds the row without an index
    id             TEXT    NOT NULL,              -- UUIDv7
    queue          TEXT    NOT NULL,
    partition      INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL,              -- WAITING, SUBMITTED, PROCESSING or ERROR; the others have left this table
    version        INTEGER NOT NULL DEFAULT 1,
    attempt        INTEGER NOT NULL DEFAULT 0,    -- runs so far
    tries          INTEGER NOT NULL DEFAULT 0,    -- runs spent against the retry policy
    priority       INTEGER NOT NULL,
    fairness_key   TEXT    NOT NULL,
    weight         REAL    NOT NULL,
    ordering_key   TEXT,
    unique_key     TEXT,
    keep_result    INTEGER NOT NULL,
    submitted_at   INTEGER NOT NULL,
    run_at         INTEGER NOT NULL,              -- earliest start of the next run
    ready_at       INTEGER,                       -- when it last became SUBMITTED
    triggered_at   INTEGER,
    claimed_at     INTEGER,
    stuck_at       INTEGER,
    ready_seq      INTEGER,                       -- place in its lane; NULL while WAITING or in ERROR
    node           TEXT,
    trigger_path   TEXT    NOT NULL,
    error_type     TEXT,
    error_text     TEXT,
    context        TEXT,                          -- JSON object of strings, or NULL
    payload_format TEXT    NOT NULL,
    payload        BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX fairlead_tasks_id ON fairlead_tasks (id);
-- A claim changes no index: an entry leaves its lane when the task ends or waits again.
CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL;
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (run_at) WHERE state = 'WAITING';
CREATE INDEX fairlead_tasks_error ON fairlead_tasks (submitted_at) WHERE state = 'ERROR';
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, run_at, id) WHERE ordering_key IS NOT NULL;

-- One row per run of a task, or per end without a run. Append-only; seq order is commit order.
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
    outcome       TEXT    NOT NULL,
    next_state    TEXT    NOT NULL,
    error_type    TEXT,
    error_text    TEXT,
    node          TEXT,
    trigger_path  TEXT    NOT NULL,
    payload_bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

-- Which tasks were claimed together: one row a batch, deleted when all of it has ended. What a dead node held is found
-- here, so that no index on tasks has to follow every claim.
CREATE TABLE fairlead_claims (
    batch    INTEGER PRIMARY KEY,
    node     TEXT    NOT NULL,
    stuck_at INTEGER NOT NULL,                    -- the earliest of its tasks
    seqs     TEXT    NOT NULL                     -- JSON array of fairlead_tasks.seq
) STRICT;

CREATE TABLE fairlead_results (
    task_id     TEXT    PRIMARY KEY,
    finished_at INTEGER NOT NULL,
    result      BLOB    NOT NULL                  -- JSON
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

CREATE TABLE fairlead_unique_keys (
    queue        TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    submitted_at INTEGER NOT NULL,
    PRIMARY KEY (queue, unique_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (submitted_at);

CREATE TABLE fairlead_queues (
    queue      TEXT    PRIMARY KEY,
    partitions INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE fairlead_nodes (
    node       TEXT    PRIMARY KEY,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    queues     TEXT    NOT NULL                   -- JSON array
) STRICT, WITHOUT ROWID;

CREATE TABLE fairlead_leases (
    name       TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,                  -- empty: free
    range_id   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE fairlead_sequence (
    value INTEGER NOT NULL                        -- the greatest ready_seq given
) STRICT;

INSERT INTO fairlead_sequence (value) VALUES (0);
