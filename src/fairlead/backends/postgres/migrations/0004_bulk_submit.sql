-- Bulk submit: jobs that put many tasks in, named by the submitter so that a repeat changes nothing; and what they stage.

CREATE TABLE fairlead_bulk_jobs (
    submission_id     text    PRIMARY KEY,
    number            bigint  GENERATED ALWAYS AS IDENTITY,  -- short for it in the stage
    epoch             text    NOT NULL,           -- of the run that may publish; a later run takes over with its own
    state             text    NOT NULL,           -- open, publishing (chunked: some chunks are in), committed, aborted
    publish           text    NOT NULL,           -- atomic or chunked
    opened_at         bigint  NOT NULL,           -- by that run
    touched_at        bigint  NOT NULL,           -- when anything was last done for it
    parts             text,                       -- JSON: what is published, from the moment publishing begins
    staged            bigint  NOT NULL DEFAULT 0, -- rows of these parts
    published_through bigint  NOT NULL DEFAULT 0, -- so many of them, in order, have been dealt with
    inserted          bigint  NOT NULL DEFAULT 0,
    duplicates        bigint  NOT NULL DEFAULT 0, -- not inserted: their unique key was taken
    rejected          bigint  NOT NULL DEFAULT 0,
    swept             boolean NOT NULL DEFAULT false  -- nothing of it is left in the stage
);

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (touched_at);

-- Rows on their way, an attempt (one run of one Spark task) in one transaction. Kept in the log like everything else: what
-- is published in chunks must outlive a crash of the server between two of them.
CREATE TABLE fairlead_bulk_stage (
    job            bigint           NOT NULL,
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
    attempt       uuid    NOT NULL,
    part          integer NOT NULL,               -- partition of the DataFrame
    ordinal       bigint  NOT NULL,               -- row of that partition, from 0
    column_name   text    NOT NULL,
    reason        text    NOT NULL,
    value         text    NOT NULL,               -- its first characters
    published     boolean NOT NULL DEFAULT false, -- false: of an attempt that came to nothing, or of a job under way
    PRIMARY KEY (submission_id, attempt, ordinal)
);
