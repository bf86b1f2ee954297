-- Tables that only grew now end, and what retention or an operator removes leaves enough evidence for `tickr verify`.

-- Living runners, and the ones that stopped last, without reading all that ever ran. The janitor deletes old ones by it.
ALTER TABLE runners ADD KEY runners_stopped (stopped_at, started_at);

-- When a tally last changed. The server keeps it, so no statement that counts pays for it. Rows that rest are added up in
-- lane 0, and those of queues that rest for longer than any job is kept are added to the queue '_other'.
ALTER TABLE tallies ADD COLUMN changed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP;

-- Open failures by queue, without the rows.
ALTER TABLE dead_letters ADD KEY dead_letters_queue (standing, queue);

-- The job of this tick was removed after it had ended: by an operator or by retention. It is not lost.
ALTER TABLE ticks ADD COLUMN job_removed BOOLEAN NOT NULL DEFAULT FALSE;

-- How many jobs of a batch were removed after they had ended, for batches of which some jobs are still there. The row goes
-- with the last job of the batch.
CREATE TABLE departures (
    -- The first job of the batch, as in jobs.batch_id.
    id   BINARY(16) NOT NULL PRIMARY KEY,
    jobs SMALLINT UNSIGNED NOT NULL,
    -- How many there were in all.
    size SMALLINT UNSIGNED NOT NULL,
    -- The last removal.
    at   DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
