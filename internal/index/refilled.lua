-- End a refill that left jobs out again.
--
-- KEYS  1 overflow  2 the lock of the refill
-- ARGV  1 line  2 place from which jobs were left out, `<ms>:<id>`
-- Returns nothing of interest
--
-- A hint may have noted an earlier place meanwhile; the earlier one stands.
local noted = redis.call('HGET', KEYS[1], ARGV[1])
local earlier = noted and tonumber(string.match(noted, '^%d+')) <= tonumber(string.match(ARGV[2], '^%d+'))
if not earlier then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return redis.call('DEL', KEYS[2])
