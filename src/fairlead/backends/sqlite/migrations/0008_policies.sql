-- Policies: weights and limits that were computed from the history and published behind guard rails.

CREATE TABLE fairlead_policies (
    version     INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT    NOT NULL,
    author      TEXT    NOT NULL,
    why         TEXT    NOT NULL,                 -- what it is for, such as an objective, or a rollback
    computed_at INTEGER NOT NULL,
    input_from  INTEGER,                          -- the history it was computed from
    input_to    INTEGER,
    input_rows  INTEGER NOT NULL,
    raw         TEXT    NOT NULL,                 -- JSON: by fairness key, the weight as computed
    guarded     TEXT    NOT NULL,                 -- JSON: the same, as published
    reasons     TEXT    NOT NULL,                 -- JSON: the same, why
    due         TEXT    NOT NULL,                 -- JSON: by fairness key, its contract; the others' tasks say it
    raw_limits  TEXT    NOT NULL,                 -- JSON: by fairness key, slots of a node as computed
    limits      TEXT    NOT NULL,                 -- JSON: the same, as published
    limit_reasons TEXT    NOT NULL,               -- JSON: the same, why
    is_canary   INTEGER NOT NULL,
    state       TEXT    NOT NULL,                 -- active, superseded, rolled_back
    supersedes  INTEGER,                          -- the version that counted before
    judged_at   INTEGER,                          -- NULL: still on trial
    verdict     TEXT
) STRICT;

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- What one publishes, another one supersedes: at most one counts in a queue.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- The kill switch of a queue, or of all of them ('').
CREATE TABLE fairlead_policy_switches (
    queue  TEXT    PRIMARY KEY,
    mode   TEXT    NOT NULL,                      -- off: declared weights count; frozen: nothing is published
    author TEXT    NOT NULL,
    why    TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- NULL: a person set this weight, and no policy touches it.
ALTER TABLE fairlead_weights ADD COLUMN policy INTEGER;

-- The limits of the version that counts: slots of a fairness key on each node. Limits in the code count beside them.
CREATE TABLE fairlead_limits (
    queue        TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    slots        INTEGER NOT NULL CHECK (slots >= 1),
    policy       INTEGER NOT NULL,
    PRIMARY KEY (queue, fairness_key)
) STRICT, WITHOUT ROWID;
