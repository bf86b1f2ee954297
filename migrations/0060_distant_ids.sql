-- Jobs whose ids were made more than about five minutes before or after they were accepted: rows that waited in an
-- outbox, and jobs of hosts whose clocks are wrong. The transaction that accepts such a job inserts its row; all others
-- pay nothing.
--
-- A search for a range of creation times reads the ids of that range, a few minutes more on both sides, and the rows
-- here. An index of `jobs` on created_at would find these jobs as well, but every job would pay for it.
CREATE TABLE distant_ids (
    job_id     BINARY(16)  NOT NULL PRIMARY KEY,
    -- A copy of jobs.created_at. MySQL finds the rows of a narrow range by it, and those of a wide one by their ids.
    created_at DATETIME(6) NOT NULL,
    KEY distant_ids_created (created_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
