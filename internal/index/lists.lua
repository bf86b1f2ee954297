-- The ready lists, as hint.lua and move.lua fill them; this part is put in front of both.
--
-- KEYS  3 overflow
-- ARGV  3 high water of a ready list  4 prefix of the ready lists
--
-- A list at its high water takes no more: the earliest left-out due time is noted, and from then on everything of that
-- line is left out too, so that the refill can read the store in order without a newcomer overtaking.
local lines = {}

-- Offer a due job to the list of its line. False when it is left out.
local function offer(name, id, due)
  local line = lines[name]
  if not line then
    local key = ARGV[4] .. name
    local note = redis.call('HGET', KEYS[3], name)
    line = { key = key, ids = {}, room = tonumber(ARGV[3]) - redis.call('LLEN', key) }
    if note then
      line.room = 0
      line.noted = tonumber(string.match(note, '^%d+'))
      line.after = string.find(note, ':')
    end
    lines[name] = line
  end
  if #line.ids < line.room then
    line.ids[#line.ids + 1] = id
    return true
  end
  line.room = 0
  -- At the very time of a note that names an id, this id may lie before it: then the whole time is noted.
  if not line.noted or due < line.noted or (due == line.noted and line.after) then
    line.noted, line.after = due, nil
    redis.call('HSET', KEYS[3], name, string.format('%d', due))
  end
  return false
end

-- Push what was offered and taken.
local function push()
  for _, line in pairs(lines) do
    for from = 1, #line.ids, 1000 do
      redis.call('LPUSH', line.key, unpack(line.ids, from, math.min(from + 999, #line.ids)))
    end
  end
end
