-- Finds the jobs that failed for good in a range of time, whatever was done about them since: the page of an incident
-- counts them by cause. `since` tells that of open ones only: for the others it is the time of the replay or the
-- discard. Without the first index a search for a range of last week reads all dead letters. The second one has the
-- first failure of each cause: the oldest job may have failed later than a younger one.
--
-- The entry of the first index has all columns of that count, so no row is read. Both are written when a job fails for
-- good, behind the others, go with the dead letter, and take about 60 and 40 bytes. A success never touches the table.
ALTER TABLE dead_letters
    ADD KEY dead_letters_failed (failed_at, kind, queue, fingerprint),
    ADD KEY dead_letters_cause (fingerprint, failed_at);
