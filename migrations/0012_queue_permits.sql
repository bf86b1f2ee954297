-- Which runner may run how many jobs of a queue with a limit. Runners take permits in advance and give back what they do
-- not use, so that starting a job asks nobody; what they hold together is never more than the limit, but for jobs that
-- ran before it was lowered. Permits of a runner that has been silent for its lease count no more.
CREATE TABLE queue_permits (
    queue   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    runner  VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    permits INT UNSIGNED NOT NULL,
    -- It has less than its fair share and work for more: who has more than theirs gives way.
    wanting BOOLEAN NOT NULL,
    PRIMARY KEY (queue, runner)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
