-- Jobs that wait for the end of other jobs, their parents. Jobs without a parent or a child, the common case, pay one
-- byte in `owed`, and never touch the tables below.

-- What the end of the job must be told to: 1 = it belongs to a batch, 2 = other jobs wait for it. The bit 2 may be set
-- while the job executes, so the transaction that ends the job reads it under the lock of this row.
ALTER TABLE owed ADD COLUMN links TINYINT UNSIGNED NOT NULL DEFAULT 0;

-- One row for each pair of a job and one of its parents. It stays until one of the two is removed, for display.
CREATE TABLE job_parents (
    parent_id BINARY(16) NOT NULL,
    child_id  BINARY(16) NOT NULL,
    -- How the parent ended, as far as the child has been told. A parent that completed stays completed for the child,
    -- also when retention removes it.
    outcome   ENUM('completed', 'failed', 'cancelled') NULL,
    PRIMARY KEY (parent_id, child_id),
    KEY job_parents_child (child_id, parent_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row for each job that waits for parents. Its `owed` row has the due time BLOCKED_UNTIL, in the year 9999: so no
-- claim, no scheduler and no index meets it.
CREATE TABLE blocked_jobs (
    job_id            BINARY(16)  NOT NULL PRIMARY KEY,
    -- When the job is due once it does not wait for its parents any more.
    due_at            DATETIME(3) NOT NULL,
    on_parent_failure ENUM('cancel', 'run', 'hold') NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Jobs that ended and have children that are not told yet. The transaction that ends a job inserts its row here, so the
-- end of a parent with any number of children costs one row. Any runner tells the children and deletes the row.
CREATE TABLE parent_ends (
    id        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    parent_id BINARY(16)      NOT NULL,
    -- The children up to this one are told.
    told      BINARY(16)      NOT NULL DEFAULT '',
    KEY parent_ends_parent (parent_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
