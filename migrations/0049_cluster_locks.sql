-- Rows that stand for locks in a Galera cluster, where a locked row is locked on one node only. Transactions on two nodes
-- that lock the same thing both write its row here, and the cluster lets one of them commit. `id` is a part of a digest of
-- what is locked, so there are at most 1,024 rows. Without a cluster there is none.
CREATE TABLE cluster_locks (
    id   SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
    turn BIGINT UNSIGNED   NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
