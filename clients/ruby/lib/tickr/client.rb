# frozen_string_literal: true

require "cgi/escape"

module Tickr
  # The answer to an enqueue: the id of the job, whether it existed already because of its unique key, and the reasons
  # why it would not run at present.
  Enqueued = Struct.new(:id, :existing, :warnings, keyword_init: true)

  # The state of a job, with its result when it has ended.
  JobResult = Struct.new(:id, :state, :result, :last_error, keyword_init: true) do
    def ended? = %w[completed failed cancelled].include?(state)

    def completed? = state == "completed"
  end

  # Calls the API of tickr. Threads may share a client.
  #
  # A call is repeated when the connection fails or the server is busy, with growing pauses or after the `Retry-After`
  # of the answer, and goes to the next address when there are several. Every enqueue carries an idempotency key, so a
  # repeated one makes one job.
  class Client
    # Seconds of the longest pause between two tries that no server asks for.
    LONGEST_PAUSE = 5.0
    private_constant :LONGEST_PAUSE

    # @param url [String] one address, or several with commas between them; default `TICKR_URL`
    # @param token [String, nil] API key; default `TICKR_TOKEN`
    # @param retry_for [Numeric] seconds after which a call gives up repeating
    # @param call_timeout [Numeric] seconds that one answer may take; then the next address is tried
    # @raise [ArgumentError] when an address is wrong
    def initialize(url: ENV["TICKR_URL"] || "http://127.0.0.1:7070", token: ENV["TICKR_TOKEN"], retry_for: 30,
      call_timeout: 10)
      token = nil if token == ""
      raise ArgumentError, "the token has characters that no API key has" if token && token !~ /\A[\x21-\x7e]+\z/

      @addresses = Http::Addresses.new(url)
      @url = url
      @token = -> { token }
      @retry_for = retry_for
      @call_timeout = call_timeout
      @idle = Thread::Queue.new
      @pid = Process.pid
    end

    # Enqueue a job.
    #
    # @param kind [String, Kind, NewJob] name of a kind, or a payload object
    # @param payload [Object] what the job carries, when `kind` is a name
    # @param idempotency_key [String, nil] 1 to 255 visible ASCII characters; the client makes one by default
    # @param options [Hash] see NewJob
    # @return [Enqueued]
    # @raise [Problem] when the server refuses the job
    # @raise [ConnectionFailed] when no server answers in time; the job may exist
    # @raise [ArgumentError] when an option or the payload is wrong
    def enqueue(kind, payload = {}, idempotency_key: nil, **options)
      job = NewJob.of(kind, payload, **options)
      answer = nil
      response = post("/v1/jobs", job.to_json, idempotency_key || SecureRandom.uuid) do |got|
        answer = got.json
        id_of(answer)
      end
      Enqueued.new(id: answer["id"], existing: response.status == 200, warnings: answer["warnings"] || [])
    end

    # Enqueue up to 1,000 jobs, all or none.
    #
    # @param jobs [Enumerable<NewJob, Kind>]
    # @return [Array<Enqueued>] in the order of the jobs
    def enqueue_many(jobs, idempotency_key: nil)
      texts = jobs.map { |job| NewJob.of(job).to_json }
      return [] if texts.empty?

      body = %({"jobs":[#{texts.join(",")}]})
      receipts = nil
      post("/v1/jobs/batch", body, idempotency_key || SecureRandom.uuid) do |got|
        receipts = got.json.fetch("jobs").to_ary
        raise KeyError, "another number of jobs" if receipts.size != texts.size

        receipts.each { |one| id_of(one) }
      end
      receipts.map { |one| Enqueued.new(id: one["id"], existing: one["existing"] || false, warnings: []) }
    end

    # Create a batch, perhaps with its first jobs and callbacks.
    #
    # @param batch [Hash] `name`, `jobs`, `on_success`, `on_complete`, `on_failure`, `parent`, `close`; jobs are NewJob
    #   or payload objects
    # @return [Hash] the batch with its `id` and the ids of its `jobs`
    def create_batch(idempotency_key: nil, **batch)
      text = ->(value) { value.is_a?(NewJob) || value.is_a?(Kind) ? RawJson.new(NewJob.of(value).to_json) : value }
      body = batch.transform_values { |value| value.is_a?(Array) ? value.map(&text) : text.(value) }
      post("/v1/batches", Json.encode(body), idempotency_key || SecureRandom.uuid).json
    end

    # Close a batch: it ends with its last job.
    #
    # @return [Hash] the batch
    def close_batch(id) = post("/v1/batches/#{escape(id)}/close", "{}", SecureRandom.uuid).json

    # @return [Hash, nil] the job with its attempts, as `GET /v1/jobs/{id}` shows it; nil when there is none
    def job(id)
      call("GET", "/v1/jobs/#{escape(id)}").json
    rescue Problem => e
      e.code == "not_found" ? nil : raise
    end

    # Cancel a job.
    #
    # @return [Boolean] true when it never starts again; false when its handler was asked to stop
    # @raise [Problem] with the code `wrong_state` when the job has ended, and `not_found` when there is none
    def cancel(id)
      # A repeated call with the same key has the same answer. Without one, a cancel that worked would be refused.
      post("/v1/jobs/#{escape(id)}/cancel", "{}", SecureRandom.uuid).status == 200
    end

    # Wait for the end of a job.
    #
    # @param timeout [Numeric] longest wait in seconds
    # @return [JobResult] the state of the job, which has not ended when the time was too short
    def wait(id, timeout: 30)
      deadline = Http.now + timeout
      loop do
        seconds = (deadline - Http.now).clamp(0, 30).ceil
        answer = call("GET", "/v1/jobs/#{escape(id)}/result?wait=#{seconds}s", timeout: seconds + @call_timeout).json
        result = JobResult.new(**answer.slice("id", "state", "result", "last_error").transform_keys(&:to_sym))
        return result if result.ended? || Http.now >= deadline
      end
    end

    # Let a server move the rows of the outbox at once. Call it after the COMMIT; nothing is lost without it.
    #
    # It is tried once, for about a second, so that it holds up no request while tickr is down.
    #
    # @raise [Problem] when the server refuses the call
    # @raise [ConnectionFailed] when there is no answer
    def nudge
      request = Http::Request.new(method: "POST", path: "/v1/outbox/nudge", timeout: 1)
      response = with_connection { |connection| connection.call(request) }
      return if response.success?

      @addresses.failed(@addresses.current) if response.passing?
      raise Problem.of(response)
    end

    # Call any path of the API.
    #
    # @param json [String, nil] the body
    # @param idempotency_key [String, nil] for calls that would do something twice when they are repeated
    # @yield [Http::Response] reads a success; KeyError, TypeError or NoMethodError there says that it is none of tickr
    # @return [Http::Response] an answer with a status below 300
    # @raise [Problem] when the server refuses the call
    # @raise [ConnectionFailed] when no server answers in time
    def call(method, path, json = nil, idempotency_key: nil, timeout: @call_timeout, &reads)
      headers = {}
      if idempotency_key
        unless idempotency_key.match?(/\A[\x21-\x7e]{1,255}\z/)
          raise ArgumentError, "an idempotency key has 1 to 255 visible ASCII characters"
        end
        headers["idempotency-key"] = idempotency_key
      end
      request = Http::Request.new(method: method, path: path, body: json, headers: headers, timeout: timeout)
      # A call that may wait longer, such as that for a result, has time for another try as well.
      repeat(@retry_for + [timeout - @call_timeout, 0].max) do |place|
        read(with_connection { |connection| connection.call(request, place) }, &reads)
      end
    end

    # A client of the same servers with another API key, for example one with the scope `work`.
    #
    # @param token [String, nil]
    # @return [Client]
    def with_token(token) = Client.new(url: @url, token: token, retry_for: @retry_for, call_timeout: @call_timeout)

    # @api private
    def connection = Http::Connection.new(@addresses, @token)

    # @api private
    attr_reader :addresses

    # The header with which a worker shows that its successes may enqueue jobs.
    #
    # @api private
    def right
      token = @token
      token.call ? {"tickr-enqueue-authorization" => -> { "Bearer #{token.call}" }} : {}
    end

    def inspect = "#<#{self.class}>"

    # A dump would hold the token.
    def marshal_dump = raise(TypeError, "a client cannot be dumped")

    private

    def post(path, json, key, &reads) = call("POST", path, json, idempotency_key: key, &reads)

    # The id in an answer. A proxy may answer with JSON of its own.
    def id_of(answer)
      id = answer.fetch("id").to_str
      id.empty? ? raise(KeyError, "the id is empty") : id
    end

    # Read a success, or go on with the next address.
    def read(response)
      yield response if block_given? && response.success?
      response
    rescue KeyError, TypeError, NoMethodError, ConnectionFailed
      @addresses.failed(response.place)
      raise ConnectionFailed, "the answer is not the JSON of tickr"
    end

    def escape(part) = CGI.escape(part.to_s).gsub("+", "%20")

    def repeat(seconds)
      deadline = Http.now + seconds
      turns = Http::Turns.new(@addresses, LONGEST_PAUSE)
      loop do
        place = turns.place
        after = nil
        begin
          response = yield place
          return response if response.success?

          failure = Problem.of(response)
          raise failure unless response.passing? || failure.code == "idempotency_in_progress"

          @addresses.failed(place)
          after = response.retry_after
        rescue ConnectionFailed => e
          failure = e
        end
        wait = turns.next(place, after)
        raise failure if Http.now + wait >= deadline

        sleep(wait)
      end
    end

    def with_connection
      # A child process must not use the connections of its parent.
      @idle, @pid = Thread::Queue.new, Process.pid if @pid != Process.pid
      connection = begin
        @idle.pop(true)
      rescue ThreadError
        self.connection
      end
      yield(connection).tap { @idle << connection }
    end
  end
end
