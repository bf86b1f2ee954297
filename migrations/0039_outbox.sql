-- Jobs that other programs request with a plain INSERT in their own transactions: a job exists exactly if the transaction
-- was committed. A runner moves the rows to `jobs` and `owed`, in one transaction with their deletion.
--
-- The columns are a promise to programs that tickr does not know (docs/TRANSACTIONS.md). No index beside the primary key:
-- an INSERT by the application pays for one.
CREATE TABLE tickr_outbox (
    -- Chosen by the application, and the same when it repeats its transaction: a row with the id of a job that was moved
    -- before makes no second job. A UUIDv7 of about now is also the id of the job.
    id         BINARY(16)   NOT NULL PRIMARY KEY,
    kind       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- JSON text. It is checked when the row is moved.
    payload    MEDIUMTEXT   NOT NULL,
    -- NULL for the queue `default`.
    queue      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    -- In UTC. NULL for a job that is due at once.
    execute_at DATETIME(3)  NULL,
    -- Every other option of POST /v1/jobs, as one JSON object.
    options    TEXT         NULL,
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Rows that cannot become jobs, until an operator moves them back or discards them.
CREATE TABLE outbox_rejected (
    id          BINARY(16)   NOT NULL PRIMARY KEY,
    kind        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payload     MEDIUMTEXT   NOT NULL,
    queue       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    execute_at  DATETIME(3)  NULL,
    options     TEXT         NULL,
    created_at  TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    rejected_at DATETIME(6)  NOT NULL,
    reason      TEXT         NOT NULL,
    KEY outbox_rejected_at (rejected_at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The runner that looks for rows all the time, so that the others need not. It is no lock: any process may move rows.
CREATE TABLE outbox_leader (
    id          TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    runner      VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    lease_until DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
