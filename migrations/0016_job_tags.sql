-- Words that callers put on jobs to find them again. Only jobs that have tags write here, in the transaction that accepts
-- them; the job's own row has them too (options), this is the way to find it. Rows go when their job is purged.
CREATE TABLE job_tags (
    -- Compared as bytes.
    tag    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    job_id BINARY(16) NOT NULL,
    -- Newest or oldest first, from any job on, without sorting.
    PRIMARY KEY (tag, job_id),
    -- For the purge.
    KEY job_tags_job (job_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
