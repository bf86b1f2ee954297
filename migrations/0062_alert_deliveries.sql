-- The jobs that deliver the messages of an alert. The first one tells whether the last message has failed for good, and
-- then it is sent again. The dead letters of these jobs do not count for the thresholds: an alert that cannot be
-- delivered must not keep itself alive.
--
-- Each runner reads the few rows of this table every few seconds, and writes one of them with each message.
ALTER TABLE alerts
    -- The newest 16 jobs, as bytes, the newest first.
    ADD COLUMN deliveries VARBINARY(256) NULL;
