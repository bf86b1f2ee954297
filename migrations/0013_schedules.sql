-- Jobs that come by the clock: one row per schedule. What it asks for changes only by somebody's hand, and each change
-- raises its version; where it stands (next_at, last_at, last_job) changes with each tick.
--
-- A tick is seen to by whoever locks this row first and finds that next_at still is what was due. That compare and set
-- is what makes it fire exactly once, with any number of runners.
CREATE TABLE schedules (
    name       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    -- Either a cron expression, or an interval with the moment that it is counted from.
    cron       VARCHAR(255) NULL,
    every_ms   BIGINT UNSIGNED NULL,
    anchor     DATETIME(3) NULL,
    zone       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    dst        ENUM('once', 'skip', 'both') NOT NULL,
    misfire    ENUM('skip', 'one', 'all') NOT NULL,
    grace_ms   INT UNSIGNED NOT NULL,
    overlap    ENUM('allow', 'skip', 'replace') NOT NULL,
    -- The jobs it makes.
    kind       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    priority   TINYINT UNSIGNED NOT NULL,
    -- NULL for the kind's own, as it is when the tick fires.
    max_attempts SMALLINT UNSIGNED NULL,
    -- The rarer wishes as one JSON object, like those of a job; NULL when there are none.
    options    TEXT NULL,
    payload    MEDIUMTEXT NOT NULL,
    -- Who owns it: whoever calls the API, or the configuration file.
    origin     ENUM('api', 'config') NOT NULL,
    version    INT UNSIGNED NOT NULL DEFAULT 1,
    -- The first tick that nobody has seen to; NULL when there will be none.
    next_at    DATETIME(3) NULL,
    -- The last tick that somebody has seen to. What is planned next lies beyond it, also after the clock was set back.
    last_at    DATETIME(3) NULL,
    -- The job of the last tick that fired, or of somebody's trigger: what the overlap policy is about.
    last_job   BINARY(16) NULL,
    paused_at    DATETIME(6) NULL,
    paused_by    VARCHAR(160) NULL,
    pause_reason VARCHAR(1000) NULL,
    created_at DATETIME(6) NOT NULL,
    created_by VARCHAR(160) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    updated_by VARCHAR(160) NOT NULL,
    -- Runners ask for what is due next.
    KEY schedules_next (next_at),
    CONSTRAINT schedules_one_cadence CHECK ((cron IS NULL) <> (every_ms IS NULL) AND (every_ms IS NULL) = (anchor IS NULL)),
    CONSTRAINT schedules_priority CHECK (priority <= 9),
    CONSTRAINT schedules_pause CHECK ((paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NOT NULL OR pause_reason IS NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
