-- Jobs that failed for good: one narrow row for each, written in the transaction that ends the job as failed, removed when
-- an operator retries the same job, and purged with it. The ledger knows the same, but to find the few that failed among
-- millions that ended it would have to be read as a whole.
--
-- Groups are counted from the indexes here and kept nowhere: a counter would be one hot row in a flood of failures, and
-- one more thing that can be wrong.
CREATE TABLE dead_letters (
    job_id      BINARY(16) NOT NULL PRIMARY KEY,
    kind        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queue       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Of the kind and the normalised error.
    fingerprint BINARY(8)   NOT NULL,
    failed_at   DATETIME(6) NOT NULL,
    -- The beginning of the error, to show the group by; the whole of it stands in the ledger.
    error       VARCHAR(500) NOT NULL,
    standing    ENUM('open', 'replayed', 'discarded') NOT NULL DEFAULT 'open',
    -- Since when it stands so: open ones since they failed.
    since       DATETIME(6) NOT NULL,
    -- The job that was made of it.
    replayed_as BINARY(16)   NULL,
    -- Who replayed or discarded it, and why it was discarded.
    actor       VARCHAR(160) NULL,
    reason      VARCHAR(500) NULL,
    -- Walks through a group, and through all of one standing, from any job on.
    KEY dead_letters_group (fingerprint, job_id),
    KEY dead_letters_standing (standing, job_id),
    -- Counts groups and ages without the rows, and finds what was discarded long ago.
    KEY dead_letters_since (standing, since, kind, fingerprint),
    CONSTRAINT dead_letters_replay_has_its_job CHECK ((standing = 'replayed') = (replayed_as IS NOT NULL)),
    CONSTRAINT dead_letters_somebody_did_it CHECK ((standing = 'open') = (actor IS NULL)),
    CONSTRAINT dead_letters_discard_has_its_reason CHECK ((standing = 'discarded') = (reason IS NOT NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
