-- The newest lines that were written while an attempt ran, at most 16 KiB. Only an attempt that wrote a line has a row. It
-- is inserted in the transaction that writes the line of the attempt in `attempts`, and goes with the job.
--
-- Not a column of `attempts`: the walks of retention, listings and `tickr verify` read that table in order of its key, and
-- would read the pages of texts that they do not use. A batch of attempts that wrote nothing does not touch this table.
--
-- A binary from before this migration removes a job without these rows. That can happen only after a rollback that lasts
-- longer than the retention of the job; the rows then stay, and no query finds them.
CREATE TABLE attempt_logs (
    job_id     BINARY(16)        NOT NULL,
    number     INT UNSIGNED      NOT NULL,
    -- Size of the log. The page of a job shows it without reading the log.
    size_bytes SMALLINT UNSIGNED NOT NULL,
    log        TEXT              NOT NULL,
    PRIMARY KEY (job_id, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
