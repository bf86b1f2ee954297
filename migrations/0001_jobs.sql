-- What was asked. One row per job, written exactly once, when the job is accepted; what became of it stands in the
-- ledger (attempts). Rows never change, so they never grow and never split a page.
--
-- Only the primary key is indexed: ids are UUIDv7, so inserts append, and a hundred million finished jobs cost the hot
-- path nothing. Texts that people read are text columns; names compare as bytes (ascii_bin), free keys are VARBINARY.
CREATE TABLE jobs (
    id           BINARY(16)  NOT NULL PRIMARY KEY,
    kind         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    priority     TINYINT UNSIGNED  NOT NULL,
    max_attempts SMALLINT UNSIGNED NOT NULL,
    unique_key   VARBINARY(255) NULL,
    -- The rarer wishes as one JSON object; NULL when there are none.
    options      TEXT NULL,
    -- JSON text, checked before it gets here. Not the JSON type: MySQL would rewrite it, MariaDB only aliases it.
    payload      MEDIUMTEXT NOT NULL,
    -- The first due time. Later ones (retries, snoozes) stand in owed and in the ledger.
    execute_at   DATETIME(3) NOT NULL,
    created_at   DATETIME(6) NOT NULL,
    CONSTRAINT jobs_priority CHECK (priority <= 9),
    CONSTRAINT jobs_max_attempts CHECK (max_attempts BETWEEN 1 AND 100)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
