# frozen_string_literal: true

require "logger"
require "monitor"
require "socket"
require_relative "handling"

module Tickr
  # Executes jobs as docs/WORKERS.md of tickr specifies it. Each slot is a thread; further threads fetch, beat and
  # finish.
  #
  #     worker = Tickr::Worker.new(name: "shop", queues: ["pictures"], slots: 5)
  #     worker.handle("resize") { |payload, context| ... }
  #     exit worker.run
  class Worker
    MAX_FETCH = 500
    MAX_VERDICTS = 500
    # Most attempts that a request may list.
    MAX_HOLDING = 1_000
    # Bytes of verdicts or reports in one call; the usual `body_limit` is 256 KiB.
    CALL_BYTES = 200_000
    LOG_BYTES = 16_384
    SEEN_TOKENS = 10_000
    # Seconds between a beat that carries reports and the one before it.
    REPORT_SECONDS = 0.5
    # Seconds for which a report waits that the server could not store, because the row is locked.
    UNSAVED_SECONDS = 1.0
    # Share of the lease after which an attempt is stopped, unless a beat was answered. The rest is the time to stop in.
    LEASE_SHARE = 0.9
    # Seconds that a stopped handler has at the end of the grace, before its thread is killed.
    LAST_SECONDS = 0.5
    # Seconds after the grace in which verdicts are still repeated.
    FLUSH_SECONDS = 10
    # Seconds after which a refused first registration is an error: a kind may have been declared just now.
    REFUSED_SECONDS = 3
    LONGEST_PAUSE = 4.0
    # A registration that is refused is a mistake of the program, or of its configuration.
    REFUSES_WORKER = ->(status) { status != 408 && status != 429 && status < 500 }
    # Any other answer says nothing about the call. An operator may mend a proxy, or the rights of the API key.
    REFUSES = ->(status) { [400, 404, 413, 422].include?(status) }
    private_constant :MAX_FETCH, :MAX_VERDICTS, :MAX_HOLDING, :CALL_BYTES, :LOG_BYTES, :SEEN_TOKENS, :REPORT_SECONDS,
      :UNSAVED_SECONDS, :LEASE_SHARE, :LAST_SECONDS, :FLUSH_SECONDS, :REFUSED_SECONDS, :LONGEST_PAUSE, :REFUSES_WORKER,
      :REFUSES

    # An attempt of which the verdict is not answered yet, or a lost one whose handler has not ended. `renewed` is the
    # time from which its lease holds, at the earliest, and `expired` says that it was stopped for its end.
    Held = Struct.new(:token, :job, :context, :deadline, :thread, :progress, :checkpoint, :log, :verdict, :cancelled,
      :lost, :not_before, :pause, :unsaved_until, :renewed, :expired, keyword_init: true) do
      def running? = verdict.nil?

      # A lost attempt keeps its slot until its handler ends, but the worker does not hold it any more.
      def listed? = !lost

      def report? = listed? && !(progress.nil? && checkpoint.nil?)

      # The attempt in a beat, as JSON.
      def entry = Json.encode({token: token})

      # The attempt in a beat with its report, as JSON.
      def report
        members = {token: token}
        members[:percent] = progress[0] if progress
        members[:note] = progress[1] if progress && progress[1]
        members[:checkpoint] = RawJson.new(checkpoint) if checkpoint
        Json.encode(members)
      end
    end
    private_constant :Held

    # @param name [String] name of the program, for operators
    # @param queues [Array<String>, nil] queues to serve; nil for `default` and the queues of the kinds
    # @param slots [Integer] handlers at the same time, each in a thread
    # @param lease [Numeric] seconds without a beat after which the jobs are taken away, at least 10
    # @param grace [Numeric] seconds after SIGTERM in which running jobs may finish
    # @param wait [Numeric] longest wait of one request for jobs in seconds, at most 60
    # @param version [String, nil] version of the program, for operators
    # @param logger [Logger, nil] default: standard error
    # @param enqueue_client [Client, nil] client with an API key of the scope `enqueue`, for the jobs of
    #   Context#follow_up; it has the addresses of the worker, which get its API key. Default: `client`, which enqueues
    #   nothing if its API key has the scope `work`
    def initialize(client: Client.new, name: "ruby", queues: nil, slots: 5, lease: 60, grace: 25, wait: 30,
      version: nil, logger: nil, enqueue_client: nil)
      @client = client
      @enqueue_client = enqueue_client || client
      @name, @queues, @slots, @version = name, queues, slots, version
      @lease, @grace, @wait = lease, grace, wait
      @logger = logger || Logger.new($stderr, progname: "tickr")
      @handlers = {}
      @lock = Monitor.new
      @changed = @lock.new_cond
      @registering = Mutex.new
      @held = {}
      @ready = []
      @seen = {}
      @beat_seconds = 20.0
      @lease_seconds = @lease.to_f
      @renewed = -Float::INFINITY
      @next_fetch = @next_beat = 0.0
      @last_beat = -Float::INFINITY
      @finish_most = MAX_VERDICTS
      @finish_pause = 0.1
      @report_most = Float::INFINITY
      @stops = 0
    end

    # Execute the jobs of a kind with a block, or with an object that answers `call`.
    #
    # @param kind [String, Class] name of a kind, or a class that includes Kind
    # @yieldparam payload [Object] what the job carries, or an instance of the class
    # @yieldparam context [Context]
    # @yieldreturn [Object] the result of the job
    # @raise [ArgumentError] when the kind has a handler already
    def handle(kind, callable = nil, &block)
      handler = callable || block || raise(ArgumentError, "a handler is a block, or answers call")
      typed = kind.is_a?(Class)
      name = typed ? kind.tickr_name : kind.to_s
      raise ArgumentError, "the kind #{name.inspect} has a handler already" if @handlers.key?(name)

      @handlers[name] = lambda do |context|
        payload = context.attempt.payload
        handler.call(typed ? kind.tickr_build(payload) : payload, context)
      end
      self
    end

    # Execute jobs until SIGTERM, SIGINT or `stop`. Then the worker fetches nothing more, lets jobs finish within the
    # grace, gives back the rest, and returns. A second signal ends the process at once.
    #
    # @param signals [Boolean] false when the program handles signals and calls `stop` itself
    # @return [Integer] exit code for the program: 0 after an orderly end
    # @raise [Problem] when the server refuses the worker at its start
    def run(signals: true)
      raise ArgumentError, "a worker needs a handler: call handle first" if @handlers.empty?

      @no_follow_ups = no_follow_ups
      @wake, @waker = IO.pipe
      @pid = Process.pid
      @former = {}
      %w[TERM INT].each { |name| @former[name] = trap(name) { signalled(name) } || "DEFAULT" } if signals
      @fetch, @beat, @finish, @other = Array.new(4) { @client.connection }
      register(first: true) unless stopping?
      threads = [method(:fetch_loop), method(:beat_loop), method(:finish_loop)].map { |body| loop_in_thread(body) }
      supervise until over?
      @lock.synchronize do
        @done = true
        @changed.broadcast
      end
      [@fetch, @beat, @finish].each(&:abort)
      threads.each { |thread| thread.join(1) || thread.kill }
      depart
      0
    ensure
      @former&.each { |name, handler| trap(name, handler) }
      [@fetch, @beat, @finish, @other].compact.each(&:close)
    end

    # Stop: fetch nothing more, and let `run` return after the jobs. Any thread may call it.
    def stop
      @lock.synchronize do
        @stop_at ||= Http.now
        @changed.broadcast
      end
      wake
    end

    private

    # Runs in a trap, where no lock can be taken.
    def signalled(name)
      if Process.pid != @pid
        # A process that a handler forks has the signals of the program, and not those of the worker.
        @former.each { |former, handler| trap(former, handler) }
        return Process.kill(name, Process.pid)
      end
      @stops += 1
      Process.exit!(1) if @stops > 1
      wake
    end

    def wake
      @waker&.write_nonblock(".")
    rescue IO::WaitWritable
      nil
    end

    def stopping? = @stops.positive? || !@stop_at.nil?

    def log(line) = @logger.info(line)

    def loop_in_thread(body)
      Thread.new do
        Thread.current.report_on_exception = false
        until @done
          begin
            body.call
          rescue StandardError => e
            # A fault of this library must not end the beats.
            log("an error in the worker: #{e.class}: #{e.message}")
            pause(1.0) { @done }
          end
        end
      end
    end

    # The main thread: deadlines, signals and the end of the grace.
    def supervise
      now = Http.now
      @lock.synchronize do
        stop if @stops.positive? && @stop_at.nil?
        @held.each_value { |held| cancel(held, :deadline) if held.cancelled.nil? && now >= held.deadline }
        @held.values.each { |held| expire(held) if stoppable?(held) && now >= lease_end(held) }
        if @stop_at
          if now >= @stop_at + @grace && !@grace_over
            @grace_over = now
            @ready.clear
            @held.values.each { |held| cancel(held, :stopping) }
          end
          release_the_rest if @grace_over && now >= @grace_over + LAST_SECONDS
        end
      end
      @fetch.abort if @stop_at && @fetching
      return unless @wake.wait_readable(patience(now))

      begin
        @wake.read_nonblock(1000)
      rescue IO::WaitReadable
        nil
      end
    end

    def patience(now)
      @lock.synchronize do
        due = now + 1.0
        @held.each_value { |held| due = [due, held.deadline, lease_end(held)].min if stoppable?(held) }
        due = [due, now + 0.05].min if @stop_at
        [due - now, 0.0].max
      end
    end

    def stoppable?(held) = held.running? && held.cancelled.nil?

    # The time at which an attempt stops unless a beat is answered before.
    def lease_end(held) = held.renewed + @lease_seconds * LEASE_SHARE

    # Another worker may start the job when the lease is over. The attempt stays held, so that a later beat tells what
    # has become of it.
    def expire(held)
      log("job #{held.job.id} is stopped: no beat was answered, and its lease ends")
      held.expired = true
      cancel(held, :lost)
      return if held.thread

      @ready.reject! { |ready| ready.equal?(held) }
      ended(held, {verdict: "released"})
    end

    # Two workers must not execute one job, so a thread that does not stop is killed before its job is given back.
    def release_the_rest
      @held.values.select(&:running?).each do |held|
        held.thread&.kill
        held.thread&.join(0.2)
        ended(held, {verdict: "released"})
      end
    end

    def over?
      @lock.synchronize do
        return false unless @stop_at

        @held.empty? || Http.now >= @stop_at + @grace + LAST_SECONDS + FLUSH_SECONDS
      end
    end

    # Call a server until it answers.
    #
    # @param final [Proc] says of a status, other than a success, that a repetition cannot change it
    # @yield [Response, Float] reads a success, which came so many seconds after its request was sent; ConnectionFailed
    #   there repeats the call
    # @return [Response, nil] nil when `give_up` said so
    def perform(what, connection, request, give_up, final = REFUSES)
      failures = 0
      turns = Http::Turns.new(@client.addresses, LONGEST_PAUSE)
      until give_up.call
        after = nil
        place = turns.place
        begin
          response = connection.call(request, place)
          if response.success?
            response.again ||= failures.positive?
            yield response, Http.now - response.sent_at
            return response
          end
          return response if final.call(response.status)

          @client.addresses.failed(place)
          after = response.retry_after
          why = "#{response.status} #{Problem.of(response).code}"
        rescue ConnectionFailed => e
          break if give_up.call

          @client.addresses.failed(place)
          why = e.message
        end
        failures += 1
        log("#{what} failed and is repeated: #{why}") if failures == 1 || (failures % 20).zero?
        pause(turns.next(place, after), &give_up)
      end
      nil
    end

    # Read an answer that comes from tickr.
    def reading
      yield
    rescue ArgumentError, KeyError, TypeError, NoMethodError, JSON::ParserError, ConnectionFailed
      raise ConnectionFailed, "the answer is not the JSON of tickr"
    end

    # Wait for so many seconds, or until the block says that it is enough.
    def pause(seconds)
      deadline = Http.now + seconds
      @lock.synchronize do
        while (left = deadline - Http.now).positive? && !yield
          @changed.wait([left, 0.5].min)
        end
      end
    end

    def request(call, body, timeout, headers = nil)
      Http::Request.new(method: "POST", path: call, body: Json.encode(body), headers: headers, timeout: timeout)
    end

    def path(id, call) = "/v1/workers/#{id}/#{call}"

    # The id of the worker, after a registration if there is none. Nil when the worker stops.
    def worker_id
      @registering.synchronize { @id || (register unless stopping?) }
    end

    def register(first: false)
      body = {
        name: @name, kinds: @handlers.keys, queues: @queues, slots: @slots, lease_ms: (@lease * 1000).round,
        host: Socket.gethostname[0, 255], pid: Process.pid, version: @version
      }.compact
      sent = request("/v1/workers", body, 10)
      id = beat_ms = lease_ms = refused_at = nil
      until stopping?
        response = perform("the registration", @other, sent, -> { stopping? }, REFUSES_WORKER) do |answer|
          reading do
            id, beat_ms = answer.json.fetch("id").to_str, Float(answer.json.fetch("beat_ms"))
            lease_ms = Float(answer.json.fetch("lease_ms", 3 * beat_ms))
          end
        end
        return if response.nil?

        if response.success?
          @lock.synchronize do
            @beat_seconds = [beat_ms / 1000.0, 0.1].max
            @lease_seconds = lease_ms / 1000.0
            @next_beat = Http.now + (@held.empty? ? @beat_seconds : 0.0)
            @next_fetch = 0.0
            @id = @last_id = id
            @changed.broadcast
          end
          log("registered as #{@id}")
          return @id
        end
        problem = Problem.of(response)
        # The server may come long after this program, so the time runs from its first refusal.
        refused_at ||= Http.now + REFUSED_SECONDS if first
        raise problem if refused_at && Http.now >= refused_at

        log("the server refused the registration: #{problem.message}")
        pause(refused_at ? 0.5 : 5.0) { stopping? }
      end
    end

    # A call answered that this id is not registered any more.
    def gone(id)
      @lock.synchronize do
        return unless @id == id

        log("#{id} is not registered any more, so it registers again")
        @id = nil
        @changed.broadcast
      end
      @fetch.abort if @fetching && @fetching != Thread.current
    end

    def free = @slots - @held.count { |_, held| held.running? }

    # Most jobs that the next request may ask for. A slot is free when its handler has ended. While verdicts are not
    # answered, their attempts stay listed.
    def room = [free, MAX_HOLDING - listed.size, MAX_FETCH].min

    # The attempts that requests list.
    def listed = @held.select { |_, held| held.listed? }

    def fetch_loop
      id = worker_id
      return pause(0.2) { @done } if id.nil?

      give_up = -> { stopping? || @done || @id != id }
      holding, slots = @lock.synchronize do
        @changed.wait([@next_fetch - Http.now, 0.5].min.clamp(0.001, 0.5)) until give_up.call || fetch_now?
        return if give_up.call

        [listed.keys, room]
      end
      body = {slots: slots, wait_ms: (@wait * 1000).round, holding: holding, fetch_id: Uuid.v7}
      jobs = drain = late = since = nil
      began = Http.now
      @fetching = Thread.current
      sent = request(path(id, "fetch"), body, @wait + 15)
      response = perform("a request for jobs", @fetch, sent, give_up) do |answer, waited|
        reading do
          members = Json.members(answer.body)
          jobs = Json.members(members.fetch("jobs")).map { |job| Json.members(job) }
          drain = members["drain"] == "true"
          way = members["took_ms"] && [waited - Float(members["took_ms"]) / 1000, 0.0].max
          late = way && way >= @beat_seconds * 0.75
          since = held_since(began, way, answer.again)
        end
      end
      @fetching = nil
      return if response.nil?
      return gone(id) if response.status == 404

      unless response.success?
        log("the server refused a request for jobs: #{Problem.of(response).message}")
        @lock.synchronize { @next_fetch = Http.now + 5.0 }
        return
      end
      if late
        # After a quarter of the lease on its way, the answer counts as lost. The next request lists none of its jobs.
        log("an answer with #{jobs.size} jobs came late and counts as lost") if jobs.any?
        jobs = []
      end
      @lock.synchronize do
        jobs.each { |job| take(job, since) }
        start_ready
        @next_fetch = Http.now + @beat_seconds if drain
      end
      wake
    ensure
      @fetching = nil
    end

    # The time from which the leases of the new attempts in an answer hold, at the earliest. The answer is read now. It
    # was on its way for `way` seconds, and its request was sent first when it `began`.
    def held_since(began, way, again)
      # Without the time at the server, the request may have waited for longer than a lease, while the beats went on.
      return [began, @lock.synchronize { @renewed }].max if way.nil?

      # A repeated answer may have jobs that were claimed a quarter of the lease before.
      [began, Http.now - way - (again ? @lease_seconds / 4 : 0.0)].max
    end

    def fetch_now? = room.positive? && Http.now >= @next_fetch

    def take(job, renewed)
      token = JSON.parse(job.fetch("token"))
      return if @seen.key?(token)

      @seen[token] = true
      @seen.shift if @seen.size > SEEN_TOKENS
      attempt = Handling.attempt(job)
      held = Held.new(token: token, job: attempt, deadline: Http.now + attempt.timeout_ms / 1000.0, log: +"",
        unsaved_until: 0.0, renewed: renewed)
      held.context = Context.new(attempt, ->(what, value) { report(held, what, value) }, @no_follow_ups)
      @held[token] = held
      @ready << held
    end

    # Say why no jobs can follow, or return nil: only addresses of a client may get its API key.
    def no_follow_ups
      server, known = @client.addresses.urls, @enqueue_client.addresses.urls
      return if (server - known).empty?

      "jobs that follow are enqueued by the server of the worker (#{server.join(", ")}), but the client for them has " \
        "other addresses (#{known.join(", ")}): give the worker an enqueue_client with its own"
    end

    def start_ready
      return if @grace_over

      start(@ready.shift) while @ready.any? && free + @ready.size > 0
    end

    def start(held)
      held.thread = Thread.new do
        Thread.current.report_on_exception = false
        handler = @handlers.fetch(held.job.kind) do
          ->(_) { raise Failed, "this worker has no handler of the kind #{held.job.kind}" }
        end
        outcome = Handling.outcome(handler, held.context)
      ensure
        # Also a handler that ends its thread needs a verdict, or its slot would never be free again. At the end of the
        # grace the worker ends threads itself.
        ended(held, outcome || {verdict: @grace_over ? "released" : "failed", error: "the handler ended its thread"})
        wake
        @lock.synchronize { @changed.broadcast }
      end
    end

    def report(held, what, value)
      @lock.synchronize do
        return unless held.running?

        case what
        when :progress then held.progress = value
        when :checkpoint then held.checkpoint = value
        when :log
          held.log << "\n" unless held.log.empty?
          held.log << value
          held.log = +Text.newest(held.log, LOG_BYTES) if held.log.bytesize > 2 * LOG_BYTES
        end
        @changed.broadcast
      end
    end

    def cancel(held, reason)
      return unless held.running?

      held.cancelled ||= reason
      held.context.cancel(reason)
    end

    # A handler has ended. Only the first end of an attempt counts.
    def ended(held, outcome)
      @lock.synchronize do
        return unless held.running?

        @changed.broadcast
        # A verdict of a lost attempt would change nothing.
        return @held.delete(held.token) if held.lost

        verdict, error, delay = outcome.values_at(:verdict, :error, :delay_ms)
        if held.cancelled && held.cancelled != :stopping && !held.expired
          # The job was cancelled or its time is over, whatever the handler says afterwards.
          verdict, delay = "failed", nil
          error ||= Cancelled.new(held.cancelled).message
        elsif outcome[:cancelled]
          verdict = "released"
          error = "no beat was answered before the end of the lease" if held.expired
        end
        members = {token: held.token, verdict: verdict}
        members[:result] = RawJson.new(outcome[:result]) if verdict == "succeeded" && outcome[:result]
        if verdict == "succeeded" && outcome[:follow_ups]
          members[:follow_ups] = outcome[:follow_ups].map { |job| RawJson.new(job) }
        end
        unless verdict == "succeeded" || (verdict == "released" && error.to_s.strip.empty?)
          members[:error] = Text.error(error)
        end
        members[:delay_ms] = [delay.to_i, 0].max if delay && %w[failed snoozed].include?(verdict)
        log = Text.newest(held.log, LOG_BYTES)
        members[:log] = log unless log.empty?
        held.progress = nil
        held.checkpoint = nil if verdict == "succeeded"
        held.verdict = members
      end
      wake
    end

    def beat_loop
      id = reported = holding = more = beaten = nil
      @lock.synchronize do
        @changed.wait(0.5.clamp(0.001, [beat_due - Http.now, 0.001].max)) until @done || (@id && Http.now >= beat_due)
        return if @done

        id = @id
        reported, holding, more = next_reports
        beaten = listed.values
        @last_beat = Http.now
        @next_beat = @last_beat + @beat_seconds
      end
      begin
        # At least two of them fit between the end of a beat and that of the lease.
        timeout = (@beat_seconds / 2).clamp(1.0, 10.0)
        body = %({"holding":[#{holding.join(",")}]})
        sent = Http::Request.new(method: "POST", path: path(id, "beat"), body: body, timeout: timeout)
        response = @beat.call(sent)
        return gone(id) if response.status == 404
        return heed_refusal(response, reported) if REFUSES.call(response.status)

        unless response.success?
          @client.addresses.failed(response.place)
          return beat_again(response.status.to_s)
        end
        lost, cancelled = reading { %w[lost cancel].map { |name| response.json.fetch(name).to_ary } }
        # What the server could not store for a locked row goes with a later beat again.
        unsaved = Array(response.json["unsaved"])
        refused = reading { refusals(response.json) }
      rescue ConnectionFailed => e
        # An answer that does not come from tickr.
        @client.addresses.failed(response.place) if response
        return beat_again(e.message)
      end
      renew(beaten, response.sent_at)
      note_refused(refused)
      left, saved = reported.partition { |held, *| unsaved.include?(held.token) }
      heed(saved, left, more, lost, cancelled)
    end

    # A beat with these attempts, which was sent then, was answered.
    def renew(beaten, sent_at)
      @lock.synchronize do
        @renewed = [@renewed, sent_at].max
        beaten.each { |held| held.renewed = [held.renewed, sent_at].max }
      end
    end

    # The tokens whose reports the server left out of a beat, each with the reason.
    def refusals(answer)
      Array(answer["refused"]).map { |one| [one.fetch("token"), "#{one["field"]} #{one["detail"]}".strip] }
    end

    def note_refused(refused)
      @lock.synchronize do
        refused.each do |token, why|
          next unless (held = @held[token])

          log("the server refuses a report of job #{held.job.id}: #{why}")
          line = "the server refuses a report: #{why}"
          next report(held, :log, line) if held.running?

          held.verdict[:log] = Text.newest([held.verdict[:log], line].compact.join("\n"), LOG_BYTES)
        end
      end
    end

    # The reports and the attempts of a beat, and whether further reports must follow it. Every attempt is in it.
    # Reports that the server could not store pause, and then come behind the others.
    def next_reports
      now = Http.now
      entries = listed.transform_values(&:entry)
      bytes = entries.each_value.sum(&:bytesize)
      reported = []
      due = @held.each_value.select { |held| held.report? && now >= held.unsaved_until }
      due.sort_by.with_index { |held, index| [held.unsaved_until, index] }.each do |held|
        report = held.report
        bytes += report.bytesize - entries[held.token].bytesize
        return [reported, entries.values, true] if reported.any? && (bytes > CALL_BYTES || reported.size >= @report_most)

        entries[held.token] = report
        reported << [held, held.progress, held.checkpoint]
      end
      [reported, entries.values, false]
    end

    # Repeat a beat within seconds, whatever the server asks for: while none is answered, every lease grows old.
    def beat_again(why)
      @beat_failures = (@beat_failures || 0) + 1
      log("a beat failed and is repeated: #{why}") if @beat_failures == 1 || (@beat_failures % 20).zero?
      wait = [0.1 * 2**[@beat_failures, 6].min, LONGEST_PAUSE].min * rand(0.75..1.25)
      wait = 0.0 unless (@beat_failures % @client.addresses.count).zero?
      @lock.synchronize do
        @next_beat = Http.now + wait
        # Reports wait as well, or they would make a hurry of the pause.
        @last_beat = @next_beat
      end
    end

    # A refused report must not keep the lease from being renewed. So half of the reports are sent, until one is alone.
    def heed_refusal(response, reported)
      log("the server refused a beat: #{Problem.of(response).message}")
      @beat_failures = 0
      @lock.synchronize do
        @next_beat = Http.now + (reported.empty? ? 1.0 : 0.0)
        reported.size > 1 ? @report_most = reported.size / 2 : forget(reported)
        @changed.broadcast
      end
    end

    # These reports have arrived, or cannot be sent.
    def forget(reported)
      reported.each do |held, progress, checkpoint|
        held.progress = nil if held.progress.equal?(progress)
        held.checkpoint = nil if held.checkpoint.equal?(checkpoint)
        held.unsaved_until = 0.0
      end
    end

    def heed(saved, left, more, lost, cancelled)
      @beat_failures = 0
      @lock.synchronize do
        forget(saved)
        left.each { |held, *| held.unsaved_until = Http.now + UNSAVED_SECONDS }
        more ? @next_beat = Http.now : @report_most = Float::INFINITY
        @changed.broadcast
        lost.each do |token|
          held = @held[token]
          next unless held&.running?

          held.lost = true
          cancel(held, :lost)
        end
        cancelled.each { |token| @held[token]&.then { |held| cancel(held, :cancelled) } }
        # A drain is left to the answer of a fetch. If beats put the next fetch off as well, it would never come.
      end
    end

    def beat_due
      reports = @held.each_value.select(&:report?)
      [@next_beat, *reports.map { |held| [@last_beat + REPORT_SECONDS, held.unsaved_until].max }].min
    end

    def finish_loop
      sent = @lock.synchronize do
        @changed.wait(0.5) until @done || (batch = next_verdicts).any?
        return if @done

        batch
      end
      body = {verdicts: sent.map(&:verdict)}
      id = @lock.synchronize { @id || @last_id }
      # The API key of the worker may enqueue nothing, so that of the other client goes with jobs that follow.
      right = @enqueue_client.right if sent.any? { |held| held.verdict.key?(:follow_ups) }
      results = nil
      response = perform("a finish", @finish, request(path(id, "finish"), body, 10, right), -> { @done }) do |answer|
        reading do
          results = answer.json.fetch("results").to_h { |result| [result.fetch("token"), result] }
          sent.each { |held| results.fetch(held.token).fetch("result") }
        end
      end
      return if response.nil?
      return finish_elsewhere(id) if response.status == 404

      @finish_pause = 0.1
      @lock.synchronize do
        if response.success?
          @finish_most = MAX_VERDICTS
          results.values_at(*sent.map(&:token)).each do |result|
            if result["result"] == "refused" && @held[result["token"]]
              wrong = Array(result["errors"]).map { |one| "#{one["field"]} #{one["detail"]}".strip }
              mend(@held[result["token"]], wrong.join("; "))
              next
            end
            next put_off(@held[result["token"]]) if result["result"] == "locked" && @held[result["token"]]

            log("a verdict came too late: #{result["result"]}") unless result["result"] == "settled"
            @held.delete(result["token"])
          end
        else
          refused(sent, Problem.of(response))
        end
        start_ready
        @changed.broadcast
      end
      wake
    end

    # The server does not know the id in the path, so the verdicts go out again with the id of a new worker.
    def finish_elsewhere(id)
      gone(id)
      pause(@finish_pause * rand(0.75..1.25)) { @done }
      @finish_pause = [@finish_pause * 2, LONGEST_PAUSE].min
    end

    def next_verdicts
      bytes = 0
      @held.each_value.with_object([]) do |held, batch|
        # The next attempt begins with the checkpoint, so that goes first.
        next if held.running? || (held.checkpoint && @id) || (held.not_before && Http.now < held.not_before)

        bytes += Json.encode(held.verdict).bytesize + 1
        break batch if batch.any? && (bytes > CALL_BYTES || batch.size >= @finish_most)

        batch << held
      end
    end

    # Send a verdict again later: another session locks the row of its job. The others do not wait for it.
    def put_off(held)
      held.pause = [(held.pause || 0.25) * 2, LONGEST_PAUSE].min
      held.not_before = Http.now + held.pause
    end

    # The server refused a call with verdicts. Send each one alone, and make a failure of one that is refused alone.
    def refused(sent, problem)
      log("the server refused verdicts: #{problem.message}")
      return @finish_most = 1 if sent.size > 1

      mend(sent.first, problem.message)
    end

    # Make a failure of a verdict that the server refuses.
    def mend(held, problem)
      error = Text.error("the server refused the verdict of the handler: #{problem}")
      log(error)
      failed = {token: held.token, verdict: "failed", error: error}
      held.verdict == failed ? @held.delete(held.token) : held.verdict = failed
    end

    def depart
      return if @id.nil?

      goodbye = Http::Request.new(method: "DELETE", path: "/v1/workers/#{@id}", timeout: 3)
      3.times do
        return unless @other.call(goodbye).passing?
      rescue ConnectionFailed
        sleep(0.2)
      end
      log("no server answered the goodbye; the lease of the worker ends by itself")
    end
  end
end
