-- Requests that were carried out, by the key that their caller gave them: whoever asks again with the same key gets the
-- first answer, and nothing is done twice (G8). Written in the transaction that does the work, and only by requests that
-- were carried out; kept for a time, then purged.
--
-- The primary key is a UUIDv7 made with the request, so that the answers, which are the bulk, are appended and purged in
-- order, and so that a request whose COMMIT was never answered recognises its own row. Only the narrow unique index is
-- written at random places. It is the lock as well: of two requests with one key, the second waits there for the first.
CREATE TABLE idempotency_keys (
    id           BINARY(16) NOT NULL PRIMARY KEY,
    -- SHA-256 of who asked and of the key, byte for byte.
    key_hash     BINARY(32) NOT NULL,
    -- SHA-256 of what was asked: the call, and its body in canonical form.
    request_hash BINARY(32) NOT NULL,
    -- The first answer, to be given again: the HTTP status and the body as it was sent.
    status       SMALLINT UNSIGNED NOT NULL,
    answer       MEDIUMTEXT NOT NULL,
    created_at   DATETIME(6) NOT NULL,
    UNIQUE KEY idempotency_keys_key (key_hash),
    CONSTRAINT idempotency_keys_only_what_was_done CHECK (status BETWEEN 200 AND 299)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
