-- Breakers of hosts: calls to a host stop after some failures in a row, and one call is made after a pause.

-- The breaker of a limit that is shared by host. None if these are NULL.
ALTER TABLE limits
    -- Failed calls in a row after which the breaker of a host opens.
    ADD COLUMN breaker_failures     INT UNSIGNED NULL,
    -- The first pause until one call is made, and the longest one. Each failure doubles the pause.
    ADD COLUMN breaker_pause_ms     INT UNSIGNED NULL,
    ADD COLUMN breaker_max_pause_ms INT UNSIGNED NULL,
    -- When the limit got a breaker. Failures from before it do not count.
    ADD COLUMN breaker_since        DATETIME(6)  NULL;

-- The state of the breaker of each host. A closed breaker without failures has 0 and NULL.
ALTER TABLE limit_keys
    -- Failed calls in a row, the time and the error of the last one.
    ADD COLUMN failures   INT UNSIGNED NOT NULL DEFAULT 0,
    ADD COLUMN failed_at  DATETIME(6)  NULL,
    ADD COLUMN last_error VARCHAR(500) NULL,
    -- Since when it is open.
    ADD COLUMN opened_at  DATETIME(6)  NULL,
    -- The pause that it makes now, when the next call may start, and the job that made it.
    ADD COLUMN pause_ms   INT UNSIGNED NULL,
    ADD COLUMN probe_at   DATETIME(6)  NULL,
    ADD COLUMN probe_job  BINARY(16)   NULL,
    -- Each second the runners look for open breakers whose pause is over.
    ADD KEY limit_keys_probe (probe_at);
