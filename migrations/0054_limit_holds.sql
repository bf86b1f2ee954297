-- How long a job waited for a limit by key before each of its attempts: for the timeline of the job.

-- When the job was parked. NULL for jobs that were parked by binaries from before this column.
ALTER TABLE limit_waits ADD COLUMN parked_at DATETIME(6) NULL;

-- One row for each attempt that was parked before it began. The transaction that lets the job go inserts it, so jobs that
-- are never parked pay nothing. A job that was let go and parked again before it began keeps its first parked_at.
CREATE TABLE limit_holds (
    job_id      BINARY(16)        NOT NULL,
    -- The number of the attempt that was to begin.
    attempt     SMALLINT UNSIGNED NOT NULL,
    limit_name  VARCHAR(64)       NOT NULL,
    limit_key   VARBINARY(255)    NOT NULL,
    -- The due time of the job apart from the limit.
    due_at      DATETIME(3)       NOT NULL,
    parked_at   DATETIME(6)       NOT NULL,
    released_at DATETIME(6)       NOT NULL,
    PRIMARY KEY (job_id, attempt)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
