-- When the clock of this server was set, as runners noticed it. By times alone a clock that was set back looks like an attempt
-- that began before the one before it ended; `tickr verify` looks here before it says so. The newest thousand rows are kept.
CREATE TABLE clock_steps (
    -- A UUIDv7 made by the runner that noticed.
    id        BINARY(16)  NOT NULL PRIMARY KEY,
    runner    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- What the clock showed at the last reading before it was set, and at the first one after.
    before_at DATETIME(6) NOT NULL,
    after_at  DATETIME(6) NOT NULL,
    -- By how much it was set, at the least; negative for back.
    step_us   BIGINT      NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
