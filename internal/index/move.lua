-- Move due entries from the sorted set to their ready lists.
--
-- KEYS  1 epoch  2 waiting  3 overflow
-- ARGV  1 the store's clock minus Redis's, microseconds
--       2 most entries to move
--       3 high water of a ready list
--       4 prefix of the ready lists
--       5 low water of a ready list
-- Returns -1 when the epoch is gone, otherwise
--       {moved, due time of the next entry or '', Redis's clock in microseconds, lines to refill, one element each}
--
-- One clock, Redis's corrected to the store's, decides for every runner, whatever their own clocks show.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = math.floor((clock + ARGV[1]) / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local high = tonumber(ARGV[3])
local lines = {}
for at = 1, #due, 2 do
  local member, score = due[at], tonumber(due[at + 1])
  local name, id = string.sub(member, 1, -38), string.sub(member, -36)
  local line = lines[name]
  if not line then
    local key = ARGV[4] .. name
    local noted = redis.call('HGET', KEYS[3], name)
    line = { key = key, room = high - redis.call('LLEN', key), ids = {}, noted = noted and tonumber(string.match(noted, '^%d+')), after = noted and string.find(noted, ':') }
    if noted then line.room = 0 end
    lines[name] = line
  end
  if #line.ids < line.room then
    line.ids[#line.ids + 1] = id
  else
    line.room = 0
    -- At the very time of a note that names an id, the id may lie before it: then the whole time is noted.
    if not line.noted or score < line.noted or (score == line.noted and line.after) then
      line.after = nil
      line.noted = score
      redis.call('HSET', KEYS[3], name, string.format('%d', score))
    end
  end
end
for _, line in pairs(lines) do
  for from = 1, #line.ids, 1000 do
    redis.call('LPUSH', line.key, unpack(line.ids, from, math.min(from + 999, #line.ids)))
  end
end
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, #due / 2 - 1)
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local answer = { #due / 2, first[2] or '', string.format('%d', clock) }
for _, name in ipairs(redis.call('HKEYS', KEYS[3])) do
  if redis.call('LLEN', ARGV[4] .. name) < tonumber(ARGV[5]) then answer[#answer + 1] = name end
end
return answer
