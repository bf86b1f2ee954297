# frozen_string_literal: true

require "securerandom"

module Tickr
  module Uuid
    @lock = Mutex.new
    @last_ms = 0
    @counter = 0

    # Make a UUIDv7. The ids of one process sort in the order in which they were made.
    #
    # @return [String] such as `019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718`
    def self.v7
      ms, counter = @lock.synchronize do
        now = Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)
        if now > @last_ms
          @last_ms = now
          @counter = SecureRandom.random_number(0x800)
        elsif (@counter += 1) > 0xFFF
          @last_ms += 1
          @counter = 0
        end
        [@last_ms, @counter]
      end
      random = SecureRandom.random_number(1 << 62) | (2 << 62)
      hex = format("%012x7%03x%016x", ms, counter, random)
      [hex[0, 8], hex[8, 4], hex[12, 4], hex[16, 4], hex[20, 12]].join("-")
    end
  end
end
