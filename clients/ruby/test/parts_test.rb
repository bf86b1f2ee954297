# frozen_string_literal: true

require_relative "setup"

class PartsTest < Minitest::Test
  Mail = Struct.new(:to, :count, keyword_init: true) do
    include Tickr::Kind
    tickr_kind "mail", queue: "mails", priority: 2
  end

  def test_json_is_cut_into_its_members_without_being_read
    text = ' { "a" : 123456789012345678901234567890 , "b\"}" : {"x": "]},\"", "y": [1, [2]] }, "c": "\\\\", "d":[] } '
    expected = {"a" => "123456789012345678901234567890", "b\"}" => '{"x": "]},\"", "y": [1, [2]] }', "c" => '"\\\\"',
                "d" => "[]"}
    assert_equal expected, Tickr::Json.members(text)
    assert_equal ["1", '"ü,b"', "{}", "null"], Tickr::Json.members('[1, "ü,b",{} , null]')
    assert_empty Tickr::Json.members("[]")
    assert_raises(ArgumentError) { Tickr::Json.members("7") }
  end

  def test_texts_stay_within_their_bounds
    assert_equal "#{"ü" * 1999}…", Tickr::Text.error("ü" * 3000)
    assert_equal "ü" * 2000, Tickr::Text.error("ü" * 2000)
    assert_equal "no reason was given", Tickr::Text.error(" \n")
    assert_equal "a\u{fffd}b", Tickr::Text.error("a\xFFb")
    assert_equal "new", Tickr::Text.newest("old line\nnew", 5)
    assert_equal "üü", Tickr::Text.newest("üüü", 5)
  end

  def test_the_outbox_refuses_what_the_server_would_reject_after_the_commit
    said = []
    connection = Object.new
    connection.define_singleton_method(:quote) { |text| "'#{text}'" }
    connection.define_singleton_method(:query) { |sql| said << sql }
    outbox = Tickr::Outbox.new(connection)
    assert_raises(ArgumentError) { outbox.enqueue("mail", "x" * 1_048_576) }
    assert_raises(ArgumentError) { outbox.enqueue("mail", {}, id: "019ab2c3-d4e5-4f60-a1b2-c3d4e5f60718") }
    assert_raises(ArgumentError) { outbox.enqueue("mail", {}, execute_at: Time.now, delay_ms: 5) }
    assert_empty said
    id = outbox.enqueue("mail", "x" * 1_048_000)
    assert_includes said.first, id.delete("-")
  end

  def test_a_due_time_is_rounded_up_so_that_no_job_starts_early
    time = Time.utc(2026, 12, 1, 10, 0, Rational(1_250_001, 1_000_000))
    options = Tickr::NewJob.new("echo", {}, execute_at: time, expires_at: time).options
    assert_equal %w[2026-12-01T10:00:01.251Z 2026-12-01T10:00:01.250Z], options.values_at(:execute_at, :expires_at)
    said = []
    connection = Object.new
    connection.define_singleton_method(:quote) { |text| "'#{text}'" }
    connection.define_singleton_method(:query) { |sql| said << sql }
    Tickr::Outbox.new(connection).enqueue("mail", {}, execute_at: time)
    Tickr::Outbox.new(connection).enqueue("mail", {}, execute_at: "2026-12-01T10:00:01.2510001Z")
    assert_includes said[0], "'2026-12-01 10:00:01.251'"
    assert_includes said[1], "'2026-12-01 10:00:01.252'"
  end

  def test_ids_sort_in_the_order_in_which_they_were_made
    ids = Array.new(6000) { Tickr::Uuid.v7 }
    assert_equal ids.sort, ids
    assert_equal 6000, ids.uniq.size
    assert_match(/\A\h{8}-\h{4}-7\h{3}-[89ab]\h{3}-\h{12}\z/, ids.first)
  end

  def test_a_job_is_written_as_the_api_takes_it
    time = Time.new(2026, 11, 27, 3, 4, 5.5r, "+02:00")
    job = Tickr::NewJob.new("echo", {}, execute_at: time, tags: ["a"], order_key: nil)
    assert_equal '{"kind":"echo","payload":{},"execute_at":"2026-11-27T01:04:05.500Z","tags":["a"]}', job.to_json
    raw = Tickr::RawJson.new('{"n":1.00000000000000000001}')
    assert_equal '{"kind":"echo","payload":{"n":1.00000000000000000001}}', Tickr::NewJob.new("echo", raw).to_json
    expected = '{"kind":"mail","payload":{"to":"ada","count":null},"queue":"mails","priority":1}'
    assert_equal expected, Tickr::NewJob.new(Mail.new(to: "ada"), priority: 1).to_json
    assert_match(/no option delay/, assert_raises(ArgumentError) { Tickr::NewJob.new("echo", delay: 5) }.message)
  end

  def test_addresses_are_checked_and_failures_lead_to_the_next
    addresses = Tickr::Http::Addresses.new("http://a:1/base/, https://b")
    addresses.failed(0)
    addresses.failed(0)
    assert_equal 1, addresses.current
    other = Tickr::Http::Addresses.new("HTTP://A:1/base,https://b:443/")
    assert_equal %w[http://a:1/base https://b:443], other.urls
    assert_equal other.urls, addresses.urls
    ["http://user:secret@a", "ftp://a", "", "x y"].each do |url|
      error = assert_raises(ArgumentError) { Tickr::Http::Addresses.new(url) }
      refute_includes error.message, "secret"
    end
  end

  def test_the_other_address_is_tried_while_one_waits_for_its_retry_after
    addresses = Tickr::Http::Addresses.new("http://a:1,http://b:1")
    turns = Tickr::Http::Turns.new(addresses, 5.0)
    assert_equal 0, turns.place
    assert_equal 0.0, turns.next(0, 60.0)
    3.times do
      assert_equal 1, turns.place
      assert_operator turns.next(1), :<, 5.0
    end
    addresses.failed(0)
    assert_equal 1, turns.place
    assert_operator turns.next(1, 30.0), :>, 29.0
  end

  def test_a_pause_is_over_when_the_address_that_named_a_time_is_free
    turns = Tickr::Http::Turns.new(Tickr::Http::Addresses.new("http://a:1,http://b:1"), 5.0)
    8.times { [0, 1].each { |place| turns.next(place) } }
    turns.next(0, 1.0)
    assert_operator turns.next(1), :<=, 1.0
    turns.next(0, 1.0)
    assert_operator turns.next(1, 2.0), :>, 2.0, "a pause still grows when all addresses name a time"
  end

  def test_a_fake_client_records_what_was_enqueued
    client = Tickr::Testing::FakeClient.new
    client.assert_nothing_enqueued
    client.enqueue(Mail.new(to: "ada"))
    client.enqueue("report", {month: 11}, delay_ms: 5)
    assert_equal 5, client.assert_enqueued("report").options[:delay_ms]
    client.assert_enqueued(Mail) { |job| job.payload[:to] == "ada" }
    assert_raises(Minitest::Assertion) { client.assert_enqueued("mail") { |job| job.payload[:to] == "bob" } }
  end

  def test_a_handler_that_rescues_every_failure_does_not_swallow_a_cancel
    greedy = lambda do |_, context|
      context.check!
    rescue => error
      "swallowed #{error.message}"
    end
    stopped = Tickr::Testing.run(greedy, Tickr::Testing::FakeContext.new([1], cancelled: :cancelled))
    assert_equal ["failed", nil], [stopped.verdict, stopped.result]
  end

  def test_a_handler_runs_alone_with_a_fake_context
    handler = lambda do |payload, context|
      context.progress(50, "half\nway")
      context.checkpoint({row: 7})
      context.log("a line")
      context.sleep(1000)
      {sum: payload.sum, from: context.attempt.checkpoint}
    end
    context = Tickr::Testing::FakeContext.new([1, 2], checkpoint: {row: 3})
    outcome = Tickr::Testing.run(handler, context)
    assert_equal ["succeeded", {"sum" => 3, "from" => {"row" => 3}}], [outcome.verdict, outcome.result]
    assert_equal [50.0, "half way", {"row" => 7}, ["a line"], 1000],
      [context.percent, context.note, context.saved, context.lines, context.slept]
    stopped = Tickr::Testing.run(handler, Tickr::Testing::FakeContext.new([1], cancelled: :cancelled))
    assert_equal ["failed", "the job was cancelled"], [stopped.verdict, stopped.error]
  end

  def test_an_outcome_has_the_jobs_that_follow_a_success_and_none_of_another_verdict
    handler = lambda do |payload, context|
      context.follow_up(Mail.new(to: "ada"), delay_ms: 5, in_batch: true)
      context.follow_up(Tickr::NewJob.new("plain", [1], order_key: "o"), priority: 1)
      exact = Tickr::RawJson.new('{"n":1.00000000000000000001}')
      context.follow_up("raw", exact, execute_at: Time.at(0, 1), queue: nil)
      raise Tickr::Failed, "no" if payload == [1]
    end
    context = Tickr::Testing::FakeContext.new
    outcome = Tickr::Testing.run(handler, context)
    assert_equal "succeeded", outcome.verdict
    mail = {"kind" => "mail", "payload" => {"to" => "ada", "count" => nil}, "queue" => "mails", "priority" => 2,
            "delay_ms" => 5, "in_batch" => true}
    plain = {"kind" => "plain", "payload" => [1], "order_key" => "o", "priority" => 1}
    assert_equal [mail, plain], outcome.follow_ups.first(2)
    raw = '{"kind":"raw","payload":{"n":1.00000000000000000001},"execute_at":"1970-01-01T00:00:00.001Z"}'
    assert_equal raw, context.follow_ups[2]
    failed = Tickr::Testing.run(handler, Tickr::Testing::FakeContext.new([1]))
    assert_equal ["failed", []], [failed.verdict, failed.follow_ups]
  end

  def test_a_job_that_follows_has_no_other_options_and_a_payload_that_has_json
    wrong = {
      "a job that follows a success has no option after; the options are queue, " =>
        ->(context) { context.follow_up("plain", after: ["x"]) },
      "no option unique_key" => ->(context) { context.follow_up(Tickr::NewJob.new("plain", unique_key: "x")) },
      "cannot be written as JSON" => ->(context) { context.follow_up("plain", Float::NAN) }
    }
    wrong.each do |error, follow_up|
      outcome = Tickr::Testing.run { |_, context| follow_up.call(context) }
      assert_equal ["failed", []], [outcome.verdict, outcome.follow_ups]
      assert_includes outcome.error, "ArgumentError: "
      assert_includes outcome.error, error
    end
    assert_raises(ArgumentError) { Tickr::NewJob.new("plain", in_batch: true) }
  end

  def test_at_most_a_thousand_jobs_follow_one
    follow = lambda do |count|
      Tickr::Testing.run { |_, context| count.times { |row| context.follow_up("mail", {row: row}) } && nil }
    end
    assert_equal({"row" => 999}, follow.call(1_000).follow_ups[999]["payload"])
    outcome = follow.call(1_001)
    error = "ArgumentError: at most 1,000 jobs follow one: let one of them enqueue the rest"
    assert_equal ["failed", error, []], [outcome.verdict, outcome.error, outcome.follow_ups]
  end

  def test_every_end_of_a_handler_has_a_verdict
    ends = [
      [-> { raise "no" }, "failed", "RuntimeError: no", nil],
      [-> { raise Tickr::Failed.new("later", delay_ms: 5) }, "failed", "later", 5],
      [-> { Tickr::Snoozed.new("not yet", delay_ms: 7) }, "snoozed", "not yet", 7],
      [-> { "x" * 262_143 }, "failed",
        "the result of the handler has 262145 bytes of JSON; at most 262144 are kept", nil],
      [-> { exit }, "failed", "SystemExit: exit", nil]
    ]
    ends.each do |handler, verdict, error, delay|
      outcome = Tickr::Testing.run { |_, _| handler.call }
      assert_equal [verdict, error, delay], [outcome.verdict, outcome.error, outcome.delay_ms]
    end
    assert_match(/cannot be written as JSON/, Tickr::Testing.run { |_, _| Float::NAN }.error)
  end

  def test_a_payload_that_does_not_fit_its_class_is_rejected
    assert_equal Mail.new(to: "ada"), Mail.tickr_build({"to" => "ada"})
    [{"nobody" => 1}, nil, 7].each { |payload| assert_raises(Tickr::Rejected) { Mail.tickr_build(payload) } }
  end
end
