-- Jobs that must not start after a moment. Jobs without one, the common case, have NULL here, which takes no bytes in a
-- row, and never touch the table below.
--
-- A claim compares the moment with the clock of the database, so no late start is possible, whatever a runner's clock
-- says. An operator's retry clears it.
ALTER TABLE owed ADD COLUMN expires_at DATETIME(3) NULL;

-- Finds the jobs whose moment has passed, without an index on `owed` that every job would pay for. A row whose job ended
-- in time stays until its moment, and is then only removed.
CREATE TABLE job_expiries (
    job_id  BINARY(16)  NOT NULL PRIMARY KEY,
    -- When a runner looks at the job: at its expiry. Later if the job was executing then, because it may fail and wait
    -- again.
    look_at DATETIME(3) NOT NULL,
    KEY job_expiries_look (look_at, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Marks the line of a job that expired: its verdict is `expired`, and no handler ran. The column `verdict` has `rejected`
-- for it: MySQL copies a table to add a word to an ENUM that CHECK constraints name, and an older binary would not know
-- the word. The line names the runner that found the job.
ALTER TABLE attempts ADD COLUMN expired BOOLEAN NULL;
