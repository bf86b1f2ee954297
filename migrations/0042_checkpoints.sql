-- The checkpoint of a job: JSON that its handler saved, for the next attempt to begin with. A job whose handler saves
-- none has no row. Bit 4 of `owed.links` says that there is one, so a claim looks here only for such a job.
--
-- The row is written while the `owed` row of the job is locked and has the token of the attempt, and it is deleted when
-- the job completes. It stays when the job fails or is cancelled, because an operator may retry it.
CREATE TABLE checkpoints (
    job_id   BINARY(16)  NOT NULL PRIMARY KEY,
    -- JSON text of at most 64 KiB.
    content  MEDIUMTEXT  NOT NULL,
    saved_at DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
