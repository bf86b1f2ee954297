# The driver of Sidekiq. `sidekiq -r` loads this file too, for the worker.

require "json"
require "sidekiq"

PAD = "x" * 176
# Seconds for which lines of the file of executions are collected.
COLLECT = 0.005
# Seconds between two looks for jobs that are due, on average. Sidekiq's own default is 5.
POLL = 0.1

REDIS = { url: "unix://#{ENV.fetch("PEER_REDIS_SOCKET")}" }.freeze

def now_us = Process.clock_gettime(Process::CLOCK_REALTIME, :microsecond)

# The file of executions. Ruby buffers its lines.
module Executions
  def self.open
    @file = File.open(ENV.fetch("PEER_EXECUTIONS"), "a")
    Thread.new { loop { sleep COLLECT; @file.flush } }
  end

  def self.ran(id) = @file.write("#{id} #{now_us}\n")
end

# The job.
class Noop
  include Sidekiq::Worker
  sidekiq_options queue: "noop"

  def perform(payload) = Executions.ran(payload["id"])
end

Sidekiq.configure_client { |config| config.redis = REDIS.merge(size: Integer(ENV.fetch("PEER_CALLERS", "1"))) }
Sidekiq.configure_server do |config|
  config.redis = REDIS
  config.options[:poll_interval_average] = POLL
  config.logger.level = Logger::WARN
  Executions.open
end

# The load, as the README describes it.
class Load
  def initialize
    @callers, @batch, @first, @jobs, @due, @within =
      %w[CALLERS BATCH FIRST JOBS DUE_US DUE_WITHIN_US].map { |name| Integer(ENV.fetch("PEER_#{name}")) }
    @seconds = Float(ENV.fetch("PEER_SECONDS"))
  end

  def enqueue
    @began = now_us
    callers = Array.new(@callers) { |caller| Thread.new { call(caller) } }
    jobs = callers.sum(&:value)
    puts JSON.generate(jobs: jobs, seconds: (now_us - @began) / 1e6, began_us: @began)
  end

  private

  def call(caller)
    sent = 0
    (0..).each do |turn|
      start = (turn * @callers + caller) * @batch
      break if start >= @jobs || now_us - @began >= @seconds * 1e6

      places = (start...[start + @batch, @jobs].min).to_a
      @batch == 1 ? one(start) : many(places)
      sent += places.size
    end
    sent
  end

  def one(place)
    return Noop.perform_async(payload(place)) if @due.zero?

    due = @due + (place * 2_654_435_761 & 0xffff_ffff) * @within / 2**32
    Noop.perform_at(due / 1e6, payload(place))
  end

  def many(places) = Sidekiq::Client.push_bulk("class" => Noop, "args" => places.map { |place| [payload(place)] })

  def payload(place) = { "id" => @first + place, "pad" => PAD }
end

if $PROGRAM_NAME == __FILE__
  case ARGV.first
  when "prepare" then nil
  when "enqueue" then Load.new.enqueue
  else abort "unknown command #{ARGV.first}: there are prepare and enqueue"
  end
end
