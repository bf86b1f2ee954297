-- Put due jobs at the front of their ready lists, so that they are taken next.
--
-- KEYS  1 epoch
-- ARGV  1 prefix of the ready lists
--       then for each job: lane, id; the last job is taken first
-- Returns -1 when the epoch is gone (nothing was changed), otherwise the number of jobs
--
-- The high water does not count here: these jobs were taken from the same lists before.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for at = 2, #ARGV, 2 do redis.call('RPUSH', ARGV[1] .. ARGV[at], ARGV[at + 1]) end
return (#ARGV - 1) / 2
