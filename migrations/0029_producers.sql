-- What a key for producers may reach. Each of the two is NULL for a key without such a limit, and for keys of older binaries.
-- kinds: the only kinds that the key may enqueue, comma separated. producer: the name under which its jobs with unique keys
-- are its own; keys with the same one share them, so that a key can be replaced by another while its jobs wait.
-- Who made a job with a unique key stands with the job, in its options: it must be known after the job has ended as well.
ALTER TABLE api_keys
    ADD COLUMN kinds    TEXT        CHARACTER SET ascii COLLATE ascii_bin NULL,
    ADD COLUMN producer VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL;
