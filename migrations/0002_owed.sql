-- What is owed. One narrow row per unfinished job, inserted with the job and deleted when the job ends: the only hot
-- table. A job that is neither here nor ended in jobs is lost; there must never be one.
--
-- One index beside the primary key, on the due time. Claims, renewals and settles go by primary key and repeat what
-- they expect (state, token); none of them touches the index except a retry that moves the due time.
CREATE TABLE owed (
    id           BINARY(16)  NOT NULL PRIMARY KEY,
    -- Copies of what the job asked, so that feeding the index and claiming by kind need no second table.
    kind         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    priority     TINYINT UNSIGNED  NOT NULL,
    max_attempts SMALLINT UNSIGNED NOT NULL,
    -- Does the job hold a row in unique_keys, to be given back when it ends?
    keyed        BOOLEAN NOT NULL DEFAULT FALSE,
    state        ENUM('waiting', 'executing', 'retrying') NOT NULL,
    execute_at   DATETIME(3) NOT NULL,
    -- Executions begun, the open one included: the number of the newest attempt. Raised by the claim, before the
    -- handler starts.
    attempt      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    -- Executions that burned nothing: given back at shutdown, snoozed, or before an operator's retry.
    spared       SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    -- Executions whose runner died. Bounded on its own, so that a job that kills its runner ends.
    losses       SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    -- The lease: who executes, by what right, since when, until when. All NULL unless executing.
    runner       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    token        BINARY(16)  NULL,
    started_at   DATETIME(6) NULL,
    lease_until  DATETIME(6) NULL,
    cancel_requested_at DATETIME(6) NULL,
    progress     VARCHAR(255) NULL,
    KEY owed_due (execute_at),
    CONSTRAINT owed_executing_has_lease CHECK (
        (state = 'executing') = (token IS NOT NULL)
        AND (token IS NULL) = (runner IS NULL)
        AND (token IS NULL) = (started_at IS NULL)
        AND (token IS NULL) = (lease_until IS NULL)),
    CONSTRAINT owed_cancel_only_while_executing CHECK (cancel_requested_at IS NULL OR state = 'executing'),
    CONSTRAINT owed_retrying_was_tried CHECK (state = 'waiting' OR attempt >= 1),
    CONSTRAINT owed_spared_within_attempts CHECK (spared <= attempt)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
