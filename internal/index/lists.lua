-- The ready lists, as hint.lua and move.lua fill them. This part is put in front of both.
--
-- KEYS  3 overflow
-- ARGV  3 high water of a ready list  4 prefix of the ready lists
--
-- A list at its high water takes no more jobs: the earliest due time that is left out is noted, and from then on all
-- further jobs of that lane are left out too. So the refill can read MySQL in order, and no newer job overtakes an
-- older one.
local lines = {}

-- Offer a due job to the list of its lane. Return false when it is left out.
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
  -- If the note has the same due time and names an id, this id may come before that one. Then note the whole time.
  if not line.noted or due < line.noted or (due == line.noted and line.after) then
    line.noted, line.after = due, nil
    redis.call('HSET', KEYS[3], name, string.format('%d', due))
  end
  return false
end

-- Push the offered jobs that were not left out, the most urgent lanes first: Redis gives the job of the list that was
-- filled first to a client that waits for several of them.
local function push()
  local order = {}
  for name, line in pairs(lines) do
    -- The name of a lane ends in its priority, unless that is the normal one.
    line.priority = tonumber(string.match(name, ':(%d)$') or 5)
    order[#order + 1] = line
  end
  table.sort(order, function(a, b) return a.priority < b.priority end)
  for _, line in ipairs(order) do
    for from = 1, #line.ids, 1000 do
      redis.call('LPUSH', line.key, unpack(line.ids, from, math.min(from + 999, #line.ids)))
    end
  end
end
