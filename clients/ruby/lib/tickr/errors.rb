# frozen_string_literal: true

module Tickr
  # Every error that this library raises by itself.
  class Error < StandardError; end

  # No server answered: the connection failed, or the answer did not come in time.
  class ConnectionFailed < Error; end

  # The server refused a call. It carries the problem document of the answer.
  class Problem < Error
    # @return [String] the stable code, such as `unique_key_taken`
    attr_reader :code
    # @return [String] the code in words, and what happened
    attr_reader :title, :detail
    # @return [Integer] the HTTP status
    attr_reader :status
    # @return [Hash] the whole problem document, such as `holder` and `errors`
    attr_reader :document

    def initialize(code:, title:, detail:, status:, document: {})
      @code, @title, @detail, @status, @document = code, title, detail, status, document
      faults = Array(document["errors"]).map { |fault| "#{fault["pointer"]} #{fault["detail"]}".strip }
      super("#{code}: #{detail}#{" (#{faults.join("; ")})" unless faults.empty?}")
    end

    # Read the problem document of an answer. An answer of a proxy has none, so its status speaks.
    def self.of(response)
      document = begin
        JSON.parse(response.body)
      rescue JSON::ParserError
        nil
      end
      unless document.is_a?(Hash) && document["code"].is_a?(String)
        detail = response.body.scrub.strip[0, 200]
        code = "http_#{response.status}"
        return new(code: code, title: "Not an answer of tickr", detail: detail, status: response.status)
      end
      title, detail = document.values_at("title", "detail").map(&:to_s)
      new(code: document["code"], title: title, detail: detail, status: response.status, document: document)
    end
  end

  # A handler raises or returns one of these to end its attempt otherwise than with a result.
  class Ending < Error
    # @api private
    attr_reader :delay_ms
  end

  # The attempt failed; another one may succeed. Every other error of a handler means the same.
  class Failed < Ending
    # @param delay_ms [Integer, nil] milliseconds until the next attempt; nil for the backoff of the job
    def initialize(message, delay_ms: nil)
      @delay_ms = delay_ms
      super(message)
    end

    # @api private
    def verdict = "failed"
  end

  # No attempt of the job can succeed: it fails for good.
  class Rejected < Ending
    # @api private
    def verdict = "rejected"
  end

  # The job runs again later, and no attempt is used. After a hundred attempts of a job that used none, each further
  # snooze or release counts as failed and uses an attempt.
  class Snoozed < Ending
    # @param delay_ms [Integer] milliseconds until the job runs again
    def initialize(message, delay_ms:)
      @delay_ms = delay_ms
      super(message)
    end

    # @api private
    def verdict = "snoozed"
  end

  # The worker gives the job back at once, and no attempt is used. Another worker may take it.
  class Released < Ending
    def initialize(message = "")
      super
    end

    # @api private
    def verdict = "released"
  end

  # The handler must stop. `Context#check!` and `Context#sleep` raise it; let it through. It is no StandardError, so that
  # a `rescue => error` of the handler, or `retry_on StandardError` of Active Job, does not take it for a failure.
  class Cancelled < Exception # rubocop:disable Lint/InheritException
    REASONS = {
      cancelled: "the job was cancelled",
      deadline: "the time of the attempt is over",
      lost: "the worker does not hold the attempt any more",
      stopping: "the worker stops"
    }.freeze

    # @return [Symbol] :cancelled, :deadline, :lost (also when no beat was answered before the end of the lease) or
    #   :stopping
    attr_reader :reason

    def initialize(reason)
      @reason = reason
      super(REASONS.fetch(reason))
    end
  end
end
