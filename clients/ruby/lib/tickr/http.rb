# frozen_string_literal: true

require "net/http"
require "openssl"
require "uri"

module Tickr
  # Connections to the servers.
  #
  # @api private
  module Http
    # Longest wait in seconds that a server may ask for.
    LONGEST_WAIT = 60.0
    private_constant :LONGEST_WAIT

    Request = Struct.new(:method, :path, :body, :headers, :timeout, keyword_init: true)

    # `sent_at` is the time just before the request was sent, the last time, on the clock of `now`. `again` says that it
    # was sent before as well.
    Response = Struct.new(:status, :headers, :body, :sent_at, :again) do
      def success? = status.between?(200, 299)

      # True when the same request may have another answer later, so that it should be repeated.
      def passing? = [408, 429, 500, 502, 503, 504].include?(status)

      # Seconds that the server asks to wait, at most a minute; nil when it does not ask.
      def retry_after
        text = headers["retry-after"]
        [text.to_f, LONGEST_WAIT].min if text&.match?(/\A\d{1,5}\z/)
      end

      # @raise [ConnectionFailed] when the body is not a JSON object, because then it is no answer of tickr
      def json
        decoded = JSON.parse(body, max_nesting: 200)
        decoded.is_a?(Hash) ? decoded : raise(ConnectionFailed, "the answer is not the JSON of tickr")
      rescue JSON::ParserError
        raise ConnectionFailed, "the answer is not the JSON of tickr"
      end
    end

    # The addresses of one tickr. All connections of a program go to the same one until it fails.
    class Addresses
      def initialize(urls)
        @all = urls.split(",").map(&:strip).reject(&:empty?).map { |url| self.class.parse(url) }
        raise ArgumentError, "give the address of tickr, or set TICKR_URL" if @all.empty?

        @lock = Mutex.new
        @current = 0
      end

      def self.parse(url)
        uri = URI.parse(url)
        unless uri.is_a?(URI::HTTP) && uri.host && !uri.userinfo && !uri.query && !uri.fragment
          raise ArgumentError, "an address of tickr must be like http://host:7070, without user, query or fragment"
        end
        uri
      rescue URI::InvalidURIError
        raise ArgumentError, "an address of tickr must be like http://host:7070"
      end

      def count = @all.size

      def current = @lock.synchronize { @current }

      def at(place) = @all[place]

      # Go on to the next address, unless another connection has already done so.
      def failed(place)
        @lock.synchronize { @current = (place + 1) % @all.size if place == @current }
      end
    end

    # One connection, kept open. One thread uses it at a time.
    class Connection
      FAILURES = [
        SystemCallError, IOError, SocketError, Timeout::Error, OpenSSL::SSL::SSLError, Net::HTTPBadResponse,
        Net::HTTPHeaderSyntaxError, Net::ProtocolError, Zlib::Error
      ].freeze
      OPEN_SECONDS = 5

      # @param token [Proc] returns the token, so that no dump of this object shows it
      def initialize(addresses, token)
        @addresses = addresses
        @token = token
        @lock = Mutex.new
      end

      # @return [Response]
      # @raise [ConnectionFailed] when there is no answer; the next request goes to the next address
      def call(request)
        place = @addresses.current
        http, kept = open(place, request.timeout)
        begin
          answer(http, request, place)
        rescue *FAILURES => e
          # The server may close a kept connection at any time. That says nothing about the server, but silence does.
          raise if !kept || e.is_a?(Timeout::Error) || aborted?(http)

          close
          http, = open(place, request.timeout)
          answer(http, request, place).tap { |response| response.again = true }
        end
      rescue *FAILURES => e
        close
        @addresses.failed(place)
        raise ConnectionFailed, "#{@addresses.at(place).host}:#{@addresses.at(place).port}: #{e.class}: #{e.message}"
      end

      # End the request of another thread.
      def abort
        @lock.synchronize do
          @aborted = @http
          @http&.finish
        end
      rescue IOError
        nil
      end

      def close
        http = @lock.synchronize { @http.tap { @http = nil } }
        http.finish if http&.started? && @pid == Process.pid
      rescue IOError, SystemCallError
        nil
      end

      def inspect = "#<#{self.class}>"

      private

      def aborted?(http) = @lock.synchronize { @aborted.equal?(http) }

      def open(place, timeout)
        if @http && @place == place && @pid == Process.pid && @http.started?
          return [@http, true]
        end

        close
        uri = @addresses.at(place)
        http = Net::HTTP.new(uri.hostname, uri.port, nil)
        http.use_ssl = uri.is_a?(URI::HTTPS)
        http.open_timeout = [timeout, OPEN_SECONDS].min
        http.ssl_timeout = http.open_timeout if http.use_ssl?
        http.keep_alive_timeout = 30
        # A repetition is the business of the caller, who knows whether it is safe.
        http.max_retries = 0
        @place = place
        @pid = Process.pid
        @lock.synchronize { @http = http }
        http.start
        [http, false]
      end

      def answer(http, request, place)
        http.read_timeout = request.timeout
        http.write_timeout = request.timeout
        path = @addresses.at(place).path.chomp("/") + request.path
        sent = Net::HTTPGenericRequest.new(request.method, !request.body.nil?, true, path, request.headers || {})
        sent["accept"] = "application/json"
        sent["user-agent"] = "tickr-ruby/#{VERSION}"
        sent["accept-encoding"] = "identity"
        token = @token.call
        sent["authorization"] = "Bearer #{token}" if token
        if request.body
          sent["content-type"] = "application/json"
          sent.body = request.body
        elsif request.method != "GET"
          sent["content-length"] = "0"
        end
        sent_at = Http.now
        got = http.request(sent)
        body = (got.body || +"").force_encoding(Encoding::UTF_8)
        # Net::HTTP returns what came before an end that came too early.
        raise EOFError, "the answer is not complete" if got.content_length && body.bytesize < got.content_length

        Response.new(got.code.to_i, got.each_header.to_h, body, sent_at)
      end
    end

    # A clock that never goes back. Linux has one that goes on while the machine is suspended, as the leases do.
    CLOCK = begin
      Process.clock_gettime(Process::CLOCK_BOOTTIME)
      Process::CLOCK_BOOTTIME
    rescue NameError, SystemCallError
      Process::CLOCK_MONOTONIC
    end
    private_constant :CLOCK

    # Seconds on this clock.
    def self.now = Process.clock_gettime(CLOCK)
  end
end
