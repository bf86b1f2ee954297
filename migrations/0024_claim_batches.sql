-- Which jobs were claimed together, and by whom: one row for each batch of claims, written in the transaction of the
-- claim. The reaper finds the open attempts of a dead runner here, by primary key, however many rows are owed. An index
-- on the executing rows of owed would be paid by every claim and every settle; this is paid once for up to 256 claims.
--
-- A row is only a hint where to look: whether an attempt is open is said by owed alone. A runner deletes its rows when
-- none of their attempts is open any more, about once in two seconds; the reaper deletes those of dead runners.
CREATE TABLE claim_batches (
    runner VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- A UUIDv7, so that a runner's rows are appended.
    id     BINARY(16)  NOT NULL,
    -- The token that the attempts of this batch hold.
    token  BINARY(16)  NOT NULL,
    -- The ids of the jobs, 16 bytes each.
    ids    VARBINARY(4096) NOT NULL,
    PRIMARY KEY (runner, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
