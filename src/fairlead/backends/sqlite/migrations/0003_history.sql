-- What reads the history: who this store is, what people did to tasks, and how far each reader has come.

CREATE TABLE fairlead_store (
    store_id TEXT NOT NULL                        -- tells the rows of one store from those of another, wherever they go
) STRICT;

INSERT INTO fairlead_store (store_id) VALUES (lower(hex(randomblob(16))));

-- What a person, or a program for one, did to a task beside its runs. Append-only; seq order is commit order.
CREATE TABLE fairlead_events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,                -- of the task before it
    kind         TEXT    NOT NULL,                -- resumed, rescheduled, cancelled or marked_failed
    at           INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    weight       REAL    NOT NULL,
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    actor        TEXT,
    details      TEXT                             -- JSON object, or NULL
) STRICT;

-- Who follows the history: nothing is cleaned that one of them has not read. (xid, seq): everything up to there is read.
CREATE TABLE fairlead_readers (
    name        TEXT    PRIMARY KEY,
    kind        TEXT    NOT NULL,                 -- lake: attempts go once checked; stream: once read; events: these, once read
    xid         INTEGER NOT NULL,                 -- 0: this store has one writer
    seq         INTEGER NOT NULL,
    checked_xid INTEGER,                          -- of a lake: up to there it was compared with this store, and agreed
    checked_seq INTEGER,
    updated_at  INTEGER NOT NULL,                 -- when it last said how far it has read
    checked_at  INTEGER                           -- when it was last compared
) STRICT, WITHOUT ROWID;
