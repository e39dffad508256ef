-- What reads the history: who this store is, what people did to tasks, and how far each reader has come.

CREATE TABLE fairlead_store (
    store_id text NOT NULL                        -- tells the rows of one store from those of another, wherever they go
);

INSERT INTO fairlead_store (store_id) VALUES (gen_random_uuid()::text);

-- What a person, or a program for one, did to a task beside its runs. Append-only, read like the attempts.
CREATE TABLE fairlead_events (
    xid          xid8             NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint           GENERATED ALWAYS AS IDENTITY,
    task_id      uuid             NOT NULL,
    version      integer          NOT NULL,       -- of the task before it
    kind         text             NOT NULL,       -- resumed, rescheduled, cancelled or marked_failed
    at           bigint           NOT NULL,
    queue        text             NOT NULL,
    name         text             NOT NULL,
    fairness_key text             NOT NULL,
    weight       double precision NOT NULL,
    priority     smallint         NOT NULL,
    run_at       bigint           NOT NULL,
    actor        text,
    details      text,                            -- JSON object, or NULL
    PRIMARY KEY (xid, seq)
);

-- Who follows the history: nothing is cleaned that one of them has not read. (xid, seq): everything up to there is read.
CREATE TABLE fairlead_readers (
    name        text   PRIMARY KEY,
    kind        text   NOT NULL,                  -- lake: attempts go once checked; stream: once read; events: these, once read
    xid         bigint NOT NULL,
    seq         bigint NOT NULL,
    checked_xid bigint,                           -- of a lake: up to there it was compared with this store, and agreed
    checked_seq bigint,
    updated_at  bigint NOT NULL,                  -- when it last said how far it has read
    checked_at  bigint                            -- when it was last compared
);
