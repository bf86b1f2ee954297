-- What the repetition of a count, and a limit that is changed, have to know about the keys of limits.

-- The attempt whose call to a host still has to count for the breaker of a key. NULL once it counted, for a slot that
-- is kept for a job, and for an attempt that was claimed before this column existed.
--
-- The transaction that counts a call is repeated when the answer to its COMMIT is lost. Then this says whether the
-- first run counted. The slot alone does not: an attempt that another system finishes keeps its slot after its call,
-- and by the time of the repetition the next attempt of the job may have the slot. Only the repetition reads it, by the
-- index on the job.
ALTER TABLE limit_slots ADD COLUMN call_token BINARY(16) NULL;

-- The rate that the last start of a key followed: the time between two starts, and the burst. After a change of the
-- rate they tell how many starts the key is ahead, so that those before the change count against the new rate. NULL
-- without a rate, and after a start by a binary from before these columns: then the rate counts as unchanged.
ALTER TABLE limit_keys
    ADD COLUMN start_interval_us BIGINT NULL,
    ADD COLUMN start_burst       INT UNSIGNED NULL;
