-- At most one unfinished job per (kind, key). A row lives exactly as long as its job is owed. Jobs without a key, the
-- common case, never touch this table.
CREATE TABLE unique_keys (
    kind       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Compared as bytes: 'abc', 'ABC' and 'abc ' are three keys.
    unique_key VARBINARY(255) NOT NULL,
    job_id     BINARY(16) NOT NULL,
    PRIMARY KEY (kind, unique_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
