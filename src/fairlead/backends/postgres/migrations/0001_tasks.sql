-- Tasks, their history, and what nodes share. Instants are microseconds since 1970 UTC (see the view fairlead_history).

CREATE SEQUENCE fairlead_ready_seq;

-- No index mentions state, version or node: a claim is then a heap-only update (the fill factor leaves it room on the
-- page), and no claim ever walks index entries of dead rows, even while an idle transaction keeps them from vacuum.
CREATE TABLE fairlead_tasks (
    id             uuid             PRIMARY KEY,  -- UUIDv7
    queue          text             NOT NULL,
    partition      smallint         NOT NULL,
    name           text             NOT NULL,
    state          text             NOT NULL,     -- WAITING, SUBMITTED, PROCESSING or ERROR; the others have left this table
    version        integer          NOT NULL DEFAULT 1,
    attempt        integer          NOT NULL DEFAULT 0,  -- runs so far
    tries          integer          NOT NULL DEFAULT 0,  -- runs spent against the retry policy
    priority       smallint         NOT NULL,
    fairness_key   text             NOT NULL,
    weight         double precision NOT NULL,
    ordering_key   text,
    unique_key     text,
    keep_result    boolean          NOT NULL,
    submitted_at   bigint           NOT NULL,
    run_at         bigint           NOT NULL,     -- earliest start of the next run
    ready_at       bigint,                        -- when it last became SUBMITTED
    triggered_at   bigint,
    claimed_at     bigint,
    stuck_at       bigint,
    ready_seq      bigint           DEFAULT nextval('fairlead_ready_seq'),  -- place in its lane; NULL while WAITING or in ERROR
    wake_at        bigint,                        -- run_at while WAITING, else NULL
    node           text,
    trigger_path   text             NOT NULL DEFAULT 'hook',
    error_type     text,
    error_text     text,
    context        text,                          -- JSON object of strings, or NULL
    payload_format text             NOT NULL,
    payload        bytea            NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fairlead_tasks_lane ON fairlead_tasks (queue, partition, priority, ready_seq) WHERE ready_seq IS NOT NULL;
CREATE INDEX fairlead_tasks_due ON fairlead_tasks (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX fairlead_tasks_order ON fairlead_tasks (queue, ordering_key, run_at, id) WHERE ordering_key IS NOT NULL;

-- One row per run of a task, or per end without a run. Append-only. A tail reader takes rows with
-- xid < pg_snapshot_xmin(pg_current_snapshot()) in the order (xid, seq), and so misses none that commits late.
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
    outcome       text             NOT NULL,
    next_state    text             NOT NULL,
    error_type    text,
    error_text    text,
    node          text,
    trigger_path  text             NOT NULL,
    payload_bytes integer          NOT NULL,
    PRIMARY KEY (xid, seq)
);

CREATE INDEX fairlead_attempts_task ON fairlead_attempts (task_id, attempt);

CREATE TABLE fairlead_results (
    task_id     uuid   PRIMARY KEY,
    finished_at bigint NOT NULL,
    result      bytea  NOT NULL                   -- JSON
);

CREATE INDEX fairlead_results_age ON fairlead_results (finished_at);

CREATE TABLE fairlead_unique_keys (
    queue        text   NOT NULL,
    unique_key   text   NOT NULL,
    task_id      uuid   NOT NULL,
    submitted_at bigint NOT NULL,
    PRIMARY KEY (queue, unique_key)
);

CREATE INDEX fairlead_unique_keys_age ON fairlead_unique_keys (submitted_at);

CREATE TABLE fairlead_queues (
    queue      text    PRIMARY KEY,
    partitions integer NOT NULL,
    paused     boolean NOT NULL DEFAULT false
);

CREATE TABLE fairlead_nodes (
    node       text   PRIMARY KEY,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL,
    queues     text   NOT NULL                    -- JSON array
);

CREATE TABLE fairlead_leases (
    name       text   PRIMARY KEY,
    owner      text   NOT NULL,                   -- empty: free
    range_id   bigint NOT NULL,
    expires_at bigint NOT NULL
);

CREATE VIEW fairlead_history AS
SELECT task_id, attempt, queue, name, fairness_key, outcome, next_state, node,
       to_timestamp(submitted_at / 1e6) AS submitted_at,
       to_timestamp(started_at / 1e6) AS started_at,
       to_timestamp(finished_at / 1e6) AS finished_at,
       error_type, error_text
  FROM fairlead_attempts;
