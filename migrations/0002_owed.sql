-- What is owed. One narrow row per unfinished job, inserted with the job and deleted when the job ends: the only hot
-- table. A job that is neither here nor ended in the ledger is lost; there must never be one.
--
-- One index beside the primary key, on the due time. Claims, renewals and settles go by primary key and repeat what
-- they expect (state, token); none of them touches the index except a retry that moves the due time.
--
-- The columns that a claim fills have stand-ins of their final width instead of NULL. InnoDB stores NULL in no bytes at
-- all, so filling a NULL makes the row grow and sooner or later splits its page; with stand-ins a claim rewrites the row
-- in place, which took a quarter of the redo log and a fifth less time when it was measured (see ARCHITECTURE.md).
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
    -- The lease: who executes, by what right, since when, until when. All stand-ins unless executing.
    runner       CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    token        BINARY(16)  NOT NULL DEFAULT '',
    started_at   DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    lease_until  DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    -- Rare, so NULL until somebody asks or says something.
    cancel_requested_at DATETIME(6) NULL,
    progress     VARCHAR(255) NULL,
    KEY owed_due (execute_at),
    CONSTRAINT owed_executing_has_lease CHECK (
        (state = 'executing') = (runner <> '')
        AND (runner <> '') = (token <> 0x00000000000000000000000000000000)
        AND (runner <> '') = (started_at > '1970-01-01 00:00:00')
        AND (runner <> '') = (lease_until > '1970-01-01 00:00:00')),
    CONSTRAINT owed_cancel_only_while_executing CHECK (cancel_requested_at IS NULL OR state = 'executing'),
    CONSTRAINT owed_tried_unless_waiting CHECK (state = 'waiting' OR attempt >= 1),
    CONSTRAINT owed_spared_within_attempts CHECK (spared <= attempt)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
