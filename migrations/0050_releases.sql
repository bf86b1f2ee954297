-- Which jobs a bulk operation made of dead letters, and one such release of a group at a time.

-- The operation that replayed a dead letter; NULL for a single replay. The counts of the released jobs by state, and the
-- filter `operation:`, read the index: the ids of the new jobs in their order. It costs each failure an entry.
ALTER TABLE dead_letters
    ADD COLUMN operation BINARY(16) NULL,
    ADD KEY dead_letters_operation (operation, replayed_as);

-- The group that a replay releases; NULL for every other operation. While it runs, no second one may have the same
-- group: two at a time would double the rate that an operator chose. The server clears the column with the state, so an
-- old binary that ends the operation frees the group as well.
ALTER TABLE operations ADD COLUMN fingerprint BINARY(8) NULL;
ALTER TABLE operations
    ADD COLUMN releasing BINARY(8) GENERATED ALWAYS AS (CASE WHEN ended_at IS NULL THEN fingerprint END) VIRTUAL;
ALTER TABLE operations ADD UNIQUE KEY operations_releasing (releasing);
