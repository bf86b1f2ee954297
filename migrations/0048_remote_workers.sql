-- Remote workers: programs in other languages that fetch jobs over HTTP. Each is a runner with a row, a lease and claims of
-- its own, so that it goes on with another tickr process when one stops.

ALTER TABLE runners
    -- `http`: a remote worker. Its heartbeats come with its requests.
    ADD COLUMN via         ENUM('process', 'http') NOT NULL DEFAULT 'process',
    -- Its newest request for jobs. A claim for an older one is refused, so nothing is claimed for a request that its
    -- worker has given up.
    ADD COLUMN fetch_id    BINARY(16)  NULL,
    -- Until then the newest request waits for jobs. A worker that does not ask starts nothing.
    ADD COLUMN polls_until DATETIME(6) NULL;

-- The request for jobs that a batch of claims answers; NULL for other runners. A request that is repeated gets the same
-- jobs again. Read by primary key: all rows of one worker.
ALTER TABLE claim_batches ADD COLUMN fetch_id BINARY(16) NULL;

-- A new scope, for remote workers.
ALTER TABLE api_keys MODIFY COLUMN scope ENUM('read', 'enqueue', 'admin', 'work') NOT NULL;
