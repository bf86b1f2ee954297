-- Two columns that were narrower than what the API accepts, so that a valid request was answered 500.
--
-- The details of an action: a limit with 1,000 overrides takes about 85 KB, and a TEXT holds 64 KiB. The server copies
-- the table, and records of actions wait meanwhile. It has a row for each action of an operator, so the copy is short.
ALTER TABLE audit MODIFY COLUMN detail MEDIUMTEXT NULL;

-- An actor has up to 135 characters: the name of an API key, and the name that the caller gives in the request. It has
-- this width in all other tables. The column has two bytes for its length already, so no server copies the table.
ALTER TABLE limits MODIFY COLUMN changed_by VARCHAR(160) NOT NULL;
