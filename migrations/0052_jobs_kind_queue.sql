-- Finds the jobs of a kind or of a queue, in any state, in order of their ids: a search merges the ids of the few pairs
-- of kind and queue that fit. Without the index it looks through all jobs, a million of them in about a second, and the
-- links of the dashboard to a kind or a queue would do so.
--
-- The entry of a job never changes: it is appended behind the others of its pair when the job is accepted and goes with
-- the job, so claims, renewals and settlements do not touch it. It takes about 45 bytes. The kind comes first because
-- there are few of them; a queue is found by one lookup for each kind.
ALTER TABLE jobs ADD INDEX jobs_kind_queue (kind, queue);
