-- Move due entries from the sorted set to their ready lists. lists.lua is put in front of this script.
--
-- KEYS  1 epoch  2 waiting  3 overflow  4 sequence  5 listeners
-- ARGV  1 MySQL's clock minus Redis's, microseconds
--       2 most entries to move
--       3 high water of a ready list
--       4 prefix of the ready lists
--       5 low water of a ready list
-- Returns -1 when the epoch is gone, otherwise
--       {moved, due time of the next entry or '', Redis's clock in microseconds, sequence, '1' if a client listens to the
--       events, lanes to refill, one element each}
--
-- One clock, Redis's corrected to MySQL's, decides for every runner, whatever their own clocks show.
--
-- The sequence is raised before anything else. So every call is a write: a replica, or a Redis without free memory, refuses
-- it even when nothing is due. And a Redis that was restored from a snapshot, or failed over to a replica that lagged,
-- shows a sequence that its runners have seen before.
local sequence = redis.call('INCR', KEYS[4])
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = math.floor((clock + ARGV[1]) / 1000)
-- Most calls find nothing that is due, and read one entry only.
local due = {}
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[2] and tonumber(first[2]) <= now then
  due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
end
for at = 1, #due, 2 do
  -- A member is the lane, a colon and the 36 characters of an id.
  offer(string.sub(due[at], 1, -38), string.sub(due[at], -36), tonumber(due[at + 1]))
end
push()
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, #due / 2 - 1)
  first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
end
local listened = redis.call('EXISTS', KEYS[5])
local answer =
  { #due / 2, first[2] or '', string.format('%d', clock), string.format('%d', sequence), string.format('%d', listened) }
for _, name in ipairs(redis.call('HKEYS', KEYS[3])) do
  if redis.call('LLEN', ARGV[4] .. name) < tonumber(ARGV[5]) then answer[#answer + 1] = name end
end
return answer
