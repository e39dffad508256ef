-- Policies: weights and limits that were computed from the history and published behind guard rails.

CREATE TABLE fairlead_policies (
    version     bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue       text    NOT NULL,
    author      text    NOT NULL,
    why         text    NOT NULL,                 -- what it is for, such as an objective, or a rollback
    computed_at bigint  NOT NULL,
    input_from  bigint,                           -- the history it was computed from
    input_to    bigint,
    input_rows  bigint  NOT NULL,
    raw         text    NOT NULL,                 -- JSON: by fairness key, the weight as computed
    guarded     text    NOT NULL,                 -- JSON: the same, as published
    reasons     text    NOT NULL,                 -- JSON: the same, why
    due         text    NOT NULL,                 -- JSON: by fairness key, its contract; the others' tasks say it
    raw_limits  text    NOT NULL,                 -- JSON: by fairness key, slots of a node as computed
    limits      text    NOT NULL,                 -- JSON: the same, as published
    limit_reasons text    NOT NULL,               -- JSON: the same, why
    is_canary   boolean NOT NULL,
    state       text    NOT NULL,                 -- active, superseded, rolled_back
    supersedes  bigint,                           -- the version that counted before
    judged_at   bigint,                           -- NULL: still on trial
    verdict     text
);

CREATE INDEX fairlead_policies_queue ON fairlead_policies (queue, version);

-- What one publishes, another one supersedes: at most one counts in a queue.
CREATE UNIQUE INDEX fairlead_policies_active ON fairlead_policies (queue) WHERE state = 'active';

-- The kill switch of a queue, or of all of them ('').
CREATE TABLE fairlead_policy_switches (
    queue  text   PRIMARY KEY,
    mode   text   NOT NULL,                       -- off: declared weights count; frozen: nothing is published
    author text   NOT NULL,
    why    text   NOT NULL,
    at     bigint NOT NULL
);

-- NULL: a person set this weight, and no policy touches it.
ALTER TABLE fairlead_weights ADD COLUMN policy bigint;

-- The limits of the version that counts: slots of a fairness key on each node. Limits in the code count beside them.
CREATE TABLE fairlead_limits (
    queue        text    NOT NULL,
    fairness_key text    NOT NULL,
    slots        integer NOT NULL CHECK (slots >= 1),
    policy       bigint  NOT NULL,
    PRIMARY KEY (queue, fairness_key)
);
