-- Kinds that programs in other languages execute: `PUT /v1/kinds/{kind}`. Every runner keeps a copy, which it compares
-- once a second by name, version and time of change, so the schemas are read only after a change.
CREATE TABLE declared_kinds (
    name         VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    description  VARCHAR(500) NULL,
    -- JSON Schema of the payload; NULL accepts any JSON.
    payload_schema MEDIUMTEXT NULL,
    -- Defaults for jobs that set none of their own. `retry` is a JSON object, as in the options of a job.
    max_attempts INT UNSIGNED NOT NULL,
    timeout_ms   BIGINT UNSIGNED NOT NULL,
    retry        TEXT         NOT NULL,
    -- NULL: the queue `default`.
    queue        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    changed_at   DATETIME(6)  NOT NULL,
    changed_by   VARCHAR(160) NOT NULL,
    version      INT UNSIGNED NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
