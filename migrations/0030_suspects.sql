-- A suspect, which is a job that lost two attempts in a row, runs in a process of its own, which is a runner with a lease and
-- a heartbeat like any other.

ALTER TABLE runners
    -- The runner that started it to run one suspect, and whose worker slot it uses. NULL for every other runner.
    ADD COLUMN parent VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL;
