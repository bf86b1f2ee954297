-- Attempts whose verdict comes through the API, from a system that has the finish key: a receiver of a callback answered
-- 202, or a handler asked for it. The key opens this one attempt; only its digest is stored.
--
-- The row is written before the key leaves the runner. While the handler runs, and after the attempt has ended, `look_at`
-- is NULL. In between it is the time at which the attempt times out unless the system reports or finishes before.
-- `owed.lease_until` is half a minute later, so that the attempt is found by its lease if no runner looks here.
CREATE TABLE deferred_attempts (
    finish_key       BINARY(32)   NOT NULL PRIMARY KEY,
    job_id           BINARY(16)   NOT NULL,
    token            BINARY(16)   NOT NULL,
    number           INT UNSIGNED NOT NULL,
    within_ms        BIGINT UNSIGNED NOT NULL DEFAULT 0,
    -- 0 when the system need not report.
    report_within_ms BIGINT UNSIGNED NOT NULL DEFAULT 0,
    deadline_at      DATETIME(6)  NULL,
    look_at          DATETIME(6)  NULL,
    KEY deferred_attempts_job (job_id),
    KEY deferred_attempts_look (look_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
