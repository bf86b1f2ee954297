-- queues: the only queues that the key may use, comma separated: to enqueue jobs there, or to serve them with a remote
-- worker. NULL for a key without such a limit, and for keys of older binaries, which do not know the limit.
ALTER TABLE api_keys
    ADD COLUMN queues TEXT CHARACTER SET ascii COLLATE ascii_bin NULL;
