-- Tell the index about jobs that the store has committed. Comes after lists.lua.
--
-- KEYS  1 epoch  2 waiting  3 overflow
-- ARGV  1 the store's clock minus Redis's, microseconds
--       2 horizon, milliseconds
--       3 high water of a ready list
--       4 prefix of the ready lists
--       then for each job: line, id, due time in unix milliseconds
-- Returns -1 when the epoch is gone (nothing was changed), otherwise
--       {ready, waiting, beyond the horizon, left out of a full list, new or changed among the waiting}
--
-- Due jobs go to their ready list at once, others to the sorted set, far ones nowhere.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2] + ARGV[1]) / 1000)
local far = now + tonumber(ARGV[2])
local ready, waiting, beyond, left, changed = 0, 0, 0, 0, 0
local members = {}
for at = 5, #ARGV, 3 do
  local name, id, due = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if due <= now then
    if offer(name, id, due) then ready = ready + 1 else left = left + 1 end
  elseif due <= far then
    members[#members + 1] = ARGV[at + 2]
    members[#members + 1] = name .. ':' .. id
    waiting = waiting + 1
  else
    beyond = beyond + 1
  end
end
-- In one call for many: a call from here costs more than its work.
for from = 1, #members, 1000 do
  changed = changed + redis.call('ZADD', KEYS[2], 'CH', unpack(members, from, math.min(from + 999, #members)))
end
push()
return { ready, waiting, beyond, left, changed }
