-- What was done. The append-only ledger: one row for each attempt that ended, written in the transaction that moved
-- its job. The open attempt of an executing job lives in owed and comes here when it ends.
CREATE TABLE attempts (
    job_id      BINARY(16) NOT NULL,
    -- 1 for the first execution, without gaps.
    number      SMALLINT UNSIGNED NOT NULL,
    -- Attempts burned up to and including this one, since the job was enqueued or last retried by an operator.
    burned      SMALLINT UNSIGNED NOT NULL,
    runner      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    execute_at  DATETIME(3) NOT NULL,
    started_at  DATETIME(6) NOT NULL,
    finished_at DATETIME(6) NOT NULL,
    verdict     ENUM('succeeded', 'failed', 'rejected', 'timed_out', 'panicked', 'cancelled', 'interrupted', 'lost',
                     'snoozed') NOT NULL,
    error       TEXT NULL,
    -- What the runner of a lost attempt reported after its lease had been taken away. Evidence, without effect.
    late_note   TEXT NULL,
    PRIMARY KEY (job_id, number),
    CONSTRAINT attempts_from_one CHECK (number >= 1),
    CONSTRAINT attempts_success_has_no_error CHECK (verdict <> 'succeeded' OR error IS NULL),
    CONSTRAINT attempts_note_only_when_lost CHECK (late_note IS NULL OR verdict = 'lost')
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
