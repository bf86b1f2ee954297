-- What operators have set about queues. A queue without a row has nobody's wishes: normal priority, no limit, not paused.
CREATE TABLE queues (
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    -- Before the priority of its jobs: 0 is served first, 9 last.
    priority     TINYINT UNSIGNED NOT NULL DEFAULT 5,
    -- Jobs of this queue that may run at the same time, all runners together; NULL for no limit.
    concurrency  INT UNSIGNED NULL,
    paused_at    DATETIME(6)  NULL,
    paused_by    VARCHAR(160) NULL,
    pause_reason VARCHAR(255) NULL,
    changed_at   DATETIME(6)  NOT NULL,
    changed_by   VARCHAR(160) NOT NULL,
    -- Raised by every change, so that two operators do not overwrite each other unseen.
    version      INT UNSIGNED NOT NULL DEFAULT 0,
    CONSTRAINT queues_priority CHECK (priority <= 9),
    CONSTRAINT queues_paused_by_somebody CHECK (
        (paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NOT NULL OR pause_reason IS NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
