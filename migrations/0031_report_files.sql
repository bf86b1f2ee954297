-- Finished reports, for every runner. A runner writes a report into its own folder and its content here, so that the other
-- runners can serve it and mail it, also when the first one is gone.

-- One row for each report that is finished. It is written after its content, so a report without this row does not exist.
CREATE TABLE report_files (
    -- The job that made it. A job has one report; another attempt replaces it.
    id         BINARY(16)   NOT NULL PRIMARY KEY,
    name       VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bytes      BIGINT UNSIGNED NOT NULL,
    -- How many rows of report_parts have the content. None: it is in the folder of its runner alone.
    parts      INT UNSIGNED NOT NULL,
    -- SHA-256 of the content, where it is in report_parts.
    digest     BINARY(32)   NULL,
    -- The attempt that made it, whose parts count.
    token      BINARY(16)   NOT NULL,
    -- The runner in whose folder it is, and the host of that runner.
    runner     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    host       VARCHAR(255) NOT NULL,
    made_at    DATETIME(6)  NOT NULL,
    -- When an operator deleted its job. The row stays for a while, to tell runners that the file in their folder goes as well.
    removed_at DATETIME(6)  NULL,
    KEY report_files_removed (removed_at),
    CONSTRAINT report_files_with_content_have_a_digest CHECK (parts = 0 OR digest IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The content, cut into pieces that every server takes in one statement. Each attempt writes parts of its own: those of an
-- attempt that report_files does not name are remains, and are removed.
CREATE TABLE report_parts (
    job_id  BINARY(16)   NOT NULL,
    token   BINARY(16)   NOT NULL,
    number  INT UNSIGNED NOT NULL,
    bytes   INT UNSIGNED NOT NULL,
    content MEDIUMBLOB   NOT NULL,
    made_at DATETIME(6)  NOT NULL,
    PRIMARY KEY (job_id, token, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
