-- Jobs that belong together: a batch counts the ends of its jobs, and its callbacks are jobs that follow from the counts.

CREATE TABLE batches (
    id              BINARY(16)   NOT NULL PRIMARY KEY,
    name            VARCHAR(200) NULL,
    -- The batch that counts this one as one of its jobs.
    parent          BINARY(16)   NULL,
    actor           VARCHAR(160) NOT NULL,
    created_at      DATETIME(6)  NOT NULL,
    -- No job is expected from outside any more, so the batch may end.
    closed_at       DATETIME(6)  NULL,
    cancelled_at    DATETIME(6)  NULL,
    -- When a job failed for good for the first time.
    failed_at       DATETIME(6)  NULL,
    -- When all jobs had ended for the first time.
    completed_at    DATETIME(6)  NULL,
    -- When all jobs had completed.
    succeeded_at    DATETIME(6)  NULL,
    -- Jobs by their ends, as far as `batch_changes` is added up. What is left of the total is unfinished.
    total           INT NOT NULL DEFAULT 0,
    completed       INT NOT NULL DEFAULT 0,
    failed          INT NOT NULL DEFAULT 0,
    cancelled       INT NOT NULL DEFAULT 0,
    -- The callbacks as JSON, each a job with the id that it will have.
    callbacks       MEDIUMTEXT NULL,
    KEY batches_parent (parent, id),
    -- Those that retention looks at.
    KEY batches_completed (completed_at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The jobs of the batches. The row stays until the job is removed.
CREATE TABLE batch_jobs (
    job_id   BINARY(16) NOT NULL PRIMARY KEY,
    batch_id BINARY(16) NOT NULL,
    KEY batch_jobs_batch (batch_id, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Changes of the counts. A transaction that accepts or ends jobs inserts one row for each batch and locks no other row,
-- so the jobs of a batch end without waiting for each other. A runner adds the rows up and deletes them.
CREATE TABLE batch_changes (
    id        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    batch_id  BINARY(16)      NOT NULL,
    total     INT NOT NULL,
    completed INT NOT NULL,
    failed    INT NOT NULL,
    cancelled INT NOT NULL,
    KEY batch_changes_batch (batch_id, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Batches whose cancel is under way. A runner cancels their jobs, and deletes the row when none is left.
CREATE TABLE batch_cancels (
    batch_id   BINARY(16)  NOT NULL PRIMARY KEY,
    -- When jobs were last cancelled. If that is some seconds ago, another runner goes on.
    touched_at DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
