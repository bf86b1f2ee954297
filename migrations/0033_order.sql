-- Jobs with the same order key run one at a time, in the order in which they were accepted. Jobs without an order key, the
-- common case, never touch these tables.

-- One row for each order key: the places of its jobs that are in use. The row is the lock for every change of a place. It
-- stays when the key has no unfinished job any more, because to delete and insert it again and again would deadlock. The
-- janitor removes it when none of its jobs is kept any more.
CREATE TABLE order_keys (
    -- Compared as bytes: 'abc', 'ABC' and 'abc ' are three keys.
    order_key VARBINARY(255)  NOT NULL PRIMARY KEY,
    -- The place whose job may run. Greater than tail when no place is open.
    head      BIGINT UNSIGNED NOT NULL,
    -- The newest place.
    tail      BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The place of each job with an order key. It stays until the job is removed, as evidence of the order.
CREATE TABLE order_places (
    job_id    BINARY(16)      NOT NULL PRIMARY KEY,
    order_key VARBINARY(255)  NOT NULL,
    place     BIGINT UNSIGNED NOT NULL,
    -- When the job is due once it is at the head. Until then the due time in owed is HELD_UNTIL, in the year 9999: so no
    -- claim, no scheduler and no index meets a job that waits for its turn.
    due_at    DATETIME(3)     NOT NULL,
    -- False once the job lets the next one go: it completed, was cancelled, or failed and does not block.
    open      BOOLEAN         NOT NULL DEFAULT TRUE,
    -- True if the place stays open when the job fails for good.
    blocks    BOOLEAN         NOT NULL,
    -- The next job of a key, and the jobs with a key for a search.
    KEY order_places_line (order_key, place),
    KEY order_places_job (order_key, job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
