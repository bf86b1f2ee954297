-- Outboxes in databases of applications, on other servers: `[outboxes.<name>]` in the configuration. A runner copies
-- their committed rows to `tickr_outbox` and then deletes them there.

-- Where a row was copied from and when, by the clock of this server; NULL for a row that an application inserted here.
-- `created_at` is then by the clock of the other server, so it tells nothing about how long the row has waited here.
ALTER TABLE tickr_outbox
    ADD COLUMN copied_from VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    ADD COLUMN copied_at   TIMESTAMP(6) NULL;

ALTER TABLE outbox_rejected ADD COLUMN copied_from VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL;

-- One row for each outbox of an application: the runner that copies its rows, and the rows that it has copied and perhaps
-- not deleted there yet. With that list no row is copied twice, whatever dies between the copy here and the deletion
-- there.
CREATE TABLE outbox_sources (
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    runner       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    lease_until  DATETIME(6) NOT NULL,
    -- Before this time no other runner that was nudged takes the source over.
    calm_until   DATETIME(6) NOT NULL,
    -- Changes with every runner that takes the source over, and with every copy. A copy is refused unless this is as the
    -- runner knows it, so a runner that was frozen copies nothing that it read before.
    turn         BIGINT UNSIGNED NOT NULL,
    -- The ids of rows that were copied and perhaps not deleted at the source: 16 bytes each, at most 2,000.
    copied       MEDIUMBLOB  NOT NULL,
    -- By the clock of the source: a row with one of these ids that was inserted later is another one.
    copied_until DATETIME(6) NULL,
    -- When the source last answered, and what it said then. `oldest_us` is measured by the clock of the source alone.
    seen_at      DATETIME(6) NULL,
    waiting      INT UNSIGNED NOT NULL DEFAULT 0,
    oldest_at    DATETIME(6) NULL,
    oldest_us    BIGINT UNSIGNED NOT NULL DEFAULT 0,
    -- Why it cannot be read now, and since when.
    error        TEXT        NULL,
    failing_since DATETIME(6) NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
