-- What became of the ticks of schedules: an append-only ledger. The primary key says that no tick is seen to twice.
--
-- After an outage several ticks may share a line, which then says how many they are: nobody wants to read, or to write, a
-- million lines about a weekend.
CREATE TABLE ticks (
    schedule    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- When it was due; the first of several.
    due_at      DATETIME(3) NOT NULL,
    -- 0 for a tick of the schedule's own. From 1, somebody pulled the trigger in this very millisecond.
    number      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    outcome     ENUM('fired', 'skipped') NOT NULL,
    -- Why it was skipped, for programs, and in words.
    cause       ENUM('missed', 'paused', 'overlap', 'invalid', 'changed') NULL,
    reason      VARCHAR(2000) NULL,
    -- How many ticks share the line, counted to ten thousand.
    ticks       INT UNSIGNED NOT NULL DEFAULT 1,
    job_id      BINARY(16) NULL,
    recorded_at DATETIME(6) NOT NULL,
    -- Who saw to it: a runner, or whoever pulled the trigger or made the change.
    recorded_by VARCHAR(160) NOT NULL,
    PRIMARY KEY (schedule, due_at, number),
    CONSTRAINT ticks_fired_have_jobs CHECK ((outcome = 'fired') = (job_id IS NOT NULL)),
    CONSTRAINT ticks_skipped_say_why CHECK ((outcome = 'skipped') = (cause IS NOT NULL)),
    CONSTRAINT ticks_only_skipped_share CHECK (ticks = 1 OR (ticks > 1 AND outcome = 'skipped'))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
