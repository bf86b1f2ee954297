-- The tickr processes, past and present: who beats, who stopped, who fell silent. The reaper looks here first, so that
-- it need not search the owed rows while everybody is alive.
CREATE TABLE runners (
    id           VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    version      VARCHAR(64) NOT NULL,
    -- Kinds and queues it serves, each a JSON array of names.
    kinds        TEXT NOT NULL,
    queues       TEXT NOT NULL,
    slots        INT UNSIGNED NOT NULL,
    busy         INT UNSIGNED NOT NULL DEFAULT 0,
    lease_ms     INT UNSIGNED NOT NULL,
    started_at   DATETIME(6) NOT NULL,
    heartbeat_at DATETIME(6) NOT NULL,
    stopped_at   DATETIME(6) NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
