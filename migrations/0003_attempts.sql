-- What was done. The append-only ledger: one row for each attempt that ended, written in the transaction that moved its
-- job. The open attempt of an executing job lives in owed and comes here when it ends. The line that ended the job says
-- so, and carries the result.
--
-- A job cancelled while it waited has a closing line without a runner: nobody executed anything, but it ended.
CREATE TABLE attempts (
    job_id      BINARY(16) NOT NULL,
    -- 1 for the first line, without gaps.
    number      SMALLINT UNSIGNED NOT NULL,
    -- Attempts burned up to and including this one, since the job was enqueued or last retried by an operator.
    burned      SMALLINT UNSIGNED NOT NULL,
    runner      VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    execute_at  DATETIME(3) NOT NULL,
    started_at  DATETIME(6) NOT NULL,
    finished_at DATETIME(6) NOT NULL,
    verdict     ENUM('succeeded', 'failed', 'rejected', 'timed_out', 'panicked', 'cancelled', 'interrupted', 'lost',
                     'snoozed') NOT NULL,
    -- The state in which this line left the job, if it ended it. An operator's retry adds lines after such a one.
    end_state   ENUM('completed', 'failed', 'cancelled') NULL,
    error       TEXT NULL,
    result      MEDIUMTEXT NULL,
    -- What the runner of a lost attempt reported after its lease had been taken away. Evidence, without effect.
    late_note   TEXT NULL,
    PRIMARY KEY (job_id, number),
    CONSTRAINT attempts_from_one CHECK (number >= 1 AND burned <= number),
    CONSTRAINT attempts_success_completes CHECK ((verdict = 'succeeded') = (end_state <=> 'completed')),
    CONSTRAINT attempts_success_has_no_error CHECK (verdict <> 'succeeded' OR error IS NULL),
    CONSTRAINT attempts_result_of_success CHECK (result IS NULL OR verdict = 'succeeded'),
    CONSTRAINT attempts_nobody_only_cancels CHECK (runner <> '' OR verdict = 'cancelled'),
    CONSTRAINT attempts_note_only_when_lost CHECK (late_note IS NULL OR verdict = 'lost')
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
