-- When a runner lost Redis and when it had it again: for the marks on charts. Nothing that tickr does depends on these
-- rows. The runner inserts one with each change, at most one in five seconds, and removes those that are two days old, in
-- the order of the key. So the jobs pay nothing for them.
CREATE TABLE index_changes (
    -- When the condition changed, by the clock of the database.
    at     DATETIME(6) NOT NULL,
    runner VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- lost: Redis did not answer or refused. back: it takes writes again. emptied: it answered, and its data was gone.
    what   ENUM('lost', 'back', 'emptied') NOT NULL,
    PRIMARY KEY (at, runner)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
