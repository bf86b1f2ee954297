-- Finds the jobs that failed for good in a range of time, whatever was done about them since: the page of an incident
-- counts them by cause. `since` tells that of open ones only: for the others it is the time of the replay or the
-- discard. Without the index a search for a range of last week reads all dead letters.
--
-- The entry has all columns of that count, so no row is read. It is written when a job fails for good, behind the
-- others, goes with the dead letter, and takes about 60 bytes. A success never touches the table.
ALTER TABLE dead_letters ADD KEY dead_letters_failed (failed_at, kind, queue, fingerprint);
