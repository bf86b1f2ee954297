-- Take ids of due jobs, urgent lines first.
--
-- KEYS  1 overflow, then the ready lists in the order of service
-- ARGV  1 most ids to take
--       2 low water of a ready list
--       then the line of each ready list
-- Returns {'1' if a line that left jobs out has run low, otherwise '0'; the ids}
local want = tonumber(ARGV[1])
local answer = { '0' }
for at = 2, #KEYS do
  if want <= 0 then break end
  local taken = redis.call('RPOP', KEYS[at], want)
  if taken then
    for _, id in ipairs(taken) do answer[#answer + 1] = id end
    want = want - #taken
    if redis.call('LLEN', KEYS[at]) < tonumber(ARGV[2]) and redis.call('HEXISTS', KEYS[1], ARGV[at + 1]) == 1 then
      answer[1] = '1'
    end
  end
end
return answer
