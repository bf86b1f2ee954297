# frozen_string_literal: true

module Tickr
  # The attempt that a handler executes.
  #
  # `payload` is read into hashes with string keys; `payload_json` is the RawJson as it was sent. `attempt` counts the
  # attempts used, this one included, and `timeout_ms` is its time limit in milliseconds. `checkpoint` is what an
  # earlier attempt saved, or nil.
  Attempt = Struct.new(:id, :kind, :queue, :payload, :payload_json, :attempt, :max_attempts, :timeout_ms, :checkpoint,
    :checkpoint_json, :traceparent, :tags, keyword_init: true)

  # What a handler knows of its attempt, and what it reports. Threads of the handler may share it.
  class Context
    MAX_CHECKPOINT_BYTES = 65_536
    MAX_FOLLOW_UPS = 1_000

    # @return [Attempt]
    attr_reader :attempt

    # @param no_follow_ups [String, nil] why no jobs can follow, if that is so
    # @api private
    def initialize(attempt, report, no_follow_ups = nil)
      @attempt = attempt
      @report = report
      @no_follow_ups = no_follow_ups
      @follow_ups = []
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @reason = nil
      @deadline = Http.now + attempt.timeout_ms / 1000.0
    end

    # Report progress. The next beat carries it.
    #
    # @param percent [Numeric] 0 to 100
    # @param note [String, nil] at most 120 characters are kept
    def progress(percent, note = nil)
      percent = percent.to_f
      percent = percent.finite? ? percent.clamp(0.0, 100.0) : 0.0
      note &&= Text.first(Text.clean(note).gsub(/[[:cntrl:]]+/, " "), 120)
      @report.call(:progress, [percent, note])
    end

    # Save a value with which the next attempt begins if this one does not succeed.
    #
    # @raise [ArgumentError] when it is no JSON, or more than 65,536 bytes of it
    def checkpoint(value)
      json = Json.encode(value)
      if json.bytesize > MAX_CHECKPOINT_BYTES
        raise ArgumentError, "a checkpoint has at most 65,536 bytes of JSON, not #{json.bytesize}"
      end
      @report.call(:checkpoint, json)
    end

    # Enqueue a job with the success of this attempt: the server stores both, or neither. The job continues the trace.
    #
    # An attempt that does not succeed enqueues none of its jobs, so its next attempt repeats none. The worker needs an
    # API key with the scope `enqueue` for them: see `enqueue_client` of Worker.
    #
    # @param kind [String, Kind, NewJob] name of a kind, or a payload object
    # @param payload [Object] what the job carries, when `kind` is a name
    # @param options [Hash] see FollowUp; times count from the success
    # @raise [ArgumentError] when an option or the payload is wrong, after 1,000 jobs, and when the client for these
    #   jobs does not have the addresses of the worker
    def follow_up(kind, payload = {}, **options)
      raise ArgumentError, @no_follow_ups if @no_follow_ups

      job = FollowUp.of(kind, payload, **options).to_json
      @lock.synchronize do
        if @follow_ups.size >= MAX_FOLLOW_UPS
          raise ArgumentError, "at most 1,000 jobs follow one: let one of them enqueue the rest"
        end
        @follow_ups << job
      end
      nil
    end

    # The jobs that follow a success, as JSON texts.
    #
    # @api private
    def follow_ups = @lock.synchronize { @follow_ups.dup }

    # Write a line into the log of the attempt. Its newest 16 KiB are kept.
    def log(line) = @report.call(:log, Text.clean(line).chomp)

    # Look whether the handler must stop. Call it between the steps of a long handler.
    #
    # @raise [Cancelled]
    def check!
      reason = @lock.synchronize { @reason }
      raise Cancelled, reason if reason
    end

    # @return [Boolean] true when the handler must stop
    def cancelled? = @lock.synchronize { !@reason.nil? }

    # Sleep for so many seconds, or until the handler must stop.
    #
    # @raise [Cancelled]
    def sleep(seconds)
      deadline = Http.now + seconds
      @lock.synchronize do
        while @reason.nil? && (left = deadline - Http.now).positive?
          @changed.wait(@lock, left)
        end
      end
      check!
    end

    # @return [Float] seconds until the time of the attempt is over
    def remaining = [@deadline - Http.now, 0.0].max

    # Tell the handler to stop.
    #
    # @api private
    def cancel(reason)
      @lock.synchronize do
        @reason ||= reason
        @changed.broadcast
      end
    end
  end
end
