# frozen_string_literal: true

require "active_job"
require_relative "../tickr"
require_relative "../active_job/queue_adapters/tickr_adapter"

module Tickr
  # Jobs of Active Job as jobs of tickr, all of one kind.
  module ActiveJob
    KIND = "active_job"
    # Milliseconds for which the retry of an attempt stays the only one, also after its end.
    RETRY_MS = 24 * 3600 * 1000
    private_constant :RETRY_MS

    class << self
      # @return [Client, Testing::FakeClient] what enqueues; default: a client of `TICKR_URL` and `TICKR_TOKEN`
      def client = @client ||= Client.new

      attr_writer :client

      # The context of the job that this thread executes, to report progress or to look whether it must stop.
      #
      # @return [Context, nil]
      def context = Thread.current[:tickr_active_job_context]

      # Declare the kind at the server, once. It needs an API key with the scope `admin`.
      #
      # @param timeout [Numeric] seconds that an attempt may take
      # @param max_attempts [Integer] attempts of a job whose process died
      def declare(client: self.client, kind: KIND, queue: nil, timeout: 3600, max_attempts: 5)
        body = {description: "jobs of Active Job", queue: queue, timeout_ms: (timeout * 1000).round,
                max_attempts: max_attempts}.compact
        client.call("PUT", "/v1/kinds/#{kind}", Json.encode(body))
        nil
      end

      # A worker of the jobs of Active Job.
      #
      # @param client [Client] default: `client`, with the API key of `TICKR_WORK_TOKEN` if that is set. A key with the
      #   scope `work` enqueues nothing, and one with `enqueue` executes nothing
      # @param options [Hash] of Worker; `enqueue_client` is `client` of this module by default, unless that is a fake
      # @return [Worker]
      def worker(kind: KIND, client: work_client, **options)
        options = {enqueue_client: self.client}.merge(options) if self.client.is_a?(Client)
        Worker.new(client: client, **options).handle(kind) { |payload, context| perform(payload, context) }
      end

      # The job as the server takes it.
      #
      # @api private
      def new_job(job, kind, given)
        options = job.class.respond_to?(:tickr_options) ? job.class.tickr_options : {}
        options = once(job).merge(options) if options.keys.none? { |name| name.start_with?("unique_") }
        options = options.merge(given.compact)
        name = job.class.name.to_s.gsub(/[^A-Za-z0-9_.:\/@=+-]/, ".")
        options[:tags] = [*options[:tags], "class:#{name[-58..] || name}"].first(10)
        NewJob.new(kind, job.serialize, **options)
      end

      private

      # The options of a job that enqueues itself, as `retry_on` does. When no answer says that the retry exists, or the
      # process dies behind it, tickr runs the same job again, and that one makes no second retry. An idempotency key
      # would refuse it: the time in its payload is another one.
      def once(job)
        attempt = context&.attempt
        return {} unless attempt && attempt.payload["job_id"] == job.job_id

        {unique_key: "retry:#{attempt.id}", unique_for_ms: RETRY_MS}
      end

      def work_client
        token = ENV["TICKR_WORK_TOKEN"].to_s
        token.empty? ? client : client.with_token(token)
      end

      # A job that its class neither retries nor discards fails for good, unless its class has the option
      # `max_attempts`: then tickr tries it again with its backoff. So it does when a call of tickr found no server or a
      # busy one, such as the enqueue of `retry_on`: the retry would be lost.
      def perform(payload, context)
        Thread.current[:tickr_active_job_context] = context
        ::ActiveJob::Base.execute(payload)
        nil
      rescue Ending, Cancelled
        raise
      rescue StandardError, ScriptError => e
        # Also an error of loading and a method that is not implemented: no attempt of this program mends them.
        text = "#{e.class}: #{Handling.text_of(e)}"
        raise passing?(e) || retried?(payload) ? Failed.new(text) : Rejected.new(text)
      ensure
        Thread.current[:tickr_active_job_context] = nil
      end

      def passing?(error)
        return true if error.is_a?(ConnectionFailed)

        error.is_a?(Problem) && (error.status >= 500 || [408, 429].include?(error.status))
      end

      def retried?(payload)
        job_class = payload["job_class"].to_s.safe_constantize
        job_class.respond_to?(:tickr_options) && job_class.tickr_options.key?(:max_attempts)
      end
    end
  end
end
