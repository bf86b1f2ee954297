-- Kinds of the jobs that may follow the successes of a receiver, as a JSON list of names. A receiver shows no API key
-- with its verdicts, so the operator who declares it says what it may enqueue. NULL: nothing, as for older binaries. An
-- older binary also writes NULL when it changes a declaration: a right is lost then, and none is given.
--
-- Read with the other columns of the few rows of this table.
ALTER TABLE declared_kinds
    ADD COLUMN push_follow_ups TEXT CHARACTER SET ascii COLLATE ascii_bin NULL;
