-- Tell the index about jobs that the store has committed.
--
-- KEYS  1 epoch  2 waiting  3 overflow
-- ARGV  1 the store's clock minus Redis's, microseconds
--       2 horizon, milliseconds
--       3 high water of a ready list
--       4 prefix of the ready lists
--       then for each job: line, id, due time in unix milliseconds
-- Returns -1 when the epoch is gone (nothing was changed), otherwise
--       {ready, waiting, beyond the horizon, left out of a full list}
--
-- Due jobs go to their ready list at once, others to the sorted set, far ones nowhere. A list at its high water takes
-- no more: the earliest left-out due time is noted, and from then on everything of that line is left out too, so that
-- the refill can read the store in order without a newcomer overtaking.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2] + ARGV[1]) / 1000)
local far = now + tonumber(ARGV[2])
local high = tonumber(ARGV[3])
local lines, ready, waiting, beyond, left = {}, 0, 0, 0, 0
for at = 5, #ARGV, 3 do
  local name, id, due = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if due <= now then
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
      ready = ready + 1
    else
      line.room = 0
      -- At the very time of a note that names an id, the id may lie before it: then the whole time is noted.
      if not line.noted or due < line.noted or (due == line.noted and line.after) then
        line.after = nil
        line.noted = due
        redis.call('HSET', KEYS[3], name, string.format('%d', due))
      end
      left = left + 1
    end
  elseif due <= far then
    redis.call('ZADD', KEYS[2], due, name .. ':' .. id)
    waiting = waiting + 1
  else
    beyond = beyond + 1
  end
end
for _, line in pairs(lines) do
  for from = 1, #line.ids, 1000 do
    redis.call('LPUSH', line.key, unpack(line.ids, from, math.min(from + 999, #line.ids)))
  end
end
return { ready, waiting, beyond, left }
