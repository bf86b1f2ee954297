-- What has been told about thresholds that were crossed: one row for each rule of the configuration that ever was. The row
-- is the lock of many runners that measure the same: the one that moves it enqueues the callback in the same transaction.
CREATE TABLE alerts (
    name     VARCHAR(96) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    firing   BOOLEAN NOT NULL,
    -- When it last began to fire, and when that ended.
    fired_at    DATETIME(6) NULL,
    resolved_at DATETIME(6) NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
