-- What operators ask to be done to many jobs at once. A runner leases an operation, walks the jobs of its filter from the
-- oldest to the newest, and moves a batch of them in one transaction with this row: whatever dies, no job is moved twice
-- and none is passed over. The row is locked by every batch, so that a cancel that has been answered moves nothing more.
CREATE TABLE operations (
    -- A UUIDv7 made with the request, so that a repeated write recognises its own row, and listings go by age.
    id          BINARY(16) NOT NULL PRIMARY KEY,
    action      ENUM('cancel', 'retry', 'run_now', 'reschedule', 'set_priority', 'delete', 'replay', 'discard') NOT NULL,
    -- Which jobs, and how: JSON. The filter always has a latest moment of creation, so that the set does not grow by what
    -- the operation itself brings about.
    filter      MEDIUMTEXT NOT NULL,
    params      TEXT NOT NULL,
    -- Jobs per second; NULL for as fast as it goes.
    rate        INT UNSIGNED NULL,
    state       ENUM('running', 'done', 'cancelled', 'failed') NOT NULL DEFAULT 'running',
    actor       VARCHAR(160) NOT NULL,
    created_at  DATETIME(6) NOT NULL,
    started_at  DATETIME(6) NULL,
    ended_at    DATETIME(6) NULL,
    -- How far the walk has come: the last job that was looked at.
    place       BINARY(16) NULL,
    done        INT UNSIGNED NOT NULL DEFAULT 0,
    skipped     INT UNSIGNED NOT NULL DEFAULT 0,
    failed      INT UNSIGNED NOT NULL DEFAULT 0,
    -- What a capped count found at the start.
    estimate    INT UNSIGNED NOT NULL,
    capped      BOOLEAN NOT NULL,
    last_error  VARCHAR(500) NULL,
    -- Who carries it out, by what right, until when.
    runner      VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    token       BINARY(16)  NOT NULL DEFAULT '',
    lease_until DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    KEY operations_state (state, id),
    CONSTRAINT operations_end CHECK ((state = 'running') = (ended_at IS NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
