-- How many jobs ended, by queue, kind and end state: counted in the transaction that ends them, so exact without ever
-- counting the jobs table. Each writer adds to a lane of its own, so that two of them never wait for one row; the sum
-- over the lanes is the figure.
CREATE TABLE tallies (
    lane  TINYINT UNSIGNED NOT NULL,
    queue VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state ENUM('completed', 'failed', 'cancelled') NOT NULL,
    -- Signed: an operator's retry takes one back, possibly in another lane than the one that gave it.
    n     BIGINT NOT NULL,
    PRIMARY KEY (lane, queue, kind, state)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
