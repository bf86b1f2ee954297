-- Does this runner write claim_batches? Binaries from before that table do not, and during a deploy they claim beside newer
-- ones: while one of them is silent, the reaper walks through owed in pages.
ALTER TABLE runners ADD COLUMN claim_batches BOOLEAN NOT NULL DEFAULT FALSE;
