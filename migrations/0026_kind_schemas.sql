-- Which version of each kind's payload type a runner has, as digests: a JSON object. During a deploy two versions work side
-- by side, and a payload that one cannot read waits for a runner of the other. NULL for runners of older binaries, which may
-- be able to read anything.
ALTER TABLE runners ADD COLUMN kind_schemas MEDIUMTEXT NULL;
