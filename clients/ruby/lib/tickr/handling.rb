# frozen_string_literal: true

module Tickr
  # Executes a handler and says how it ended, for workers and for tests.
  #
  # @api private
  module Handling
    MAX_RESULT_BYTES = 262_144

    module_function

    # Read an attempt from the members of a job, which are JSON texts.
    def attempt(job)
      read = ->(name) { job[name] && JSON.parse(job[name]) }
      saved = job["checkpoint"] && job["checkpoint"] != "null" ? RawJson.new(job["checkpoint"]) : nil
      payload = RawJson.new(job["payload"] || "null")
      Attempt.new(
        id: read.("id"), kind: read.("kind"), queue: read.("queue"), payload: payload.decode, payload_json: payload,
        attempt: read.("attempt") || 1, max_attempts: read.("max_attempts") || 1,
        timeout_ms: read.("timeout_ms") || 300_000, checkpoint: saved&.decode, checkpoint_json: saved,
        traceparent: read.("traceparent"), tags: read.("tags") || []
      )
    end

    # @return [Hash] `verdict`, and perhaps `result` (JSON text), `error`, `delay_ms`, `cancelled` and `follow_ups`
    #   (JSON texts)
    def outcome(handler, context)
      result = handler.call(context)
      raise result if result.is_a?(Ending)
      jobs = context.follow_ups
      success = {verdict: "succeeded"}
      success[:follow_ups] = jobs if jobs.any?
      return success if result.nil?

      begin
        text = Json.encode(result)
      rescue ArgumentError => e
        return {verdict: "failed", error: "the result of the handler: #{e.message}"}
      end
      if text.bytesize > MAX_RESULT_BYTES
        error = "the result of the handler has #{text.bytesize} bytes of JSON; at most #{MAX_RESULT_BYTES} are kept"
        return {verdict: "failed", error: error}
      end
      success.merge(result: text)
    rescue Cancelled => e
      {verdict: "failed", error: text_of(e), cancelled: true}
    rescue Ending => e
      {verdict: e.verdict, error: text_of(e), delay_ms: e.delay_ms}
    rescue Exception => e # rubocop:disable Lint/RescueException
      # Also exit and errors of loading end a handler, and its attempt must say so.
      {verdict: "failed", error: "#{e.class}: #{text_of(e)}"}
    end

    # A message is code of the program. One that raises must not leave the attempt without a verdict: its slot would
    # never be free again.
    def text_of(error)
      error.message.to_s
    rescue Exception # rubocop:disable Lint/RescueException
      "its message cannot be read"
    end
  end
end
