# frozen_string_literal: true

require_relative "setup"
begin
  require "tickr/active_job"
rescue LoadError
  warn "Active Job is not installed, so its adapter is not tested"
end

if defined?(ActiveJob)
  ActiveJob::Base.logger = Logger.new(nil)

  # Ordinary job classes of Active Job. Nothing in them knows tickr, except in PersistentJob and FollowedJob.
  module Diary
    def self.lines = (@lines ||= Thread::Queue.new)

    def self.take = Array.new(lines.size) { lines.pop }
  end

  class PlainJob < ActiveJob::Base
    queue_as { self.class.to_s.downcase }

    def perform(word, more: nil) = Diary.lines << "ran #{word} #{more.inspect} #{executions}"
  end

  class RetriedJob < PlainJob
    retry_on(ArgumentError, wait: ->(_) { 0.1 }, attempts: 3) do |job, error|
      Diary.lines << "gave up #{job.arguments[0]}: #{error.message}"
    end
    discard_on(KeyError) { |job, _| Diary.lines << "discarded #{job.arguments[0]}" }
    self.queue_adapter = ActiveJob::QueueAdapters::TickrAdapter.new

    def perform(word)
      Diary.lines << "tried #{word} #{executions}"
      raise KeyError, "gone" if word == "discarded"

      raise ArgumentError, "no luck" unless word == "third" && executions == 3
    end
  end

  class BrokenJob < PlainJob
    def perform(word)
      raise NotImplementedError, word if word == "unwritten"

      raise "broken #{word}"
    end
  end

  class PersistentJob < PlainJob
    def self.tickr_options = {max_attempts: 3, retry: {base_ms: 50}}

    def perform(word)
      Diary.lines << "attempt #{Tickr::ActiveJob.context.attempt.attempt} of #{word}"
      raise "broken" if Tickr::ActiveJob.context.attempt.attempt < 3
    end
  end

  class LaterJob < PlainJob
    retry_on ArgumentError, wait: ->(_) { 0.1 }, attempts: 3

    def perform(_) = raise(ArgumentError, "no luck")
  end

  class FollowedJob < PlainJob
    def perform(word) = Tickr::ActiveJob.context.follow_up("mail", {to: word})
  end

  # Against a server in this process that answers as a script says.
  class ActiveJobAnswersTest < Minitest::Test
    def teardown
      @worker&.stop
      @thread&.join(5)
      @server&.close
      Tickr::ActiveJob.client = nil
      ENV.delete("TICKR_WORK_TOKEN")
    end

    # A server that hands out an attempt of `job` for each of `enqueued`, which answers the enqueues of that attempt.
    def serve(job, *enqueued)
      attempt = {id: "j1", kind: "active_job", queue: "q", payload: job.serialize, max_attempts: 5, timeout_ms: 300_000}
      number = 0
      @server = TestServer.new do |method, path, body, _|
        next [204, ""] if method == "DELETE"

        case path.split("/").last
        when "workers" then [201, {id: "w-1", lease_ms: 60_000, beat_ms: 20_000}]
        when "fetch"
          next :hang if number == enqueued.size

          number += 1
          [200, {jobs: [attempt.merge(attempt: number, token: "t#{number}")], drain: false}]
        when "finish" then [200, {results: body["verdicts"].map { |one| {token: one["token"], result: "settled"} }}]
        when "jobs" then enqueued[number - 1]
        else [200, {cancel: [], lost: [], drain: false}]
        end
      end
    end

    def verdict_of(job)
      Tickr::ActiveJob.client = Tickr::Client.new(url: @server.url, token: "of-enqueue", retry_for: 0.2)
      job.class.queue_adapter = ActiveJob::QueueAdapters::TickrAdapter.new
      @worker = Tickr::ActiveJob.worker(slots: 1, logger: Logger.new(nil))
      @thread = Thread.new { @worker.run(signals: false) }
      @server.await("/finish") { |all| all.any? }[0][:body]["verdicts"][0]
    end

    def test_a_retry_that_cannot_be_enqueued_at_present_fails_and_is_no_dead_letter
      busy = {code: "busy", detail: "x"}
      [[503, busy], [429, busy], [408, ""], :drop].each do |answer|
        job = LaterJob.new("x")
        serve(job, answer)
        assert_equal "failed", verdict_of(job)["verdict"], answer
        @worker.stop
        @thread.join(5)
        @server.close
      end
    end

    def test_an_attempt_that_runs_again_makes_the_same_retry_and_no_second_one
      job = LaterJob.new("x")
      serve(job, :drop, [201, {id: "j2"}])
      verdict_of(job)
      told = -> { @server.requests("/finish").flat_map { |one| one[:body]["verdicts"] } }
      eventually("both verdicts") { told.call.size > 1 }
      assert_equal({"t1" => "failed", "t2" => "succeeded"}, told.call.to_h { |one| one.values_at("token", "verdict") })
      client = Tickr::ActiveJob.client
      ActiveJob::QueueAdapters::TickrAdapter.new(client: client).enqueue(LaterJob.new("y"))
      keys = @server.requests("/jobs").map { |one| one[:body].values_at("unique_key", "unique_for_ms") }
      assert_equal [nil, nil], keys.pop
      assert_equal [["retry:j1", 86_400_000]], keys.uniq
      assert_operator keys.size, :>, 1
    end

    def test_a_retry_that_the_server_refuses_is_a_dead_letter
      job = LaterJob.new("x")
      serve(job, [422, {code: "invalid_request", detail: "x"}])
      assert_equal "rejected", verdict_of(job)["verdict"]
    end

    def test_the_worker_and_the_jobs_that_enqueue_have_api_keys_of_their_own
      ENV["TICKR_WORK_TOKEN"] = "of-work"
      job = LaterJob.new("x")
      serve(job, [201, {id: "j2"}])
      assert_equal "succeeded", verdict_of(job)["verdict"]
      keys = @server.requests.group_by { |one| one[:path] }.transform_values do |all|
        all.map { |one| one[:headers]["authorization"] }.uniq
      end
      assert_equal ["Bearer of-enqueue"], keys.delete("/v1/jobs")
      assert_equal [["Bearer of-work"]], keys.values.uniq
    end

    def test_the_api_key_that_enqueues_stands_for_the_jobs_that_follow_one_of_active_job
      ENV["TICKR_WORK_TOKEN"] = "of-work"
      job = FollowedJob.new("x")
      serve(job, [201, {id: "j2"}])
      assert_equal [{"kind" => "mail", "payload" => {"to" => "x"}}], verdict_of(job)["follow_ups"]
      headers = @server.requests("/finish")[0][:headers]
      expected = ["Bearer of-work", "Bearer of-enqueue"]
      assert_equal expected, headers.values_at("authorization", "tickr-enqueue-authorization")
    end

    def test_many_large_jobs_go_in_requests_that_the_server_takes
      @server = TestServer.new { |_, _, body, _| [201, {jobs: body["jobs"].map { {id: SecureRandom.uuid} }}] }
      client = Tickr::Client.new(url: @server.url)
      words = [*["x" * 90_000] * 3, "y" * 250_000, *["z"] * 120]
      jobs = words.map { |word| PlainJob.new(word) }
      assert_equal 124, ActiveJob::QueueAdapters::TickrAdapter.new(client: client).enqueue_all(jobs)
      assert_equal 124, jobs.map(&:provider_job_id).uniq.size
      assert_equal [2, 1, 1, 100, 20], @server.requests.map { |one| one[:body]["jobs"].size }
      assert(@server.requests.all? { |one| one[:text].bytesize < 256 * 1024 })
      assert_equal 0, ActiveJob::QueueAdapters::TickrAdapter.new(client: client).enqueue_all([])
    end
  end

  class ActiveJobTest < Minitest::Test
    def setup
      skip "TICKR_URL is not set, so there is no server to test with" unless ENV["TICKR_URL"]

      @client = Tickr::Client.new
      @kind = "active-job-#{SecureRandom.hex(4)}"
      Tickr::ActiveJob.declare(client: @client, kind: @kind, queue: @kind)
      adapter = ActiveJob::QueueAdapters::TickrAdapter.new(client: @client, kind: @kind)
      [PlainJob, RetriedJob, BrokenJob, PersistentJob].each do |job_class|
        job_class.queue_adapter = adapter
        job_class.queue_as(@kind)
      end
      Diary.take
    end

    def teardown
      @worker&.stop
      @thread&.join(10)
      @client&.call("DELETE", "/v1/kinds/#{@kind}")
    end

    def work(queues: [@kind], slots: 2)
      @worker = Tickr::ActiveJob.worker(kind: @kind, client: @client, name: "aj", queues: queues, slots: slots,
        lease: 10, logger: Logger.new(nil))
      @thread = Thread.new { @worker.run(signals: false) }
    end

    def await(lines)
      begin
        eventually("the diary") { Diary.lines.size >= lines.size }
      rescue RuntimeError
        nil # The comparison says more.
      end
      assert_equal lines.sort, Diary.take.sort
    end

    def test_jobs_run_with_their_arguments_at_their_time_in_their_queue
      now = PlainJob.perform_later("now", more: {a: 1, at: Date.new(2026, 11, 27)})
      later = PlainJob.set(wait: 1).perform_later("later")
      other = PlainJob.set(queue: "#{@kind}.other", priority: 3).perform_later("other")
      assert_operator Time.iso8601(@client.job(later.provider_job_id)["execute_at"]), :>, Time.now + 0.3
      view = @client.job(other.provider_job_id)
      assert_equal ["#{@kind}.other", 3, ["class:PlainJob"]], view.values_at("queue", "priority", "tags")
      work
      await(["ran now #{{a: 1, at: Date.new(2026, 11, 27)}.inspect} 1", "ran later nil 1"])
      assert_equal "completed", @client.wait(now.provider_job_id).state
      assert_equal "waiting", @client.job(other.provider_job_id)["state"]
    end

    def test_retries_and_discards_of_the_class
      %w[third never discarded].each { |word| RetriedJob.perform_later(word) }
      work
      await([
        "tried third 1", "tried third 2", "tried third 3", "tried never 1", "tried never 2", "tried never 3",
        "gave up never: no luck", "tried discarded 1", "discarded discarded"
      ])
    end

    def test_an_error_that_the_class_does_not_handle_is_a_dead_letter
      errors = {"x" => "RuntimeError: broken x", "unwritten" => "NotImplementedError: unwritten"}
      jobs = errors.to_h { |word, error| [BrokenJob.perform_later(word), error] }
      work
      jobs.each do |job, error|
        result = @client.wait(job.provider_job_id)
        assert_equal ["failed", error], [result.state, result.last_error]
        assert_equal 1, @client.job(job.provider_job_id)["attempts"].size
      end
    end

    def test_a_class_may_leave_its_attempts_to_tickr
      job = PersistentJob.perform_later("x")
      work
      assert_equal "completed", @client.wait(job.provider_job_id).state
      await(["attempt 1 of x", "attempt 2 of x", "attempt 3 of x"])
    end

    def test_many_jobs_are_one_request
      jobs = Array.new(3) { |i| PlainJob.new(i) }
      assert_equal 3, PlainJob.queue_adapter.enqueue_all(jobs)
      assert_equal 3, jobs.map(&:provider_job_id).uniq.size
      work
      await(["ran 0 nil 1", "ran 1 nil 1", "ran 2 nil 1"])
    end

    def test_the_program_executes_jobs_and_ends_on_sigterm
      file = Tempfile.create(["jobs", ".rb"])
      file.write(<<~RUBY)
        require "active_job"
        ActiveJob::Base.logger = Logger.new(nil)
        class PlainJob < ActiveJob::Base
          def perform(path) = File.write(path, "ran")
        end
      RUBY
      file.close
      path = "#{file.path}.out"
      job = PlainJob.perform_later(path)
      lib = File.expand_path("../lib", __dir__)
      program = File.expand_path("../exe/tickr-active-job", __dir__)
      pid = spawn(RbConfig.ruby, "-I", lib, program, "--require", file.path, "--queues", @kind,
        "--kind", @kind, "--threads", "1", err: File::NULL)
      assert_equal "completed", @client.wait(job.provider_job_id, timeout: 20).state
      assert_equal "ran", File.read(path)
      Process.kill("TERM", pid)
      _, status = eventually("the end of the program") { Process.wait2(pid, Process::WNOHANG) }
      assert_equal 0, status.exitstatus
    ensure
      File.delete(file.path) if file
      File.delete(path) if path && File.exist?(path)
    end
  end
end
