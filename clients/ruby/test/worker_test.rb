# frozen_string_literal: true

require_relative "setup"

# The protocol against a server that loses answers, repeats itself and refuses.
class WorkerTest < Minitest::Test
  IDLE = [200, {jobs: [], drain: false}].freeze

  def teardown
    @worker&.stop
    @thread&.join(5)
    @server&.close
  end

  # Each script gets the number of the call and the body.
  def serve(beat_ms: 20_000, lease_ms: 60_000, **scripts)
    counts = Hash.new(0)
    lock = Mutex.new
    @server = TestServer.new do |method, path, body, _|
      next [204, ""] if method == "DELETE"

      call = path.split("/").last.to_sym
      number = lock.synchronize { counts[call] += 1 }
      next scripts[call].call(number, body) if scripts[call]

      case call
      when :workers then [201, {id: "w-#{number}", lease_ms: lease_ms, beat_ms: beat_ms}]
      when :beat then [200, {cancel: [], lost: [], drain: false}]
      when :finish then settled(body)
      else :hang
      end
    end
  end

  def settled(body)
    [200, {results: body["verdicts"].map { |one| {token: one["token"], result: "settled", state: "completed"} }}]
  end

  def job(token)
    {id: "job-#{token}", kind: "kind", queue: "q", payload: {a: 1}, attempt: 1, max_attempts: 5, token: token,
     started_at: "2026-11-27T00:00:00Z", deadline_at: "2026-11-27T00:05:00Z", timeout_ms: 300_000}
  end

  def jobs(*tokens) = [200, {jobs: tokens.map { |token| job(token) }, drain: false}]

  def work(url: @server.url, slots: 1, grace: 5, token: nil, enqueue_client: nil, &handler)
    @log = StringIO.new
    @worker = Tickr::Worker.new(client: Tickr::Client.new(url: url, token: token), name: "test", queues: ["q"],
      slots: slots, grace: grace, logger: Logger.new(@log), enqueue_client: enqueue_client)
    @worker.handle("kind", &handler)
    @thread = Thread.new { @worker.run(signals: false) }
    @thread.report_on_exception = false
  end

  def verdicts = @server.requests("/finish").flat_map { |one| one[:body]["verdicts"] }

  def test_a_lost_answer_to_a_fetch_is_asked_for_again_with_the_same_body
    serve(fetch: lambda { |n, _|
      case n
      when 1 then :drop
      when 2 then [200, "no json"]
      when 3 then jobs("t1")
      else :hang
      end
    })
    work { "done" }
    finishes = @server.await("/finish") { |all| all.any? }
    assert_equal({"token" => "t1", "verdict" => "succeeded", "result" => "done"}, finishes[0][:body]["verdicts"][0])
    texts = @server.await("/fetch") { |all| all.size >= 4 }.map { |one| one[:text] }
    assert_equal 1, texts.first(3).uniq.size
    refute_equal texts[0], texts[3]
  end

  def test_an_answer_that_was_long_on_its_way_starts_no_job_and_is_logged
    serve(beat_ms: 2_000, fetch: lambda { |n, _|
      sleep 1.6 if n == 1
      n > 2 ? :hang : [200, {jobs: [job("t#{n}")], drain: false, took_ms: 0}]
    })
    work { "done" }
    finishes = @server.await("/finish") { |all| all.any? }
    assert_equal "t2", finishes[0][:body]["verdicts"][0]["token"]
    assert_empty @server.requests("/fetch")[1][:body]["holding"]
    assert_includes @log.string, "an answer with 1 jobs came late and counts as lost"
  end

  # The connection sends a request again when a kept one ends.
  def test_the_time_of_a_try_that_broke_after_long_does_not_make_the_next_answer_late
    serve(beat_ms: 2_000, fetch: lambda { |n, _|
      sleep 1.6 if n == 2
      case n
      when 1 then IDLE
      when 2 then :drop
      when 3 then [200, {jobs: [job("t1")], drain: false, took_ms: 0}]
      else :hang
      end
    })
    work { "done" }
    finishes = @server.await("/finish") { |all| all.any? }
    assert_equal "t1", finishes[0][:body]["verdicts"][0]["token"]
  end

  def test_a_token_that_comes_twice_is_executed_once
    serve(fetch: lambda { |n, _|
      case n
      when 1, 2 then jobs("t1")
      when 3 then jobs("t1", "t2")
      else :hang
      end
    })
    runs = Thread::Queue.new
    work(slots: 2) { |_, context| runs << context.attempt.id }
    @server.await("/fetch") { |all| all.size >= 4 }
    eventually("the second job") { runs.size >= 2 }
    assert_equal %w[job-t1 job-t2], Array.new(runs.size) { runs.pop }
  end

  def test_a_verdict_is_repeated_until_it_is_answered_and_its_token_stays_held
    serve(
      fetch: lambda { |n, _|
        sleep 0.05
        n == 1 ? jobs("t1") : IDLE
      },
      finish: lambda { |n, body|
        case n
        when 1 then :drop
        when 2 then [503, {code: "store_unavailable", detail: "x"}, {"retry-after" => "1"}]
        else settled(body)
        end
      }
    )
    work { raise "broken" }
    finishes = @server.await("/finish") { |all| all.size >= 3 }
    assert_equal 1, finishes.map { |one| one[:text] }.uniq.size
    assert_equal "RuntimeError: broken", finishes[0][:body]["verdicts"][0]["error"]
    assert(@server.requests("/fetch").any? { |one| one[:body]["holding"] == ["t1"] })
    @server.await("/fetch") { |all| all.last[:body]["holding"] == [] }
  end

  def test_a_worker_registers_again_after_404_and_keeps_its_attempts
    serve(beat_ms: 200, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang },
      beat: ->(n, _) { n == 1 ? [404, {code: "not_found", detail: "x"}] : [200, {cancel: [], lost: [], drain: false}] })
    work(slots: 2) { |_, context| context.sleep(1.5) }
    registrations = @server.await("/workers") { |all| all.size >= 2 }
    assert_equal registrations[0][:text], registrations[1][:text]
    beats = @server.await("/w-2/beat") { |all| all.any? }
    assert_equal [{"token" => "t1"}], beats[0][:body]["holding"]
    @server.await("/w-2/fetch") { |all| all.any? && all[0][:body]["holding"] == ["t1"] }
    @server.await("/w-2/finish") { |all| all.any? }
  end

  def test_beats_go_on_while_a_handler_blocks
    serve(beat_ms: 100, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    work { sleep 1.5 }
    @server.await("/finish") { |all| all.any? }
    assert_operator @server.requests("/beat").count { |one| one[:body]["holding"].any? }, :>, 8
  end

  def test_a_lost_attempt_is_stopped_and_gets_no_verdict
    serve(
      beat_ms: 200, fetch: ->(n, _) { [nil, jobs("t1"), jobs("t2")][n] || :hang },
      beat: ->(_, body) { [200, {cancel: [], lost: body["holding"].map { |one| one["token"] } & ["t1"], drain: false}] }
    )
    work do |_, context|
      context.sleep(60) if context.attempt.id == "job-t1"
      "done"
    end
    @server.await("/finish") { |all| all.any? }
    assert_equal ["t2"], verdicts.map { |one| one["token"] }
    @server.await("/beat") { |all| all.last[:body]["holding"] == [] }
  end

  def test_a_lost_attempt_whose_handler_goes_on_is_listed_no_more
    blocked = Thread::Queue.new
    told = Thread::Queue.new
    lost = false
    serve(
      beat_ms: 200,
      fetch: lambda { |n, _|
        # The second answer comes when the worker knows that the first attempt is lost.
        told.pop if n == 2
        [nil, jobs("t1"), jobs("t2")][n] || :hang
      },
      beat: lambda { |_, body|
        # A beat after the one that said so.
        told << true if lost
        reported = body["holding"].select { |one| one.key?("percent") }.map { |one| one["token"] }
        lost ||= reported.any?
        [200, {cancel: [], lost: reported, drain: false}]
      }
    )
    work(slots: 2) do |_, context|
      next "done" unless context.attempt.id == "job-t1"

      context.progress(10)
      blocked.pop
    end
    fetches = @server.await("/fetch") { |all| all.size >= 3 }
    refute_includes fetches[2][:body]["holding"], "t1"
    assert_equal 1, fetches[2][:body]["slots"], "its slot is not free"
    reports = ->(beat) { beat[:body]["holding"].any? { |one| one.key?("percent") } }
    later = ->(beats) { beats.drop_while { |beat| !reports.call(beat) }.drop(1) }
    beats = @server.await("/beat") { |all| later.call(all).size >= 4 }
    assert_empty later.call(beats).flat_map { |beat| beat[:body]["holding"] }.select { |one| one["token"] == "t1" }
  ensure
    blocked << nil
  end

  def test_a_cancelled_attempt_fails_whatever_its_handler_says
    serve(
      beat_ms: 200, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang },
      beat: ->(_, body) { [200, {cancel: body["holding"].map { |one| one["token"] }, lost: [], drain: false}] }
    )
    work do |_, context|
      eventually("the cancel") { context.cancelled? }
      context.log("last words")
      "done"
    end
    @server.await("/finish") { |all| all.any? }
    expected = {"token" => "t1", "verdict" => "failed", "error" => "the job was cancelled", "log" => "last words"}
    assert_equal [expected], verdicts
  end

  def test_a_checkpoint_reaches_the_server_before_the_failure
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    work do |_, context|
      context.progress(30, "third")
      context.checkpoint({row: 3})
      raise "broken"
    end
    @server.await("/finish") { |all| all.any? }
    before = @server.requests.take_while { |one| !one[:path].end_with?("/finish") }
    saved = before.filter_map { |one| one[:body]&.dig("holding", 0, "checkpoint") if one[:path].end_with?("/beat") }
    assert_equal [{"row" => 3}], saved
  end

  def test_jobs_follow_a_success_and_no_other_verdict_and_only_they_show_the_other_api_key
    tokens = %w[good plain failed raised snoozed released wrong]
    serve(fetch: ->(n, _) { tokens[n - 1] ? jobs(tokens[n - 1]) : :hang })
    client = Tickr::Client.new(url: "#{@server.url}/, http://elsewhere.invalid", token: "may-enqueue")
    work(token: "may-work", enqueue_client: client) do |_, context|
      how = context.attempt.id.delete_prefix("job-")
      next "sent" if how == "plain"

      context.follow_up("mail", {to: "ü"}, delay_ms: 5, in_batch: true)
      context.follow_up("log", Tickr::RawJson.new('{"n":1.00000000000000000001}'))
      case how
      when "failed" then Tickr::Failed.new("no address")
      when "raised" then raise "no address"
      when "snoozed" then raise Tickr::Snoozed.new("busy", delay_ms: 1)
      when "released" then raise Tickr::Released
      when "wrong" then context.follow_up("mail", unique_key: "ada")
      else "sent"
      end
    end
    finishes = @server.await("/finish") { |all| all.size >= tokens.size }
    finishes.each do |finish|
      verdict = finish[:body]["verdicts"].first
      good = verdict["token"] == "good"
      assert_equal "Bearer may-work", finish[:headers]["authorization"]
      assert_equal [good, good && "Bearer may-enqueue"],
        [verdict.key?("follow_ups"), finish[:headers]["tickr-enqueue-authorization"] || false], verdict["token"]
    end
    assert_includes finishes[0][:text], '"result":"sent","follow_ups":[{"kind":"mail","payload":{"to":"ü"},' \
      '"delay_ms":5,"in_batch":true},{"kind":"log","payload":{"n":1.00000000000000000001}}]'
    assert_includes verdicts.last["error"], "has no option unique_key"
  end

  def test_without_another_client_the_api_key_of_the_worker_stands_for_the_jobs_that_follow
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    work(token: "may-all") { |_, context| context.follow_up("mail") }
    finish = @server.await("/finish") { |all| all.any? }.first
    assert_equal "Bearer may-all", finish[:headers]["tickr-enqueue-authorization"]
    refute_includes @worker.inspect, "may-all"
  end

  def test_the_api_key_of_another_server_is_not_sent_to_that_of_the_worker
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    elsewhere = Tickr::Client.new(url: "http://elsewhere.invalid", token: "of-another-server")
    work(enqueue_client: elsewhere) { |_, context| context.follow_up("mail") }
    finish = @server.await("/finish") { |all| all.any? }.first
    verdict = finish[:body]["verdicts"].first
    assert_equal ["failed", nil], verdict.values_at("verdict", "follow_ups")
    assert_includes verdict["error"], "the server of the worker (#{@server.url}), but the client for them has other " \
      "addresses (http://elsewhere.invalid:80)"
    refute finish[:headers].key?("tickr-enqueue-authorization")
  end

  def test_a_success_whose_jobs_are_refused_fails_its_attempt_and_says_why
    wrong = {field: "follow_ups/0/kind", detail: "no kind is called so"}
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang }, finish: lambda { |_, body|
      verdict = body["verdicts"].first
      next settled(body) unless verdict.key?("follow_ups")

      [200, {results: [{token: verdict["token"], result: "refused", errors: [wrong]}]}]
    })
    work(token: "may-all") do |_, context|
      context.log("a line")
      context.follow_up("no-kind")
      "sent"
    end
    finishes = @server.await("/finish") { |all| all.size >= 2 }
    error = "the server refused the verdict of the handler: follow_ups/0/kind no kind is called so"
    assert_equal({"token" => "t1", "verdict" => "failed", "error" => error}, finishes[1][:body]["verdicts"].first)
    refute finishes[1][:headers].key?("tickr-enqueue-authorization")
  end

  def test_the_jobs_that_follow_count_for_the_size_of_a_call
    tokens = %w[t1 t2 t3 t4]
    done = Thread::Queue.new
    serve(fetch: ->(n, _) { n == 1 ? jobs(*tokens) : :hang }, finish: lambda { |_, body|
      done.size < tokens.size ? [503, {code: "store_unavailable", detail: "x"}] : settled(body)
    })
    work(slots: 4) do |_, context|
      100.times { context.follow_up("mail", {text: "x" * 1_000}) }
      done << true
      nil
    end
    sent = ->(all) { all.flat_map { |one| one[:body]["verdicts"].map { |verdict| verdict["token"] } }.uniq }
    finishes = @server.await("/finish") { |all| sent.call(all).size == tokens.size }
    assert_operator finishes.map { |one| one[:text].bytesize }.max, :<, 205_000
  end

  def test_one_verdict_that_the_server_refuses_holds_up_no_other
    serve(
      fetch: ->(n, _) { n == 1 ? jobs("t1", "t2", "t3") : :hang },
      finish: lambda { |n, body|
        next :drop if n == 1
        if body["verdicts"].any? { |one| one["result"] == "bad" }
          next [413, {code: "too_large", title: "t", detail: "too large"}]
        end

        settled(body)
      }
    )
    work(slots: 3) { |_, context| context.attempt.id == "job-t2" ? "bad" : "good" }
    good = -> { @server.requests("/finish").map { |one| one[:text] }.reject { |text| text.include?("bad") }.join }
    eventually("the verdicts") { good.call.include?("failed") && good.call.include?("t1") && good.call.include?("t3") }
    last = verdicts.to_h { |one| [one["token"], one["result"] || one["error"]] }
    assert_equal({"t1" => "good", "t3" => "good",
                  "t2" => "the server refused the verdict of the handler: too_large: too large"}, last)
  end

  def test_an_answer_that_says_nothing_of_the_verdict_does_not_change_it
    strays = [[404, "<html>"], [301, ""], [405, "no"], [200, "<html>"], [200, {results: []}]]
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang }, finish: ->(n, body) { strays[n - 1] || settled(body) })
    work { "done" }
    @server.await("/finish") { |all| all.size > strays.size }
    sleep 0.3
    assert_equal [{"token" => "t1", "verdict" => "succeeded", "result" => "done"}] * (strays.size + 1), verdicts
    assert_operator @server.requests("/workers").size, :>, 1, "404 makes it register again"
  end

  def test_an_answer_that_says_nothing_of_the_reports_of_a_beat_keeps_them
    strays = [[520, "<html>"], [301, ""], [200, "<html>"]]
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang },
      beat: ->(n, _) { strays[n - 1] || [200, {cancel: [], lost: [], drain: false}] })
    work do |_, context|
      context.checkpoint({row: 3})
      context.sleep(60)
    end
    beats = @server.await("/beat") { |all| all.size > strays.size }
    assert_equal [{"row" => 3}] * beats.size, beats.map { |one| one[:body]["holding"][0]["checkpoint"] }
  end

  def test_a_refused_api_key_ends_the_program_only_before_its_first_registration
    refusal = [401, {code: "unauthorized", title: "t", detail: "no such API key"}]
    @server = TestServer.new { refusal }
    work { nil }
    eventually("the end of the worker") { !@thread.alive? }
    assert_match(/no such API key/, assert_raises(Tickr::Problem) { @thread.value }.message)
    @thread = nil
    @server.close
    serve(
      fetch: lambda { |n, _|
        next [404, {code: "not_found", detail: "x"}] if n == 1

        n == 2 ? jobs("t1") : :hang
      },
      workers: ->(n, _) { n == 2 ? refusal : [201, {id: "w-#{n}", lease_ms: 60_000, beat_ms: 20_000}] }
    )
    work { "done" }
    @server.await("/w-3/finish") { |all| all.any? }
  end

  def test_a_beat_does_not_wait_as_long_as_a_server_asks
    serve(beat_ms: 100, beat: lambda { |n, _|
      next [503, {code: "stopping", detail: "x"}, {"retry-after" => "120"}] if n == 1

      [200, {cancel: [], lost: [], drain: false}]
    })
    work { nil }
    @server.await("/beat") { |all| all.size >= 2 }
  end

  def test_what_a_locked_row_holds_up_is_sent_again_and_holds_up_no_other
    answer = {cancel: [], lost: [], drain: false}
    # The rows of t1 and t2 are locked for the first calls that name them.
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs("t1", "t2", "t3") : :hang },
      beat: lambda { |n, body|
        reports = body["holding"].any? { |one| one["checkpoint"] }
        [200, n <= 3 && reports ? answer.merge(unsaved: ["t1"]) : answer]
      },
      finish: lambda { |n, body|
        [200, {results: body["verdicts"].map { |one|
          locked = n <= 3 && one["token"] == "t2"
          {token: one["token"], result: locked ? "locked" : "settled"}
        }}]
      })
    work(slots: 3) do |_, context|
      next "done" unless context.attempt.id == "job-t1"

      context.checkpoint({row: 9})
      raise "later"
    end
    @server.await("/finish") do |all|
      tokens = all.flat_map { |one| one[:body]["verdicts"].map { |verdict| verdict["token"] } }
      tokens.include?("t1") && tokens.include?("t3") && tokens.count("t2") > 1
    end
    assert_equal 1, verdicts.count { |one| one["token"] == "t1" }
    assert_operator @server.requests("/beat").count { |one| one[:text].include?("checkpoint") }, :>, 1
  end

  def test_large_reports_whose_rows_are_locked_keep_back_no_report_and_no_verdict_of_another
    locked = %w[t1 t2 t3]
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs(*locked, "t4", "t5") : :hang },
      beat: lambda { |_, body|
        reported = body["holding"].filter_map { |one| one["token"] if one["checkpoint"] }
        [200, {cancel: [], lost: [], drain: false, unsaved: reported & locked}]
      })
    began = Tickr::Http.now
    reports = lambda {
      held = @server.requests("/beat").flat_map { |one| one[:body]["holding"] }
      held.filter_map { |one| one["token"] if one["checkpoint"] }.tally
    }
    work(slots: 5, grace: 0) do |_, context|
      if locked.include?(context.attempt.id.delete_prefix("job-"))
        context.checkpoint("x" * 60_000)
        context.sleep(60)
      end
      eventually("the reports of the locked ones") { (locked - reports.call.keys).empty? }
      next "done" if context.attempt.id == "job-t5"

      context.checkpoint("y" * 60_000)
      raise "later"
    end
    eventually("both verdicts") { (%w[t4 t5] - verdicts.map { |one| one["token"] }).empty? }
    assert_equal 1, reports.call["t4"]
    eventually("the locked ones are sent again") { locked.all? { |token| reports.call[token] >= 3 } }
    assert_operator @server.requests("/beat").size, :<, 8 + 4 * (Tickr::Http.now - began)
  ensure
    locked.clear
  end

  def test_a_worker_whose_verdicts_are_not_answered_holds_no_more_than_a_request_may_list
    serve(beat_ms: 100, fetch: ->(n, body) { jobs(*Array.new(body["slots"]) { |one| "t#{n}-#{one}" }) },
      finish: ->(_, _) { [403, {code: "forbidden", detail: "a proxy"}] })
    work(slots: 300, grace: 0) { nil }
    @server.await("/beat") { |all| all.count { |one| one[:body]["holding"].size >= 1_000 } >= 3 }
    calls = @server.requests("/beat") + @server.requests("/fetch")
    assert_equal 1_000, calls.map { |one| one[:body]["holding"].size }.max
  end

  class NoStock < StandardError
    def message = "no #{@item.name}"
  end

  def test_a_handler_that_raises_an_unreadable_error_or_ends_its_thread_fails_and_frees_its_slot
    serve(fetch: ->(n, _) { n <= 4 ? jobs("t#{n}") : :hang })
    work do |_, context|
      case context.attempt.id
      when "job-t1" then raise NoStock
      when "job-t2" then Thread.exit
      when "job-t3" then Thread.current.kill
      else "done"
      end
    end
    @server.await("/finish") { |all| all.any? { |one| one[:text].include?('"t4"') } }
    told = verdicts.to_h { |one| [one["token"], one.values_at("verdict", "error")] }
    assert_equal ["failed", "WorkerTest::NoStock: its message cannot be read"], told["t1"]
    assert_equal [["failed", "the handler ended its thread"]] * 2, told.values_at("t2", "t3")
    assert_equal "succeeded", told["t4"].first
  end

  def test_many_checkpoints_go_in_several_beats
    tokens = %w[t1 t2 t3 t4 t5 t6]
    serve(beat_ms: 1000, fetch: ->(n, _) { n == 1 ? jobs(*tokens) : :hang }, beat: lambda { |_, body|
      next [413, {code: "too_large", detail: "x"}] if body["holding"].count { |one| one["checkpoint"] } > 2

      [200, {cancel: [], lost: [], drain: false}]
    })
    work(slots: 6) do |_, context|
      context.checkpoint("x" * 60_000)
      context.sleep(60)
    end
    beats = @server.await("/beat") do |all|
      reports = all.map { |one| one[:body]["holding"].filter_map { |held| held["token"] if held["checkpoint"] } }
      reports.select { |some| some.size <= 2 }.flatten.uniq.size == 6
    end
    assert_operator beats.map { |one| one[:text].bytesize }.max, :<, 256 * 1024
    assert(beats.any? { |one| one[:body]["holding"].size == 6 }, "every beat lists all attempts")
  end

  def test_a_checkpoint_that_the_server_refuses_alone_is_left_out
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang }, beat: lambda { |_, body|
      next [413, {code: "too_large", detail: "x"}] if body["holding"].any? { |one| one["checkpoint"] }

      [200, {cancel: [], lost: [], drain: false}]
    })
    work do |_, context|
      context.checkpoint({row: 3})
      context.sleep(1)
    end
    @server.await("/finish") { |all| all.any? }
    assert_equal [true, false], @server.requests("/beat").first(2).map { |one| one[:body]["holding"][0].key?("checkpoint") }
  end

  def test_a_beat_that_hangs_goes_to_the_next_address_within_the_lease
    beat = ->(n, _) { n == 1 ? [200, {cancel: [], lost: [], drain: false}] : :hang }
    serve(beat_ms: 2000, beat: beat)
    first = @server
    other = TestServer.new { |_, path, _, _| path.end_with?("/beat") ? [200, {cancel: [], lost: []}] : :hang }
    work(url: "#{first.url},#{other.url}") { nil }
    first.await("/beat") { |all| all.size >= 2 }
    began = Tickr::Http.now
    other.await("/beat") { |all| all.any? }
    assert_operator Tickr::Http.now - began, :<, 1.8
    assert_equal 2, first.requests("/beat").size, "the address that hangs is not asked twice"
  ensure
    other&.close
  end

  def test_handlers_stop_before_their_lease_ends_when_beats_are_refused
    stops_without_beats([401, {code: "unauthorized", detail: "x"}])
  end

  def test_handlers_stop_before_their_lease_ends_when_a_proxy_answers_the_beats
    stops_without_beats([200, {ok: true}])
  end

  def test_handlers_stop_before_their_lease_ends_when_the_connections_of_beats_end
    stops_without_beats(:drop)
  end

  def stops_without_beats(refusal)
    refuses = nil
    serve(beat_ms: 100, lease_ms: 2_000, fetch: ->(n, _) { n == 1 ? jobs("t1", "t2", "t3") : :hang },
      beat: ->(_, _) { refuses ? refusal : [200, {cancel: [], lost: [], drain: false}] })
    open = Thread::Queue.new
    work(slots: 4) do |_, context|
      context.sleep(60) if context.attempt.id == "job-t1"
      eventually("the stop") { context.cancelled? }
      open.pop if context.attempt.id == "job-t3"
      "done"
    end
    @server.await("/beat") { |all| all.any? { |one| one[:body]["holding"].size == 3 } }
    refuses = Tickr::Http.now
    eventually("two verdicts") { verdicts.map { |one| one["token"] }.uniq.size == 2 }
    assert_operator Tickr::Http.now - refuses, :<, 2 + 5
    told = verdicts.to_h { |one| [one["token"], one.values_at("verdict", "result", "error")] }
    released = ["released", nil, "no beat was answered before the end of the lease"]
    assert_equal({"t1" => released, "t2" => ["succeeded", "done", nil]}, told)
    seen = @server.requests("/beat").size
    beats = @server.await("/beat") { |all| all.size > seen + 1 }
    assert_includes beats.last[:text], '"t3"'
    refuses = nil
    open << true
    eventually("the last verdict") { verdicts.any? { |one| one.values_at("token", "result") == %w[t3 done] } }
  ensure
    open << true
  end

  def test_a_handler_whose_beats_are_answered_runs_for_longer_than_the_lease
    serve(beat_ms: 200, lease_ms: 3_000, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    open = Thread::Queue.new
    work do |_, context|
      open.pop
      context.check!
      "done"
    end
    @server.await("/beat") { |all| all.any? { |one| one[:text].include?("t1") } }
    over = Tickr::Http.now + 3.5
    eventually("the end of the first lease") { Tickr::Http.now > over }
    seen = @server.requests("/beat").size
    @server.await("/beat") { |all| all.size > seen }
    open << true
    @server.await("/finish") { |all| all.any? }
    assert_equal [{"token" => "t1", "verdict" => "succeeded", "result" => "done"}], verdicts
  end

  # Execute the block with a clock of the library that is ahead by `@ahead` seconds.
  def with_clock(&block)
    @ahead = 0.0
    Tickr::Http.stub(:now, -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) + @ahead }) do
      block.call
    ensure
      @worker.stop
      @thread.join(5)
    end
  end

  def test_a_beat_that_does_not_list_an_attempt_renews_no_lease_of_it
    arrive, report, begun = Array.new(3) { Thread::Queue.new }
    serve(beat_ms: 1_000_000, fetch: lambda { |n, _|
      arrive.pop if n == 2
      n > 2 ? :hang : [200, {jobs: [job("t#{n}")], drain: false, took_ms: 0}]
    })
    with_clock do
      work(slots: 2, grace: 0) do |_, context|
        begun << context.attempt.id
        context.progress(report.pop) if context.attempt.id == "job-t1"
        context.sleep(100)
      end
      @server.await("/fetch") { |all| all.size == 2 }
      @ahead = 30.0
      reported = Tickr::Http.now
      report << 50
      eventually("the answer to a beat") { @worker.instance_variable_get(:@renewed) >= reported }
      # Its answer was on its way for as long as the request waited.
      arrive << true
      eventually("both handlers") { begun.size == 2 }
      @ahead = 60.0
      eventually("the stop") { verdicts.any? }
      assert_equal [%w[t2 released]], verdicts.map { |one| one.values_at("token", "verdict") }.uniq
    end
  end

  def test_an_attempt_of_a_repeated_request_is_stopped_a_quarter_of_its_lease_earlier
    # The connection sends a request again when a kept one ends, and otherwise the worker.
    [[2], [2, 3]].each do |drops|
      begun = Thread::Queue.new
      serve(beat_ms: 1_000_000, fetch: lambda { |n, _|
        @ahead = 30.0 if n == 2
        next IDLE if n == 1
        next :drop if drops.include?(n)

        n > drops.last + 1 ? :hang : [200, {jobs: [job("t1")], drain: false, took_ms: 0}]
      })
      with_clock do
        work(grace: 0) do |_, context|
          begun << true
          context.sleep(100)
        end
        eventually("the handler") { !begun.empty? }
        @ahead = 77.0
        eventually("the stop") { verdicts.any? }
        assert_equal ["released"], verdicts.map { |one| one["verdict"] }.uniq
      end
      @server.close
    end
  end

  def test_a_report_that_the_server_refuses_is_logged_and_not_sent_again
    detail = "must be nested at most 64 levels deep"
    serve(beat_ms: 60_000, fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang }, beat: lambda { |_, body|
      refused = body["holding"].select { |one| one["checkpoint"] }
      refused.map! { |one| {token: one["token"], field: "checkpoint", detail: detail} }
      [200, {cancel: [], lost: [], drain: false, refused: refused}]
    })
    work do |_, context|
      context.checkpoint({row: 3})
      raise "broken"
    end
    @server.await("/finish") { |all| all.any? }
    assert_equal ["the server refuses a report: checkpoint #{detail}"], verdicts.map { |one| one["log"] }
    assert_includes @log.string, "the server refuses a report of job job-t1: checkpoint #{detail}"
    assert_equal 1, @server.requests("/beat").count { |one| one[:text].include?("checkpoint") }
  end

  def test_a_drained_worker_asks_again_after_a_beat
    serve(beat_ms: 500, fetch: ->(_, _) { [200, {jobs: [], drain: true}] },
      beat: ->(_, _) { [200, {cancel: [], lost: [], drain: true}] })
    work { nil }
    @server.await("/fetch") { |all| all.size >= 3 }
    assert_operator @server.requests("/fetch").size, :<, 8
  end

  def test_a_worker_that_is_told_to_stop_finishes_what_it_can_and_releases_the_rest
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1", "t2", "t3") : :hang })
    begun = Thread::Queue.new
    blocked = nil
    work(slots: 4, grace: 1) do |_, context|
      blocked = Thread.current if context.attempt.id == "job-t3"
      begun << context.attempt.id
      case context.attempt.id
      when "job-t1" then sleep 0.6
      when "job-t2" then context.sleep(60)
      else sleep 60
      end
      "done"
    end
    3.times { begun.pop }
    @worker.stop
    stopped = Tickr::Http.now
    assert_equal 0, @thread.value
    assert_operator Tickr::Http.now - stopped, :<, 8
    refute_predicate blocked, :alive?, "a released job may run elsewhere"
    assert_equal({"t1" => "succeeded", "t2" => "released", "t3" => "released"},
      verdicts.to_h { |one| one.values_at("token", "verdict") })
    assert_equal ["DELETE", "/v1/workers/w-1"], @server.requests.last.values_at(:method, :path)
  end

  def test_a_process_that_a_handler_forks_ends_at_a_signal
    serve(fetch: ->(n, _) { n == 1 ? jobs("t1") : :hang })
    program = <<~'RUBY'
      require "tickr"
      worker = Tickr::Worker.new(name: "test", queues: ["q"], slots: 1, logger: Logger.new(File::NULL))
      worker.handle("kind") do
        helper = fork { sleep 60 }
        Process.kill("TERM", helper)
        # A signal that the helper ignores ends nothing, so the time is limited.
        ended = nil
        200.times { (ended = Process.wait2(helper, Process::WNOHANG)) ? break : sleep(0.05) }
        Process.kill("KILL", helper) unless ended
        ended&.last&.termsig
      end
      exit worker.run
    RUBY
    lib = File.expand_path("../lib", __dir__)
    worker = Process.spawn({"TICKR_URL" => @server.url}, RbConfig.ruby, "-I", lib, "-e", program)
    eventually("the verdict", 15) { verdicts.any? }
    assert_equal [["succeeded", Signal.list["TERM"]]], verdicts.map { |one| one.values_at("verdict", "result") }
    Process.kill("TERM", worker)
    _, status = eventually("the end of the worker") { Process.wait2(worker, Process::WNOHANG) }
    worker = nil
    assert_equal 0, status.exitstatus
  ensure
    worker && Process.kill("KILL", worker) && Process.wait(worker)
  end

  def test_an_address_is_not_asked_for_jobs_before_its_retry_after_when_the_other_is_down
    times = []
    serve(fetch: lambda { |n, _|
      times << Tickr::Http.now
      n > 1 ? :hang : [503, {code: "stopping", detail: "x"}, {"retry-after" => "2"}]
    })
    closed = TCPServer.new("127.0.0.1", 0)
    dead = "http://127.0.0.1:#{closed.addr[1]}"
    closed.close
    work(url: "#{@server.url},#{dead}") { nil }
    eventually("the second request for jobs") { times.size >= 2 }
    assert_operator times[1] - times[0], :>, 1.9
  end

  def test_a_refused_worker_says_why
    @server = TestServer.new do
      [422, {code: "invalid_request", title: "t", detail: "invalid worker",
             errors: [{pointer: "/kinds/0", detail: "is not declared"}]}]
    end
    work { nil }
    assert_match(%r{/kinds/0 is not declared}, assert_raises(Tickr::Problem) { @thread.value }.message)
    @thread = nil
  end
end
