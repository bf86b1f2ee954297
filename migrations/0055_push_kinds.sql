-- Declared kinds that tickr hands to a receiver: it calls push_url with each attempt. NULL: remote workers fetch the jobs,
-- which is what older binaries do with every declared kind.
--
-- push_secret signs the calls. It has to be readable here, because tickr signs with it; no answer of the API, no log and
-- no audit record shows it. push_lease_ms NULL: a receiver that answered 202 need not report.
ALTER TABLE declared_kinds
    ADD COLUMN push_url       VARCHAR(2048) NULL,
    ADD COLUMN push_secret    VARCHAR(120) CHARACTER SET ascii COLLATE ascii_bin NULL,
    ADD COLUMN push_answer_ms INT UNSIGNED NULL,
    ADD COLUMN push_lease_ms  INT UNSIGNED NULL;
