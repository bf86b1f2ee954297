-- Evidence for `tickr verify`, which proves from the tables alone that promises were kept.

-- Jobs that were accepted together: the first one's id, and how many there were. A batch is there as a whole or not at
-- all (G8). NULL, which takes no room, for a job that came alone.
ALTER TABLE jobs
    ADD COLUMN batch_id   BINARY(16) NULL,
    ADD COLUMN batch_size SMALLINT UNSIGNED NULL,
    ADD CONSTRAINT jobs_batch_is_more_than_one CHECK ((batch_id IS NULL) = (batch_size IS NULL) AND (batch_size IS NULL OR batch_size >= 2));

-- When somebody asked for the cancel that this attempt saw. A job is cancelled only if it was asked for (G9).
ALTER TABLE attempts ADD COLUMN cancel_requested_at DATETIME(6) NULL;
UPDATE attempts SET cancel_requested_at = finished_at WHERE end_state = 'cancelled';
