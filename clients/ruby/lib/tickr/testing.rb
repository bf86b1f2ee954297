# frozen_string_literal: true

require_relative "../tickr"

module Tickr
  # Doubles for tests of programs that enqueue or execute jobs.
  module Testing
    # Records what a program enqueues, without a server. Give it to code that takes a Client.
    class FakeClient
      # @return [Array<NewJob>] the jobs that were enqueued, in their order
      attr_reader :jobs

      def initialize
        @jobs = []
        @lock = Mutex.new
      end

      def enqueue(kind, payload = {}, idempotency_key: nil, **options)
        job = NewJob.of(kind, payload, **options)
        job.to_json
        @lock.synchronize { @jobs << job }
        Enqueued.new(id: Uuid.v7, existing: false, warnings: [])
      end

      def enqueue_many(jobs, idempotency_key: nil) = jobs.map { |job| enqueue(job) }

      # @param kind [String, Class, nil] name of a kind or a class that includes Kind; nil for all
      def enqueued(kind = nil)
        name = kind.is_a?(Class) ? kind.tickr_name : kind
        @jobs.select { |job| name.nil? || job.kind == name }
      end

      # Assert that a job of this kind was enqueued.
      #
      # @yieldparam job [NewJob]
      # @yieldreturn [Boolean] whether it is the right one
      # @return [NewJob]
      # @raise [Minitest::Assertion, RuntimeError] when there is none
      def assert_enqueued(kind, &matches)
        found = enqueued(kind).find { |job| matches.nil? || matches.call(job) }
        return found if found

        others = @jobs.map(&:kind).join(", ")
        fail!("no such job of the kind #{kind} was enqueued; enqueued were: #{others.empty? ? "none" : others}")
      end

      # @raise [Minitest::Assertion, RuntimeError] when a job was enqueued
      def assert_nothing_enqueued
        fail!("jobs were enqueued: #{@jobs.map(&:kind).join(", ")}") if @jobs.any?
      end

      private

      def fail!(message) = raise(defined?(Minitest::Assertion) ? Minitest::Assertion : RuntimeError, message)
    end

    # A context for a handler that is tested alone. It records what the handler reports, and no time passes in `sleep`.
    class FakeContext < Context
      attr_reader :lines, :percent, :note, :saved, :slept

      # @param payload [Object] the payload, as the program would enqueue it
      # @param checkpoint [Object] what an earlier attempt saved
      # @param cancelled [Symbol, nil] a reason of Cancelled: the handler must stop
      def initialize(payload = {}, checkpoint: nil, kind: "test", attempt: 1, cancelled: nil)
        payload = RawJson.new(Json.encode(payload))
        saved = checkpoint && RawJson.new(Json.encode(checkpoint))
        @lines = []
        @slept = 0
        super(
          Attempt.new(
            id: "00000000-0000-7000-8000-000000000000", kind: kind, queue: "test", payload: payload.decode,
            payload_json: payload, attempt: attempt, max_attempts: 5, timeout_ms: 300_000, checkpoint: saved&.decode,
            checkpoint_json: saved, tags: []
          ),
          method(:keep)
        )
        cancel(cancelled) if cancelled
      end

      def sleep(seconds)
        check!
        @slept += seconds
      end

      private

      def keep(what, value)
        case what
        when :progress then @percent, @note = value
        when :checkpoint then @saved = JSON.parse(value)
        when :log then @lines << value
        end
      end
    end

    # How a handler ended its attempt: `verdict`, `result`, `error` and `delay_ms`. `follow_ups` are the jobs of
    # Context#follow_up if it succeeded, as hashes with `kind`, `payload` and the options.
    Outcome = Struct.new(:verdict, :result, :error, :delay_ms, :follow_ups, keyword_init: true)

    # Run a handler alone, as a worker would.
    #
    # @return [Outcome]
    def self.run(handler = nil, context = FakeContext.new, &block)
      handler ||= block
      ended = Handling.outcome(->(given) { handler.call(given.attempt.payload, given) }, context)
      result = ended[:result] && JSON.parse(ended[:result], max_nesting: 200)
      jobs = ended.fetch(:follow_ups, []).map { |job| JSON.parse(job, max_nesting: 200) }
      Outcome.new(verdict: ended[:verdict], result: result, error: ended[:error], delay_ms: ended[:delay_ms],
        follow_ups: jobs)
    end
  end
end
