# frozen_string_literal: true

require_relative "setup"

class ClientTest < Minitest::Test
  TOKEN = "a-secret-token-of-the-test"

  def teardown = @server&.close

  def serve(&script) = @server = TestServer.new(&script)

  def test_a_repeated_enqueue_keeps_its_key_and_its_body
    calls = 0
    serve do
      case calls += 1
      when 1 then :drop
      when 2 then [503, {code: "stopping", detail: "x"}, {"retry-after" => "1"}]
      when 3 then [429, {code: "overloaded", detail: "x"}]
      when 4 then [409, {code: "idempotency_in_progress", detail: "x"}]
      when 5 then [201, "cut", {"content-length" => 100, "connection" => "close"}]
      else [201, {id: "j1", warnings: ["paused"]}]
      end
    end
    begun = Tickr::Http.now
    job = Tickr::Client.new(url: @server.url, token: TOKEN).enqueue("echo", {a: 1}, priority: 3)
    assert_equal ["j1", false, ["paused"]], job.to_a
    assert_operator Tickr::Http.now - begun, :>, 0.99, "Retry-After is kept"
    requests = @server.requests
    assert_equal 6, requests.size
    keys = requests.map { |one| one[:headers]["idempotency-key"] }
    assert_equal [keys.first] * 6, keys
    assert_match(/\A[\h-]{36}\z/, keys.first)
    assert_equal 1, requests.map { |one| one[:text] }.uniq.size
    assert_equal "Bearer #{TOKEN}", requests[0][:headers]["authorization"]
  end

  def test_a_cancel_whose_answer_is_lost_is_repeated_with_its_key
    first = nil
    serve do |_, _, _, headers|
      key = headers["idempotency-key"]
      next [409, {code: "wrong_state", title: "T", detail: "D", status: 409}] if first && first != key

      lost, first = first.nil?, key
      lost ? :drop : [200, {id: "j1", state: "cancelled"}]
    end
    assert Tickr::Client.new(url: @server.url).cancel("j1")
    assert_match(/\A[\h-]{36}\z/, first)
    assert_equal 2, @server.requests.size
  end

  def test_a_refusal_is_a_problem_and_is_not_repeated
    serve do
      [409, {code: "unique_key_taken", title: "T", detail: "D", status: 409, holder: "j7",
             errors: [{pointer: "/x", detail: "wrong"}]}]
    end
    problem = assert_raises(Tickr::Problem) { Tickr::Client.new(url: @server.url).enqueue("echo") }
    assert_equal ["unique_key_taken", "T", "D", 409], [problem.code, problem.title, problem.detail, problem.status]
    assert_equal "j7", problem.document["holder"]
    assert_equal "unique_key_taken: D (/x wrong)", problem.message
    assert_equal 1, @server.requests.size
  end

  def test_a_failing_call_gives_up_in_its_time
    serve { :drop }
    begun = Tickr::Http.now
    assert_raises(Tickr::ConnectionFailed) { Tickr::Client.new(url: @server.url, retry_for: 1).enqueue("echo") }
    assert_operator Tickr::Http.now - begun, :<, 2
    assert_operator @server.requests.size, :>, 2
  end

  def test_an_answer_that_asks_for_no_pause_is_not_repeated_in_a_hurry
    serve { [503, {code: "stopping", detail: "x"}, {"retry-after" => "0"}] }
    assert_raises(Tickr::Problem) { Tickr::Client.new(url: @server.url, retry_for: 1).enqueue("echo") }
    assert_operator @server.requests.size, :<, 10
  end

  def test_an_answer_that_never_comes_is_given_up
    serve { :hang }
    client = Tickr::Client.new(url: @server.url, retry_for: 0.1, call_timeout: 0.3)
    assert_raises(Tickr::ConnectionFailed) { client.job("x") }
  end

  def test_an_answer_that_trickles_ends_at_the_timeout
    {header: 0, body: 60}.each do |part, at_once|
      slow = SlowServer.new(at_once, 0.2)
      client = Tickr::Client.new(url: slow.url, retry_for: 0, call_timeout: 1)
      begun = Tickr::Http.now
      assert_raises(Tickr::ConnectionFailed, part.to_s) { client.job("x") }
      assert_operator Tickr::Http.now - begun, :<, 5, part.to_s
    ensure
      slow&.close
    end
  end

  def test_an_address_is_not_called_before_its_retry_after_when_the_other_is_down
    times = []
    serve do
      times << Tickr::Http.now
      times.size > 1 ? [201, {id: "j1"}] : [503, {code: "stopping", detail: "x"}, {"retry-after" => "2"}]
    end
    assert_equal "j1", Tickr::Client.new(url: "#{@server.url},#{dead}").enqueue("echo").id
    assert_equal 2, times.size
    assert_operator times[1] - times[0], :>, 1.9
  end

  # The URL of an address at which no server listens.
  def dead
    closed = TCPServer.new("127.0.0.1", 0)
    "http://127.0.0.1:#{closed.addr[1]}".tap { closed.close }
  end

  def test_a_wait_whose_first_try_fails_late_is_repeated
    calls = 0
    serve do
      next [200, {id: "j1", state: "completed"}] if (calls += 1) > 1

      sleep 1
      :drop
    end
    client = Tickr::Client.new(url: @server.url, retry_for: 0.5, call_timeout: 0.2)
    assert_predicate client.wait("j1", timeout: 10), :completed?
    assert_equal 2, calls
  end

  def test_a_success_without_an_id_is_no_answer_to_an_enqueue
    strays = [{ok: true}, {id: ""}, {id: 7}, "<html>", {jobs: [{id: "a"}]}, {jobs: [{id: "a"}, {}]}]
    rest = strays.dup
    both = {jobs: [{id: "a"}, {id: "b"}]}
    serve { |_, path, _, _| [201, rest.shift || (path.end_with?("batch") ? both : {id: "j1"})] }
    client = Tickr::Client.new(url: @server.url)
    jobs = Array.new(2) { Tickr::NewJob.new("echo") }
    rest.replace(strays.last(2))
    assert_equal %w[a b], client.enqueue_many(jobs).map(&:id)
    rest.replace(strays.first(4))
    assert_equal "j1", client.enqueue("echo").id
    assert_equal 3 + 5, @server.requests.size
    assert_equal 2, @server.requests.map { |one| one[:headers]["idempotency-key"] }.uniq.size
    rest.replace(strays * 100)
    hasty = Tickr::Client.new(url: @server.url, retry_for: 0.2)
    assert_raises(Tickr::ConnectionFailed) { hasty.enqueue("echo") }
  end

  def test_an_answer_that_is_no_text_is_a_problem_all_the_same
    serve { [403, "no \xff".b] }
    problem = assert_raises(Tickr::Problem) { Tickr::Client.new(url: @server.url).enqueue("echo") }
    assert_equal ["http_403", "no \u{fffd}"], [problem.code, problem.detail]
  end

  def test_an_address_that_hangs_leaves_time_for_the_next_one
    hangs = TestServer.new { :hang }
    serve { [201, {id: "j1"}] }
    begun = Tickr::Http.now
    assert_equal "j1", Tickr::Client.new(url: "#{hangs.url},#{@server.url}").enqueue("echo").id
    assert_operator Tickr::Http.now - begun, :<, 15
  ensure
    hangs&.close
  end

  def test_a_timeout_on_a_kept_connection_is_not_repeated_at_the_same_address
    calls = 0
    serve { (calls += 1) == 1 ? [201, {id: "j1"}] : :hang }
    client = Tickr::Client.new(url: @server.url, retry_for: 0, call_timeout: 0.3)
    client.enqueue("echo")
    assert_raises(Tickr::ConnectionFailed) { client.enqueue("echo") }
    assert_equal 2, @server.requests.size
  end

  def test_a_nudge_is_tried_once_and_holds_up_no_request
    serve { :hang }
    begun = Tickr::Http.now
    assert_raises(Tickr::ConnectionFailed) { Tickr::Client.new(url: @server.url).nudge }
    assert_operator Tickr::Http.now - begun, :<, 2
    @server.close
    serve { [503, {code: "store_unavailable", detail: "x"}] }
    assert_raises(Tickr::Problem) { Tickr::Client.new(url: @server.url).nudge }
    assert_equal 1, @server.requests.size
  end

  def test_the_next_address_is_tried_after_a_failure
    serve { [201, {id: "j1"}] }
    client = Tickr::Client.new(url: "#{dead},#{@server.url}")
    2.times { assert_equal "j1", client.enqueue("echo").id }
    assert_equal 2, @server.requests.size
  end

  def test_a_server_with_tls_is_trusted_only_with_its_certificate
    key = OpenSSL::PKey::RSA.new(2048)
    cert = OpenSSL::X509::Certificate.new
    cert.version, cert.serial, cert.public_key = 2, 1, key.public_key
    cert.subject = cert.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
    cert.not_before, cert.not_after = Time.now - 60, Time.now + 600
    extensions = OpenSSL::X509::ExtensionFactory.new(cert, cert)
    cert.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true))
    cert.add_extension(extensions.create_extension("subjectAltName", "DNS:localhost"))
    cert.sign(key, "SHA256")
    context = OpenSSL::SSL::SSLContext.new
    context.cert, context.key = cert, key
    @server = TestServer.new(tls: context) { [201, {id: "j1"}] }
    url = @server.url.sub("http://127.0.0.1", "https://localhost")
    assert_raises(Tickr::ConnectionFailed) { Tickr::Client.new(url: url, retry_for: 0).enqueue("echo") }
    Tempfile.create("cert") do |file|
      file.write(cert.to_pem)
      file.flush
      # OpenSSL reads the variable when a program starts.
      lib = File.expand_path("../lib", __dir__)
      program = 'require "tickr"; client = Tickr::Client.new; 2.times { print client.enqueue("echo").id }'
      environment = {"SSL_CERT_FILE" => file.path, "TICKR_URL" => url}
      assert_equal "j1j1", IO.popen(environment, [RbConfig.ruby, "-I", lib, "-e", program], &:read)
    end
  end

  def test_threads_share_a_client
    serve { |_, _, body, _| [201, {id: "j#{body["payload"]["i"]}"}] }
    client = Tickr::Client.new(url: @server.url)
    threads = Array.new(8) { |i| Thread.new { Array.new(5) { |j| client.enqueue("echo", {i: i * 5 + j}).id } } }
    ids = threads.flat_map(&:value)
    assert_equal (0...40).map { |i| "j#{i}" }, ids
  end

  def test_no_dump_and_no_error_shows_the_token
    serve { [401, {code: "unauthorized", title: "t", detail: "d"}] }
    client = Tickr::Client.new(url: @server.url, token: TOKEN, retry_for: 0)
    problem = assert_raises(Tickr::Problem) { client.enqueue("echo") }
    shown = [client, client.connection, problem].map(&:inspect).join + problem.full_message + client.to_s
    refute_includes shown, TOKEN
    assert_raises(TypeError) { Marshal.dump(client) }
  end
end
