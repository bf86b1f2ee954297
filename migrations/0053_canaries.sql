-- Bulk operations that pause, and replays that release dead letters in steps of rising rates (canaries).

ALTER TABLE operations
    -- When an operator paused it, and who; NULL while it is not paused. The pause also sets lease_until to the year 9999,
    -- so a binary from before these columns does not carry a paused operation out.
    ADD COLUMN paused_at     DATETIME(6) NULL,
    ADD COLUMN paused_by     VARCHAR(160) NULL,
    -- The steps of a canary and the bound for its failures, as JSON; NULL for every other operation.
    ADD COLUMN canary        TEXT NULL,
    -- How far the canary is, as JSON: its step, and the outcomes that were counted last.
    ADD COLUMN canary_state  TEXT NULL,
    -- The lease of a canary, in place of lease_until, which is the year 9999 as long as the canary lives: a binary from
    -- before these columns would release the whole group at once.
    ADD COLUMN steered_until DATETIME(6) NULL;
