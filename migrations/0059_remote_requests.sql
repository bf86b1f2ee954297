-- Late copies of requests of remote workers: a process that was suspended reads one when the worker has long sent it again
-- to another process. It must not take attempts away that the worker executes. Both columns are read and written with rows
-- that a request for jobs reads anyway.

ALTER TABLE runners
    -- The 32 requests for jobs of a remote worker before its newest one, as bytes, the newest first.
    ADD COLUMN fetched VARBINARY(512) NULL;

ALTER TABLE claim_batches
    -- 1: a repeated request for jobs got these attempts as well. 2: the worker has listed all of them that were open, so they
    -- have arrived.
    ADD COLUMN reached TINYINT UNSIGNED NOT NULL DEFAULT 0;
