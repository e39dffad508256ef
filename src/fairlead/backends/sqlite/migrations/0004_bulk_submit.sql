-- Bulk submit: jobs that put many tasks in, named by the submitter so that a repeat changes nothing. What they stage lies in
-- files beside the database, in the folder <database>-bulk.

CREATE TABLE fairlead_bulk_jobs (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    submission_id     TEXT    NOT NULL UNIQUE,
    epoch             TEXT    NOT NULL,           -- of the run that may publish; a later run takes over with its own
    state             TEXT    NOT NULL,           -- open, publishing (chunked: some chunks are in), committed, aborted
    publish           TEXT    NOT NULL,           -- atomic or chunked
    opened_at         INTEGER NOT NULL,           -- by that run
    touched_at        INTEGER NOT NULL,           -- when anything was last done for it
    parts             TEXT,                       -- JSON: what is published, from the moment publishing begins
    staged            INTEGER NOT NULL DEFAULT 0, -- rows of these parts
    published_through INTEGER NOT NULL DEFAULT 0, -- so many of them, in order, have been dealt with
    inserted          INTEGER NOT NULL DEFAULT 0,
    duplicates        INTEGER NOT NULL DEFAULT 0, -- not inserted: their unique key was taken
    rejected          INTEGER NOT NULL DEFAULT 0,
    swept             INTEGER NOT NULL DEFAULT 0  -- nothing of it is left in the stage
) STRICT;

CREATE INDEX fairlead_bulk_jobs_age ON fairlead_bulk_jobs (touched_at);

-- Rows that were refused under on_error = quarantine.
CREATE TABLE fairlead_bulk_rejects (
    submission_id TEXT    NOT NULL,
    attempt       TEXT    NOT NULL,
    part          INTEGER NOT NULL,               -- partition of the DataFrame
    ordinal       INTEGER NOT NULL,               -- row of that partition, from 0
    column_name   TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    value         TEXT    NOT NULL,               -- its first characters
    published     INTEGER NOT NULL,               -- always 1: written when the job is published
    PRIMARY KEY (submission_id, attempt, ordinal)
) STRICT, WITHOUT ROWID;
