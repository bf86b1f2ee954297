-- Take ids of due jobs, from the ready lists in the order given.
--
-- KEYS  1 overflow, then the ready lists in the order of service
-- ARGV  1 most ids to take
--       2 low water of a ready list
--       then for each ready list: its lane, and its group, 0 for none
--       then for each group, from 1: most ids to take from its lists together
-- Returns {'1' if a lane that left jobs out has run low, otherwise '0';
--          then for each list from which ids were taken: its position from 1, how many ids, the ids}
local want = tonumber(ARGV[1])
local lists = #KEYS - 1
local room = {}
for at = 3 + 2 * lists, #ARGV do room[#room + 1] = tonumber(ARGV[at]) end
local answer = { '0' }
for at = 1, lists do
  if want <= 0 then break end
  local line, group = ARGV[1 + 2 * at], tonumber(ARGV[2 + 2 * at])
  local most = want
  if group > 0 then most = math.min(most, room[group]) end
  local taken = most > 0 and redis.call('RPOP', KEYS[at + 1], most)
  if taken then
    answer[#answer + 1] = tostring(at)
    answer[#answer + 1] = tostring(#taken)
    for _, id in ipairs(taken) do answer[#answer + 1] = id end
    want = want - #taken
    if group > 0 then room[group] = room[group] - #taken end
    if redis.call('LLEN', KEYS[at + 1]) < tonumber(ARGV[2]) and redis.call('HEXISTS', KEYS[1], line) == 1 then
      answer[1] = '1'
    end
  end
end
return answer
