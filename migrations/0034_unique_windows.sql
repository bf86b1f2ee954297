-- A job with unique_for keeps its unique key for a while after it completed. The row outlives the job's row in owed then.
-- NULL for all others: their row goes when the job ends.
ALTER TABLE unique_keys
    ADD COLUMN held_until DATETIME(3) NULL,
    -- The janitor removes the rows whose time is over.
    ADD KEY unique_keys_window (held_until);
