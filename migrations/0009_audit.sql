-- What operators did: one row for each action that changed something, written in the transaction of the change, so that
-- there is neither a change without its row nor a row without its change. Kept by age, purged in the order of the key.
--
-- The primary key is a UUIDv7 made with the request: rows are appended, and a repeated write recognises its own.
CREATE TABLE audit (
    id     BINARY(16)   NOT NULL PRIMARY KEY,
    at     DATETIME(6)  NOT NULL,
    -- Who asked: a key, a token of the configuration, or anybody while the API is open; and for whom, if the caller says.
    actor  VARCHAR(160) NOT NULL,
    action VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- What it was done to: a job's id, the name of a queue, a schedule, a key.
    target VARCHAR(255) NOT NULL,
    -- Particulars as a JSON object; NULL when the action says it all.
    detail TEXT NULL,
    KEY audit_target (target, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
