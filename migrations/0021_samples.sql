-- What happened, for charts: one row for each slot of time, queue and runner in which anything did. Slots are five seconds,
-- a minute and fifteen minutes wide (`step`, in seconds), so that a chart of any span reads a hundred of them and no chart
-- has to add up a day of seconds. Nothing that tickr does depends on these rows: they may be deleted at any time.
--
-- The key begins with the slot, because that is how rows end: those of a width that are too old are one range of it. Behind
-- it comes the queue, so that a chart of one queue, or of all together, picks its rows out of each slot.
CREATE TABLE samples (
    step       SMALLINT UNSIGNED NOT NULL,
    -- When the slot began: a multiple of its width, by the database's clock.
    at         DATETIME    NOT NULL,
    -- '' for all queues of the runner together, '_other' for those beyond the two hundred that it has rows for.
    queue      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    runner     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Until when it was counted: the end of the slot, unless that is still to come. A row of a wide slot is written again as
    -- it grows, so that a runner that dies takes along five seconds and not a quarter of an hour.
    counted_to DATETIME    NOT NULL,
    accepted   INT UNSIGNED NOT NULL,
    completed  INT UNSIGNED NOT NULL,
    failed     INT UNSIGNED NOT NULL,
    ended      INT UNSIGNED NOT NULL,
    -- How late attempts started, and how long handlers ran: for each step of a scale of ratios its number in a byte and a
    -- count as LEB128 (internal/job/histogram.rs). Two of them one behind the other are their sum, so the server adds them
    -- up by GROUP_CONCAT.
    lateness   VARBINARY(1536) NOT NULL,
    run_time   VARBINARY(1536) NOT NULL,
    PRIMARY KEY (step, at, queue, runner),
    CONSTRAINT samples_are_counted_within_their_slot CHECK (counted_to > at AND counted_to <= at + INTERVAL step SECOND)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
