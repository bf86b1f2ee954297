# frozen_string_literal: true

require "net/http"
require "openssl"
require "timeout"
require "uri"

module Tickr
  # Connections to the servers.
  #
  # @api private
  module Http
    # Longest wait in seconds that a server may ask for.
    LONGEST_WAIT = 60.0
    private_constant :LONGEST_WAIT

    # A header may be a Proc that returns it, so that no dump shows a token.
    Request = Struct.new(:method, :path, :body, :headers, :timeout, keyword_init: true)

    # `sent_at` is the time just before the request was sent, the last time, on the clock of `now`. `again` says that it
    # was sent before as well, and `place` which address answered.
    Response = Struct.new(:status, :headers, :body, :sent_at, :again, :place) do
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

      # The addresses as text, each written in one way.
      def urls = @all.map { |uri| "#{uri.scheme}://#{uri.host.downcase}:#{uri.port}#{uri.path.chomp("/")}" }

      def current = @lock.synchronize { @current }

      def at(place) = @all[place]

      # Go on to the next address, unless another connection has already done so.
      def failed(place)
        @lock.synchronize { @current = (place + 1) % @all.size if place == @current }
      end
    end

    # The addresses of a call that is repeated, and the pauses between its tries.
    #
    # The pauses grow. With several addresses a pause follows when all of them have failed, and the next one is tried at
    # once before. An address that named a time with `Retry-After` gets no try before that time, also when another one
    # has failed since. If another one named none, the pause is over at that time.
    class Turns
      FIRST_PAUSE = 0.1
      private_constant :FIRST_PAUSE

      # @param longest [Float] seconds of the longest pause that no server asks for
      def initialize(addresses, longest)
        @addresses = addresses
        @longest = longest
        @not_before = Array.new(addresses.count, 0.0)
        reset
      end

      # Begin with short pauses again.
      def reset
        @failed = []
        @pause = FIRST_PAUSE
      end

      # The place of the address for the next try.
      def place
        now = Http.now
        order = Array.new(@addresses.count) { |place| place }.rotate(@addresses.current)
        free = order.select { |place| @not_before[place] <= now }
        free = order if free.empty?
        (free - @failed).first || free.first
      end

      # The seconds until the next try, after one that failed. Its address asked to wait for `after` seconds.
      def next(place, after = nil)
        now = Http.now
        @failed |= [place]
        @not_before[place] = now + (after || 0.0)
        return 0.0 if @not_before.each_index.any? { |other| !@failed.include?(other) && @not_before[other] <= now }

        @failed = []
        # A proxy may ask for no pause at all.
        grown = @pause * rand(0.75..1.25)
        @pause = [@pause * 2, @longest].min
        named = @not_before.map { |moment| moment - now }.select(&:positive?)
        (named.size == @not_before.size) ? [grown, named.min].max : [grown, *named].min
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

      # @param place [Integer] place of the address
      # @return [Response]
      # @raise [ConnectionFailed] when there is no answer within the time of the request; the next request goes to the
      #   next address
      def call(request, place = @addresses.current)
        deadline = Http.now + request.timeout
        http, kept = open(place, request.timeout)
        begin
          answer(http, request, place, deadline)
        rescue *FAILURES => e
          # The server may close a kept connection at any time. That says nothing about the server, but silence does.
          raise if !kept || e.is_a?(Timeout::Error) || aborted?(http)

          close
          http, = open(place, request.timeout)
          answer(http, request, place, deadline).tap { |response| response.again = true }
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

      def answer(http, request, place, deadline)
        http.read_timeout = request.timeout
        http.write_timeout = request.timeout
        path = @addresses.at(place).path.chomp("/") + request.path
        headers = (request.headers || {}).transform_values { |value| value.respond_to?(:call) ? value.call : value }
        sent = Net::HTTPGenericRequest.new(request.method, !request.body.nil?, true, path, headers)
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
        raise Timeout::Error, "no answer in time" if sent_at >= deadline

        # The timeout of a read begins again with each byte, so an answer that trickles needs a limit of its own.
        got = Timeout.timeout(deadline - sent_at) { http.request(sent) }
        body = (got.body || +"").force_encoding(Encoding::UTF_8)
        # Net::HTTP returns what came before an end that came too early.
        raise EOFError, "the answer is not complete" if got.content_length && body.bytesize < got.content_length

        Response.new(got.code.to_i, got.each_header.to_h, body, sent_at, false, place)
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
