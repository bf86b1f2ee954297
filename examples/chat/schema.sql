-- The tables of the chat. They lie in the database of tickr, so that one transaction holds a message and its jobs.
-- Each statement may run again at every start.

CREATE TABLE IF NOT EXISTS chat_users (
    -- The name is the identity: this example has no passwords.
    id         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    -- When the last session of the user ended. NULL before the first one.
    last_seen  DATETIME(3) NULL,
    -- Users who may see `last_seen` and whether this user is online.
    privacy    ENUM('everyone', 'contacts', 'nobody') NOT NULL DEFAULT 'everyone',
    deleted    BOOLEAN NOT NULL DEFAULT FALSE,
    -- The newest place in the inbox. It is raised under the lock of this row, so places become visible in their order. A
    -- place without a row is that of a message that was refused, or that is delivered late at another place.
    last_place BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_contacts (
    user    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    contact VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (user, contact)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_blocks (
    user    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The user whose messages are refused.
    blocked VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (user, blocked)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_conversations (
    -- `ada~bob` for two users, a UUID for a group.
    id       VARCHAR(65) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    is_group BOOLEAN NOT NULL,
    name     VARCHAR(80) NULL,
    -- full: the number of readers, with names. simple: one reader or more. none: nothing.
    receipts ENUM('full', 'simple', 'none') NOT NULL DEFAULT 'full',
    last_seq BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_members (
    conversation  VARCHAR(65) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    user          VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Messages up to this one are in the inbox, or were refused. A delivery takes those behind it along.
    inbox_seq     BIGINT NOT NULL DEFAULT 0,
    -- For groups without inbox rows. Others note the delivery in `chat_inbox`.
    delivered_seq BIGINT NOT NULL DEFAULT 0,
    read_seq      BIGINT NOT NULL DEFAULT 0,
    read_at       DATETIME(3) NULL,
    PRIMARY KEY (conversation, user),
    KEY chat_members_user (user)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_messages (
    conversation VARCHAR(65) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Place in the conversation, given by the server.
    seq          BIGINT NOT NULL,
    -- Given by the client. A message that is sent again has the same one.
    message_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sender       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Number of the message among those of its sender in this conversation, given by the client.
    client_seq   BIGINT NOT NULL,
    body         TEXT NOT NULL,
    at           DATETIME(3) NOT NULL,
    PRIMARY KEY (conversation, seq),
    UNIQUE KEY chat_messages_id (message_id),
    UNIQUE KEY chat_messages_client (conversation, sender, client_seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_inbox (
    user         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    place        BIGINT NOT NULL,
    conversation VARCHAR(65) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    seq          BIGINT NOT NULL,
    -- When a device of the user confirmed the message.
    delivered_at DATETIME(3) NULL,
    PRIMARY KEY (user, place),
    UNIQUE KEY chat_inbox_message (conversation, seq, user)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Messages that are delivered although they have expired, because an operator has replayed their dead letters.
CREATE TABLE IF NOT EXISTS chat_late (
    user         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    conversation VARCHAR(65) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    seq          BIGINT NOT NULL,
    PRIMARY KEY (user, conversation, seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS chat_devices (
    user         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    device       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The device has confirmed its inbox up to this place.
    synced_place BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (user, device)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The second half, `counters.rs`.

CREATE TABLE IF NOT EXISTS counter_applications (
    token       CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    name        VARCHAR(120) NOT NULL,
    -- Both counts of this example follow within an interval, see `Counts` in `counters.rs`.
    chats_count BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- These two may lag behind their numbers: the jobs that write them wait.

CREATE TABLE IF NOT EXISTS counter_chats (
    -- The token and not a number, so that a request with a token needs one lookup.
    application_token CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number            BIGINT NOT NULL,
    -- The job that wrote the row. An attempt that runs again finds itself here.
    job               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    messages_count    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (application_token, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS counter_messages (
    application_token CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    chat              BIGINT NOT NULL,
    number            BIGINT NOT NULL,
    job               CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body              TEXT NOT NULL,
    -- When the number was answered and when the row was written: the difference is the lag.
    asked_at          DATETIME(3) NOT NULL,
    written_at        DATETIME(3) NOT NULL,
    PRIMARY KEY (application_token, chat, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
