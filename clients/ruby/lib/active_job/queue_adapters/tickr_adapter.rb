# frozen_string_literal: true

module ActiveJob
  module QueueAdapters
    # Enqueues the jobs of Active Job at tickr: `config.active_job.queue_adapter = :tickr`, after
    # `require "tickr/active_job"`.
    class TickrAdapter
      # Most jobs, and bytes of several jobs, in one request; the usual `body_limit` of the server is 256 KiB.
      SLICE_JOBS = 100
      SLICE_BYTES = 200_000
      private_constant :SLICE_JOBS, :SLICE_BYTES

      # @param kind [String] kind of the jobs
      # @param priority [Proc] maps the priority of a job to one of tickr, 0 (first) to 9 (last)
      def initialize(client: nil, kind: ::Tickr::ActiveJob::KIND, priority: ->(number) { number.clamp(0, 9) })
        @client = client
        @kind = kind
        @priority = priority
      end

      # Job id and queue name are those of the job; `provider_job_id` is the id that tickr shows.
      def enqueue(job) = submit(job, nil)

      # @param timestamp [Numeric] seconds since 1970
      def enqueue_at(job, timestamp) = submit(job, timestamp)

      # Enqueue many jobs in as few requests as possible (Active Job 7.1 and newer). Each request enqueues all or none.
      def enqueue_all(jobs)
        slices(jobs).each do |some|
          made = client.enqueue_many(some.map(&:last))
          some.zip(made) do |(job, _), enqueued|
            job.provider_job_id = enqueued.id
            job.successfully_enqueued = true if job.respond_to?(:successfully_enqueued=)
          end
        end
        jobs.size
      end

      # Active Job 7.2 asks this. A job over HTTP is no part of a transaction, so it waits for the COMMIT.
      def enqueue_after_transaction_commit? = true

      private

      def client = @client || ::Tickr::ActiveJob.client

      # The jobs, each with that of tickr, in the slices of the requests.
      def slices(jobs)
        bytes = 0
        jobs.each_with_object([]) do |job, slices|
          made = new_job(job, job.scheduled_at&.to_f)
          size = made.to_json.bytesize + 1
          if slices.empty? || slices.last.size >= SLICE_JOBS || bytes + size > SLICE_BYTES
            slices << []
            bytes = 0
          end
          slices.last << [job, made]
          bytes += size
        end
      end

      def submit(job, timestamp)
        job.provider_job_id = client.enqueue(new_job(job, timestamp)).id
      end

      def new_job(job, timestamp)
        options = {queue: job.queue_name&.to_s, execute_at: timestamp && Time.at(timestamp)}
        options[:priority] = @priority.call(job.priority.to_i) if job.priority
        ::Tickr::ActiveJob.new_job(job, @kind, options)
      end
    end
  end
end
