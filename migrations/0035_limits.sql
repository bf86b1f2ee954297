-- Limits by key: how many jobs with the same limit key may run at the same time, and how many may start in a period. Jobs
-- that no limit matches never touch these tables.

-- The limits, made by operators.
CREATE TABLE limits (
    name        VARCHAR(64)     NOT NULL PRIMARY KEY,
    -- The jobs to which it applies: all kinds if NULL, all queues if NULL.
    kind        VARCHAR(64)     NULL,
    queue       VARCHAR(64)     NULL,
    -- What jobs share the limit: 'key', those with the same limit key; 'parent', those whose limit keys have the same part
    -- before the first slash; 'all', all jobs to which it applies.
    shared_by   VARCHAR(8)      NOT NULL,
    -- Most attempts at the same time. No such limit if NULL.
    concurrency INT UNSIGNED    NULL,
    -- Most starts in a period, and how many more may come at once. No such limit if NULL.
    rate        INT UNSIGNED    NULL,
    period_ms   INT UNSIGNED    NULL,
    burst       INT UNSIGNED    NULL,
    -- True if the keys share the workers of the runners by their weights.
    fair        BOOLEAN         NOT NULL DEFAULT FALSE,
    -- Other values for single keys, as JSON.
    overrides   MEDIUMTEXT      NULL,
    -- False until the attempts that ran when the limit was set have their rows in limit_slots. No job starts before that.
    counted     BOOLEAN         NOT NULL DEFAULT FALSE,
    changed_at  DATETIME(6)     NOT NULL,
    changed_by  VARCHAR(64)     NOT NULL,
    version     INT UNSIGNED    NOT NULL DEFAULT 1
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row for each key of a limit that jobs have used. The row is the lock for the slots of the key.
CREATE TABLE limit_keys (
    limit_name  VARCHAR(64)     NOT NULL,
    -- Compared as bytes. Empty for a limit that all jobs share.
    limit_key   VARBINARY(255)  NOT NULL,
    -- When the rate allows the next start, if no burst were left (GCRA). NULL without a rate.
    next_start  DATETIME(6)     NULL,
    PRIMARY KEY (limit_name, limit_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row for each attempt that counts against a limit of concurrency, and for each parked job that was let go and has not
-- started yet.
CREATE TABLE limit_slots (
    limit_name  VARCHAR(64)     NOT NULL,
    limit_key   VARBINARY(255)  NOT NULL,
    job_id      BINARY(16)      NOT NULL,
    -- NULL for an attempt. For a job that was let go: the slot is kept for it until then.
    kept_until  DATETIME(6)     NULL,
    PRIMARY KEY (limit_name, limit_key, job_id),
    KEY limit_slots_job (job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row for each parked job: it is due, but its limit leaves no room. Its due time in owed is PARKED_UNTIL, in the year
-- 9999.
CREATE TABLE limit_waits (
    job_id      BINARY(16)      NOT NULL PRIMARY KEY,
    limit_name  VARCHAR(64)     NOT NULL,
    limit_key   VARBINARY(255)  NOT NULL,
    queue       VARCHAR(64)     NOT NULL,
    -- When the job was due.
    due_at      DATETIME(3)     NOT NULL,
    -- The queue is part of it, so that jobs of paused queues are passed over without their rows.
    KEY limit_waits_line (limit_name, limit_key, due_at, job_id, queue)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The limit key of each job that has one, for claims and for searches. It stays until the job is removed.
CREATE TABLE job_limit_keys (
    job_id      BINARY(16)      NOT NULL PRIMARY KEY,
    limit_key   VARBINARY(255)  NOT NULL,
    KEY job_limit_keys_key (limit_key, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
