-- What operators see of runners and ask of them.

ALTER TABLE runners
    -- Where the process is. NULL for runners of older binaries.
    ADD COLUMN host          VARCHAR(255) NULL,
    ADD COLUMN pid           INT UNSIGNED NULL,
    -- Its own clock minus the database's, as of its last beat. Nothing depends on it; people wonder about log lines.
    ADD COLUMN clock_skew_ms BIGINT NULL,
    -- The jobs in its slots at its last beat, 16 bytes each, the longest running 200 at most. Written with the beat, and
    -- only when they are others than before. Executing rows cannot be found by runner without a search of all owed rows,
    -- and an index for it would be paid by every claim and every settle.
    ADD COLUMN slot_jobs     VARBINARY(3200) NULL,
    -- Since when it is asked to take no new work, by whom and why. Ends with the process.
    ADD COLUMN drained_at    DATETIME(6)  NULL,
    ADD COLUMN drained_by    VARCHAR(160) NULL,
    ADD COLUMN drain_reason  VARCHAR(255) NULL;

-- Checks of everything that operators asked for over HTTP, and what they found: the newest few.
CREATE TABLE verifications (
    id          BINARY(16)   NOT NULL PRIMARY KEY,
    runner      VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    started_at  DATETIME(6)  NOT NULL,
    started_by  VARCHAR(160) NOT NULL,
    -- Only jobs made since then; all when NULL.
    since       DATETIME(6)  NULL,
    -- If it has not ended by then, its runner died, and another may begin.
    expires_at  DATETIME(6)  NOT NULL,
    finished_at DATETIME(6)  NULL,
    -- What was found, as JSON; or why it came to nothing.
    report      MEDIUMTEXT   NULL,
    failure     TEXT         NULL,
    -- 1 while it is under way, NULL afterwards: the unique key is the lock of many runners.
    under_way   TINYINT UNSIGNED NULL,
    UNIQUE KEY verifications_one_at_a_time (under_way),
    CONSTRAINT verifications_ends_once CHECK ((under_way IS NULL) = (finished_at IS NOT NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
