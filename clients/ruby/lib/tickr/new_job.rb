# frozen_string_literal: true

require "time"

module Tickr
  # A job to enqueue: a kind, a payload and options.
  class NewJob
    # The fields of `POST /v1/jobs` beside kind and payload. Times that end in `_ms` are milliseconds.
    OPTIONS = %i[
      queue execute_at delay_ms expires_at expires_in_ms max_attempts timeout_ms priority unique_key unique_fields
      on_conflict max_wait_ms unique_until unique_for_ms order_key on_failure limit_key after on_parent_failure batch
      retry tags trace
    ].freeze

    # @return [String] name of the kind
    attr_reader :kind
    # @return [Object] what the job carries
    attr_reader :payload
    # @return [Hash{Symbol => Object}]
    attr_reader :options

    # @param kind [String, Kind] name of a kind, or a payload object whose class includes Kind
    # @param payload [Object] what the job carries, when `kind` is a name
    # @param options [Hash] see OPTIONS; `execute_at` and `expires_at` also take a Time. `execute_at` is rounded up to
    #   milliseconds, so that no job starts early
    # @raise [ArgumentError] when an option has no such name
    def initialize(kind, payload = {}, **options)
      if kind.is_a?(Kind)
        payload = kind.to_h
        options = kind.class.tickr_options.merge(options)
        kind = kind.class.tickr_name
      end
      known = self.class::OPTIONS
      unknown = options.keys - known
      unless unknown.empty?
        raise ArgumentError, "#{what} has no option #{unknown.join(", ")}; the options are #{known.join(", ")}"
      end

      @kind = kind.to_s
      @payload = payload
      @options = options.compact.to_h do |name, value|
        value = value.to_time.ceil(3) if name == :execute_at && value.respond_to?(:iso8601)
        [name, value.respond_to?(:iso8601) ? self.class.time(value) : value]
      end
    end

    def to_json(*) = Json.encode({kind: kind, payload: payload.nil? ? {} : payload}.merge(options))

    # A time as the API takes it: UTC with milliseconds.
    def self.time(time) = time.to_time.getutc.iso8601(3)

    # @api private
    def self.of(kind, payload = {}, **options) = kind.is_a?(NewJob) ? kind : new(kind, payload, **options)

    private

    def what = "a job"
  end

  # A job that follows a success: see Context#follow_up.
  class FollowUp < NewJob
    # The fields of a follow-up job beside kind and payload. Times count from the success, and those that end in `_ms`
    # are milliseconds. `in_batch` is true to add the job to the batch of the job that ends.
    OPTIONS = %i[
      queue execute_at delay_ms expires_in_ms max_attempts timeout_ms priority order_key on_failure limit_key retry tags
      in_batch
    ].freeze

    # The same job with further options.
    #
    # @api private
    def self.of(kind, payload = {}, **options)
      return new(kind, payload, **options) unless kind.is_a?(NewJob)

      new(kind.kind, kind.payload, **kind.options, **options)
    end

    private

    def what = "a job that follows a success"
  end
end
