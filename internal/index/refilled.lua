-- End a refill.
--
-- KEYS  1 overflow  2 the lock of the refill
-- ARGV  1 lane
--       2 position from which jobs were left out again, `<ms>:<id>`, or '' when none were
--       3 owner of the lock
-- Returns 1
--
-- A hint may have noted an earlier position meanwhile; the earlier one is kept. The lock may have expired and belong to
-- another runner by now; then it is kept as well.
if ARGV[2] ~= '' then
  local noted = redis.call('HGET', KEYS[1], ARGV[1])
  local earlier = noted and tonumber(string.match(noted, '^%d+')) <= tonumber(string.match(ARGV[2], '^%d+'))
  if not earlier then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
end
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return 1
