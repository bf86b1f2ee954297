# frozen_string_literal: true

module Tickr
  # Enqueues jobs in a transaction of the caller: a job exists exactly if the transaction is committed.
  #
  # The table `tickr_outbox` stands in the database of the connection, or in another one of the same server.
  class Outbox
    MAX_PAYLOAD_BYTES = 1 << 20
    UUID_V7 = /\A\h{8}-\h{4}-7\h{3}-[89ab]\h{3}-\h{12}\z/i
    private_constant :MAX_PAYLOAD_BYTES, :UUID_V7

    # @param connection [Object] a Mysql2::Client, a Trilogy, or a connection of Active Record
    # @param table [String] name of the table, perhaps with its database: `tickr.tickr_outbox`
    # @raise [ArgumentError] when this is no name of a table
    def initialize(connection, table: "tickr_outbox")
      raise ArgumentError, "#{table.inspect} is not the name of a table" unless table.match?(/\A[\w$]+(\.[\w$]+)?\z/)

      @connection = connection
      @table = "`#{table.sub(".", "`.`")}`"
    end

    # Write a job into the outbox, on the connection and in the transaction of the caller.
    #
    # @param kind [String, Kind, NewJob] name of a kind, or a payload object
    # @param id [String, nil] UUIDv7 of the job. Give the same one when you repeat a transaction whose COMMIT was not
    #   answered
    # @param options [Hash] see NewJob; `delay_ms` counts by the clock of this machine
    # @return [String] the id that the job will have
    # @raise [ArgumentError] when an option, the payload or the id is wrong
    def enqueue(kind, payload = {}, id: nil, **options)
      job = NewJob.of(kind, payload, **options)
      options = job.options.dup
      queue = options.delete(:queue)
      due = options.delete(:execute_at)
      due = Time.iso8601(due) if due
      delay = options.delete(:delay_ms)
      # The API refuses both, and the row has one due time.
      raise ArgumentError, "give execute_at or delay_ms, not both" if due && delay

      due = Time.now + delay / 1000.0 if delay
      id ||= Uuid.v7
      # The server would reject such a row after the COMMIT, and there would be no job.
      raise ArgumentError, "the id of a job is a UUIDv7" unless id.match?(UUID_V7)

      text = Json.encode(job.payload.nil? ? {} : job.payload)
      if text.bytesize > MAX_PAYLOAD_BYTES
        raise ArgumentError, "a payload has at most #{MAX_PAYLOAD_BYTES} bytes, this one has #{text.bytesize}"
      end
      insert(
        id.delete("-"), job.kind, text, queue,
        due&.getutc&.ceil(3)&.strftime("%Y-%m-%d %H:%M:%S.%L"), options.empty? ? nil : Json.encode(options)
      )
      id
    end

    private

    def insert(*columns)
      # The id goes as hexadecimal text, because bytes may not fit the character set of the connection.
      values = columns.map { |value| value.nil? ? "NULL" : quote(value) }
      values[0] = "UNHEX(#{values[0]})"
      sql = "INSERT INTO #{@table} (id, kind, payload, queue, execute_at, options) VALUES (#{values.join(", ")})"
      @connection.respond_to?(:exec_insert) ? @connection.exec_insert(sql) : @connection.query(sql)
    end

    def quote(text)
      @connection.respond_to?(:quote) ? @connection.quote(text) : "'#{@connection.escape(text)}'"
    end
  end
end
