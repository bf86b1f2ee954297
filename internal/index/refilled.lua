-- End a refill.
--
-- KEYS  1 overflow  2 the lock of the refill
-- ARGV  1 line
--       2 place from which jobs were left out again, `<ms>:<id>`, or '' when none were
--       3 who refilled
-- Returns nothing of interest
--
-- A hint may have noted an earlier place meanwhile; the earlier one stands. The lock may have ended by itself and be
-- somebody else's by now; then it stays.
if ARGV[2] ~= '' then
  local noted = redis.call('HGET', KEYS[1], ARGV[1])
  local earlier = noted and tonumber(string.match(noted, '^%d+')) <= tonumber(string.match(ARGV[2], '^%d+'))
  if not earlier then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
end
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return 1
