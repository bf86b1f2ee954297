-- What an attempt said to another service, and what that answered: a JSON object of at most 4 KiB, without credentials.
-- Written with the ledger line of attempts that did not succeed. What a success answered is its result.
ALTER TABLE attempts ADD COLUMN exchange TEXT NULL;
