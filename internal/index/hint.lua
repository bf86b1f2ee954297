-- Add jobs to the index that MySQL has committed. lists.lua is put in front of this script.
--
-- KEYS  1 epoch  2 waiting  3 overflow
-- ARGV  1 MySQL's clock minus Redis's, microseconds
--       2 horizon, milliseconds
--       3 high water of a ready list
--       4 prefix of the ready lists
--       then for each job: lane, id, due time in unix milliseconds
-- Returns -1 when the epoch is gone (nothing was changed), otherwise
--       {ready, waiting, beyond the horizon, left out of a full list, new or changed in the sorted set}
--
-- Due jobs go to their ready list at once, other jobs to the sorted set. Jobs beyond the horizon are not stored.
--
-- A due job leaves the sorted set. An operator may have made it due, and its former time would look as if a runner had
-- put it off for a moment. If the list lost it, the reconciler would then leave it alone until that time.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2] + ARGV[1]) / 1000)
local far = now + tonumber(ARGV[2])
local ready, waiting, beyond, left, changed = 0, 0, 0, 0, 0
local members, made_due = {}, {}
for at = 5, #ARGV, 3 do
  local name, id, due = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if due <= now then
    made_due[name .. ':' .. id] = true
    if offer(name, id, due) then ready = ready + 1 else left = left + 1 end
  elseif due <= far then
    members[#members + 1] = ARGV[at + 2]
    members[#members + 1] = name .. ':' .. id
    -- Of two hints about one job the later one counts.
    made_due[name .. ':' .. id] = nil
    waiting = waiting + 1
  else
    beyond = beyond + 1
  end
end
-- One call for many jobs, because each call from a script costs more than its work.
for from = 1, #members, 1000 do
  changed = changed + redis.call('ZADD', KEYS[2], 'CH', unpack(members, from, math.min(from + 999, #members)))
end
local gone = {}
for member in pairs(made_due) do gone[#gone + 1] = member end
for from = 1, #gone, 1000 do
  redis.call('ZREM', KEYS[2], unpack(gone, from, math.min(from + 999, #gone)))
end
push()
return { ready, waiting, beyond, left, changed }
