-- Put due jobs where they are taken next.
--
-- KEYS  1 epoch
-- ARGV  1 prefix of the ready lists
--       then for each job: line, id; what comes last is taken first
-- Returns -1 when the epoch is gone (nothing was changed), otherwise how many were put
--
-- The high water does not count here: the jobs were taken from these lists once already.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for at = 2, #ARGV, 2 do redis.call('RPUSH', ARGV[1] .. ARGV[at], ARGV[at + 1]) end
return (#ARGV - 1) / 2
