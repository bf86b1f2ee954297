# frozen_string_literal: true

module Tickr
  # Enqueues jobs in a transaction of the caller: a job exists exactly if the transaction is committed.
  #
  # The table `tickr_outbox` stands in the database of the connection, or in another one of the same server.
  class Outbox
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
    def enqueue(kind, payload = {}, id: nil, **options)
      job = NewJob.of(kind, payload, **options)
      options = job.options.dup
      queue = options.delete(:queue)
      due = options.delete(:execute_at)
      due = Time.iso8601(due) if due
      delay = options.delete(:delay_ms)
      due = Time.now + delay / 1000.0 if delay
      id ||= Uuid.v7
      insert(
        id.delete("-"), job.kind, Json.encode(job.payload.nil? ? {} : job.payload), queue,
        due&.getutc&.strftime("%Y-%m-%d %H:%M:%S.%L"), options.empty? ? nil : Json.encode(options)
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
