-- Finds the API keys that are valid, at most 500, among any number of revoked ones. A revoked API key stays for ever, and
-- a deployment may make and revoke one of its own.
--
-- Each process compares the valid ones with its copy once a second, and without this index it reads all others as well.
-- An entry takes about 25 bytes. It is written when an API key is made or revoked, and the table is read in order for it
-- once, without a copy.
ALTER TABLE api_keys
    ADD KEY api_keys_revoked (revoked_at);
