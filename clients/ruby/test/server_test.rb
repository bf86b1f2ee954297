# frozen_string_literal: true

require_relative "setup"
require "cgi"
require "tempfile"

# The library against a real tickr at TICKR_URL.
class ServerTest < Minitest::Test
  def setup
    skip "TICKR_URL is not set, so there is no server to test with" unless ENV["TICKR_URL"]

    @client = Tickr::Client.new
    @kind = "ruby-#{SecureRandom.hex(4)}"
    @client.call("PUT", "/v1/kinds/#{@kind}", JSON.generate({queue: @kind, retry: {base_ms: 100}}))
    @workers = []
  end

  def teardown
    return unless @workers

    @workers.each do |worker, thread|
      worker.stop
      thread.join(10)
    end
    @client.call("DELETE", "/v1/kinds/#{@kind}")
  end

  def enqueue(payload = {}, **options) = @client.enqueue(@kind, payload, queue: @kind, **options).id

  def work(slots: 1, grace: 1, client: @client, **options, &handler)
    worker = Tickr::Worker.new(client: client, name: @kind, queues: [@kind], slots: slots, lease: 10, grace: grace,
      logger: Logger.new(nil), **options)
    worker.handle(@kind, &handler)
    @workers << [worker, Thread.new { worker.run(signals: false) }]
    @workers.last
  end

  def test_a_job_runs_and_every_digit_survives
    work { |_, context| context.attempt.payload_json }
    text = '{"n":18446744073709551617,"d":0.1000000000000000055511151231257827,"e":{},"l":[],"f":1.0,"s":"ü\u0001"}'
    job = enqueue(Tickr::RawJson.new(text))
    assert_equal "completed", @client.wait(job, timeout: 10).state
    assert_equal text, Tickr::Json.members(@client.call("GET", "/v1/jobs/#{job}/result").body)["result"]
    assert_nil @client.job("019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718")
  end

  def test_every_verdict_arrives
    seen = Hash.new(0)
    work(slots: 2) do |payload, context|
      case payload["do"]
      when "fail" then raise Tickr::Failed.new("boo", delay_ms: 50)
      when "throw" then raise KeyError, "thrown"
      when "reject" then raise Tickr::Rejected, "never"
      when "snooze"
        (seen[:snooze] += 1) == 1 ? Tickr::Snoozed.new("not yet", delay_ms: 50) : context.attempt.attempt
      when "release" then (seen[:release] += 1) == 1 ? Tickr::Released.new : context.attempt.attempt
      end
    end
    expected = {
      "fail" => ["failed", "boo", nil], "throw" => ["failed", "KeyError: thrown", nil],
      "reject" => ["failed", "never", nil], "snooze" => ["completed", nil, 1], "release" => ["completed", nil, 1]
    }
    ids = expected.keys.to_h { |verdict| [verdict, enqueue({do: verdict}, max_attempts: 2)] }
    got = ids.transform_values { |id| @client.wait(id, timeout: 10).to_h.values_at(:state, :last_error, :result) }
    assert_equal expected, got
    assert_equal %w[snoozed succeeded], @client.job(ids["snooze"])["attempts"].map { |one| one["verdict"] }
    assert_equal %w[rejected], @client.job(ids["reject"])["attempts"].map { |one| one["verdict"] }
  end

  def test_jobs_follow_a_success_with_their_options_and_exist_exactly_if_it_counts
    later = {delay_ms: 3_600_000, expires_in_ms: 7_200_000, max_attempts: 2, timeout_ms: 30_000, priority: 1,
             order_key: @kind, on_failure: "skip", limit_key: @kind, queue: "#{@kind}-one", tags: %w[a b],
             retry: {delays_ms: [100]}, in_batch: true}
    work do |payload, context|
      attempt = context.attempt.attempt
      context.follow_up(@kind, {row: attempt * 10}, **later)
      context.follow_up(@kind, {row: attempt * 10 + 1}, execute_at: Time.now + 3600, queue: "#{@kind}-two")
      context.follow_up("#{@kind}-missing") if payload["do"] == "refuse"
      raise Tickr::Failed.new("once", delay_ms: 1) if payload["do"] == "once" && attempt == 1

      "sent"
    end
    followers = lambda do
      %w[one two].flat_map do |part|
        data = @client.call("GET", "/v1/jobs?q=queue:#{@kind}-#{part}").json["data"]
        data.map { |one| @client.job(one["id"]) }
      end
    end
    refused = @client.wait(enqueue({do: "refuse"}, max_attempts: 1), timeout: 10)
    assert_equal ["failed", []], [refused.state, followers.call]
    assert_includes refused.last_error, "follow_ups/2/kind"
    assert_equal "completed", @client.wait(enqueue({do: "once"}), timeout: 10).state
    made = followers.call
    assert_equal [{"row" => 20}, {"row" => 21}], made.map { |one| one["payload"] }
    assert_equal [1, 2, 30_000, @kind, @kind, %w[a b]],
      made[0].values_at("priority", "max_attempts", "timeout_ms", "order_key", "limit_key", "tags")
    made.each { |one| assert_operator Time.iso8601(one["execute_at"]) - Time.now, :>, 3_500 }
  end

  def test_a_job_that_follows_and_is_too_deep_fails_its_attempt_and_frees_the_slot
    work do |depth, context|
      deep = Array.new(depth).inject(1) { |inner, _| [inner] }
      context.follow_up(@kind, deep, queue: "#{@kind}-deep", delay_ms: 60_000)
    end
    ends = [198, 64, 63].map { |depth| @client.wait(enqueue(depth, max_attempts: 1), timeout: 10) }
    assert_equal %w[failed failed completed], ends.map(&:state)
    assert_match(/the server refused the verdict of the handler: follow_ups/, ends[1].last_error)
  end

  def test_with_a_key_of_the_scope_work_alone_no_job_follows_and_the_error_says_so
    skip "TICKR_TOKEN is not set: it has the scope admin" if ENV["TICKR_TOKEN"].to_s.empty?

    clients = %w[work enqueue].map do |scope|
      made = @client.call("PUT", "/v1/api-keys/#{@kind}-#{scope}", JSON.generate({scope: scope})).json
      @client.with_token(made["token"])
    end
    ends = [nil, clients[1]].map do |enqueue_client|
      worker, thread = work(client: clients[0], enqueue_client: enqueue_client) do |_, context|
        context.follow_up(@kind, {}, queue: "#{@kind}-next")
      end
      @client.wait(enqueue({}, max_attempts: 1), timeout: 10).tap do
        worker.stop
        thread.join(10)
      end
    end
    assert_equal %w[failed completed], ends.map(&:state)
    assert_match(/the server refused the verdict of the handler: follow_ups\S* .*scope/, ends[0].last_error)
  end

  def test_a_cancel_reaches_the_handler
    work do |_, context|
      context.progress(25, "asleep")
      context.sleep(60)
    end
    job = enqueue
    eventually("the progress") { @client.job(job).dig("progress", "note") == "asleep" }
    refute @client.cancel(job)
    assert_equal "cancelled", @client.wait(job, timeout: 10).state
    assert_equal "wrong_state", assert_raises(Tickr::Problem) { @client.cancel(job) }.code
  end

  def test_an_attempt_begins_with_the_checkpoint_of_the_one_before
    work do |_, context|
      if context.attempt.attempt == 1
        context.checkpoint({row: 7})
        raise "broken"
      end
      {began_with: context.attempt.checkpoint}
    end
    assert_equal({"began_with" => {"row" => 7}}, @client.wait(enqueue, timeout: 10).result)
  end

  def test_the_newest_lines_of_the_log_are_kept
    work { |_, context| 2000.times { |i| context.log("line #{i} is the one that says ü") } && nil }
    job = enqueue
    assert_equal "completed", @client.wait(job, timeout: 10).state
    log = @client.call("GET", "/v1/jobs/#{job}/attempts/1/log").body
    assert_includes log, "line 1999 is the one that says ü"
    refute_includes log, "line 1000 "
  end

  def test_a_blocked_handler_keeps_its_lease_and_a_deadline_stops_one
    work(slots: 2) { |payload, context| payload["block"] ? sleep(12) && "done" : context.sleep(60) }
    long = enqueue({block: true})
    over = @client.wait(enqueue({}, timeout_ms: 1000, max_attempts: 1), timeout: 8)
    assert_equal ["failed", "the time of the attempt is over"], [over.state, over.last_error]
    assert_equal "done", @client.wait(long, timeout: 20).result
    assert_equal 1, @client.job(long)["attempts"].size
  end

  def test_sigterm_releases_what_does_not_finish_and_a_second_signal_ends_at_once
    [["TERM"], %w[TERM INT]].each do |signals|
      job = enqueue
      pid = fork_worker(signals.size > 1 ? 60 : 0.3)
      eventually("the handler") { @client.job(job)["progress"] }
      signals.each do |signal|
        Process.kill(signal, pid)
        sleep 0.3
      end
      _, status = eventually("the end of the worker") { Process.wait2(pid, Process::WNOHANG) }
      assert_equal signals.size - 1, status.exitstatus
      next if signals.size > 1

      assert_equal ["waiting", 0], @client.job(job).values_at("state", "attempt")
      @client.cancel(job)
    end
  end

  def fork_worker(grace)
    program = <<~RUBY
      require "tickr"
      worker = Tickr::Worker.new(name: "#{@kind}", queues: ["#{@kind}"], slots: 1, lease: 10, grace: #{grace})
      worker.handle("#{@kind}") { |_, context| context.progress(1); sleep 60 }
      exit worker.run
    RUBY
    spawn(RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-e", program, err: File::NULL)
  end

  def test_a_drained_worker_gets_nothing
    work { "done" }
    id = eventually("the registration") do
      @client.call("GET", "/v1/runners").json["data"].find { |runner| runner["id"].start_with?(@kind) }&.fetch("id")
    end
    @client.call("POST", "/v1/runners/#{CGI.escape(id)}/drain", "{}")
    job = enqueue
    refute @client.wait(job, timeout: 2).ended?
    @client.call("POST", "/v1/runners/#{CGI.escape(id)}/resume", "{}")
    assert_equal "done", @client.wait(job, timeout: 10).result
  end

  def test_many_jobs_and_a_batch
    work(slots: 4) { |payload, _| payload["i"] }
    jobs = Array.new(60) { |i| Tickr::NewJob.new(@kind, {i: i}) }
    ids = @client.enqueue_many(jobs).map(&:id)
    batch = @client.create_batch(name: "all", jobs: [Tickr::NewJob.new(@kind, {i: 0})], close: true,
      on_success: Tickr::NewJob.new(@kind, {i: 99}))
    assert_equal (0...60).to_a, ids.map { |id| @client.wait(id, timeout: 20).result }
    assert_equal 1, batch["jobs"].size
    path = "/v1/batches/#{batch["id"]}"
    eventually("the end of the batch") { @client.call("GET", path).json["state"] == "succeeded" }
  end

  def test_a_unique_key_and_an_idempotency_key_make_one_job
    first, second = Array.new(2) { @client.enqueue(@kind, {}, unique_key: "u") }
    assert_equal [second.id, false, true], [first.id, first.existing, second.existing]
    ids = Array.new(2) { @client.enqueue(@kind, idempotency_key: "key-#{@kind}").id }
    assert_equal 1, ids.uniq.size
  end

  def test_a_job_exists_exactly_if_the_transaction_was_committed
    options = mysql_options("mysql2")
    mysql = Mysql2::Client.new(**options)
    outbox = Tickr::Outbox.new(mysql)
    mysql.query("BEGIN")
    lost = outbox.enqueue(@kind, {n: 1})
    mysql.query("ROLLBACK")
    mysql.query("BEGIN")
    made = outbox.enqueue(@kind, {"ü'\\" => 2}, queue: @kind, priority: 2, delay_ms: 50)
    mysql.query("COMMIT")
    @client.nudge
    work { |payload, _| payload }
    eventually("the job of the outbox") { @client.job(made) }
    assert_equal({"ü'\\" => 2}, @client.wait(made, timeout: 5).result)
    assert_equal 2, @client.job(made)["priority"]
    assert_nil @client.job(lost)
  end

  def test_a_job_exists_exactly_if_the_transaction_of_active_record_was_committed
    options = mysql_options("active_record")
    ActiveRecord::Base.establish_connection(adapter: "mysql2", **options)
    outbox = Tickr::Outbox.new(ActiveRecord::Base.connection)
    lost = made = nil
    ActiveRecord::Base.transaction do
      lost = outbox.enqueue(@kind, {n: 1})
      raise ActiveRecord::Rollback
    end
    ActiveRecord::Base.transaction { made = outbox.enqueue(@kind, {"ü'\\" => 2}, queue: @kind) }
    @client.nudge
    work { |payload, _| payload }
    eventually("the job of the outbox") { @client.job(made) }
    assert_equal({"ü'\\" => 2}, @client.wait(made, timeout: 5).result)
    assert_nil @client.job(lost)
  end

  # Options of mysql2 from TICKR_MYSQL_URL.
  def mysql_options(library)
    skip "TICKR_MYSQL_URL is not set" unless ENV["TICKR_MYSQL_URL"]
    begin
      require "mysql2"
      require library
    rescue LoadError
      skip "#{library} is not installed"
    end
    url = URI.parse(ENV["TICKR_MYSQL_URL"])
    socket = URI.decode_www_form(url.query.to_s).to_h["socket"]
    options = {username: url.user, password: url.password, database: url.path.delete_prefix("/"), encoding: "utf8mb4"}
    options.merge(socket ? {socket: socket} : {host: url.host, port: url.port || 3306})
  end
end
