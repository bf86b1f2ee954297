-- Keys of the API. The key itself is shown once, when it is made, and stored nowhere: only its SHA-256 is, which is
-- enough because a key is 256 random bits. A name belongs to one key for ever, so that the audit never means two by it;
-- a revoked key stays here, and an API for which a key was ever made is never open again.
CREATE TABLE api_keys (
    id           BINARY(16)  NOT NULL PRIMARY KEY,
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    scope        ENUM('read', 'enqueue', 'admin') NOT NULL,
    digest       BINARY(32)  NOT NULL,
    created_at   DATETIME(6) NOT NULL,
    created_by   VARCHAR(160) NOT NULL,
    -- To about a minute; NULL until it is used.
    last_used_at DATETIME(6) NULL,
    revoked_at   DATETIME(6) NULL,
    revoked_by   VARCHAR(160) NULL,
    UNIQUE KEY api_keys_name (name),
    UNIQUE KEY api_keys_digest (digest),
    CONSTRAINT api_keys_revoked_by_somebody CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
