-- Which version of each kind's payload type a runner has, as digests: a JSON object. During a deploy two versions work side
-- by side, and a payload that one cannot read waits for a runner of the other. NULL for runners of older binaries, which may
-- be able to read anything.
ALTER TABLE runners ADD COLUMN kind_schemas MEDIUMTEXT NULL;

-- When a job first failed with the same cause, if it was retried since and failed again: its group is as old as that. NULL for
-- a job that failed once. The key answers for a whole group without its rows.
ALTER TABLE dead_letters
    ADD COLUMN first_failed_at DATETIME(6) NULL,
    ADD KEY dead_letters_first (fingerprint, standing, first_failed_at);
