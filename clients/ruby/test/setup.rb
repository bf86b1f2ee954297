# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "minitest/autorun"
require "minitest/mock"
require "socket"
require "stringio"
require "tempfile"
require "tickr"
require "tickr/testing"

# Ask again until the answer is true, at most so many seconds. A test may set the clock of the library.
def eventually(what, seconds = 10)
  now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
  deadline = now.call + seconds
  while now.call < deadline
    answer = yield
    return answer if answer

    sleep 0.02
  end
  raise "waited #{seconds} s in vain for #{what}"
end

# A server whose answers arrive one byte at a time, `pause` seconds apart, behind `at_once` bytes of them.
class SlowServer
  attr_reader :url

  def initialize(at_once, pause)
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "http://127.0.0.1:#{@listener.addr[1]}"
    @threads = [Thread.new { loop { accept(at_once, pause) } }]
    @threads.first.report_on_exception = false
  end

  def close
    @listener.close
    @threads.each(&:kill)
  end

  private

  def accept(at_once, pause)
    client = @listener.accept
    @threads << Thread.new do
      client.readpartial(65_536)
      text = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n#{" " * 500}"
      client.write(text[0, at_once])
      text[at_once..].each_char do |char|
        sleep pause
        client.write(char)
      end
    rescue SystemCallError, IOError
      nil # The client has closed the connection.
    ensure
      client.close
    end
  end
end

# A server in this process that answers as a script says, also badly.
#
# The script gets the method, the path, the read body and the headers, and returns `[status, body]`, `[status, body,
# headers]`, :drop (close the connection without an answer) or :hang (no answer as long as the connection lasts).
class TestServer
  attr_reader :url

  def initialize(tls: nil, &script)
    @script = script
    @tls = tls
    @listener = TCPServer.new("127.0.0.1", 0)
    @url = "http://127.0.0.1:#{@listener.addr[1]}"
    @lock = Mutex.new
    @requests = []
    @threads = [Thread.new { accept }]
  end

  def requests(path_end = "")
    @lock.synchronize { @requests.select { |one| one[:path].end_with?(path_end) } }
  end

  def await(path_end, &enough)
    eventually("requests at #{path_end}") { enough.call(requests(path_end)) && requests(path_end) }
  end

  def close
    @listener.close
    @lock.synchronize { @threads.each(&:kill) }
  end

  private

  def accept
    loop do
      client = @listener.accept
      @lock.synchronize { @threads << Thread.new { serve(client) } }
    end
  rescue IOError
    nil
  end

  def serve(client)
    client = OpenSSL::SSL::SSLSocket.new(client, @tls).tap(&:accept) if @tls
    while (line = client.gets)
      method, path = line.split
      headers = {}
      while (header = client.gets.chomp) != ""
        name, value = header.split(": ", 2)
        headers[name.downcase] = value
      end
      text = client.read(headers["content-length"].to_i)
      body = text.empty? ? nil : JSON.parse(text)
      @lock.synchronize { @requests << {method: method, path: path, body: body, text: text, headers: headers} }
      answer = @script.call(method, path, body, headers)
      break if answer == :drop
      sleep if answer == :hang

      status, content, extra = answer
      content = content.is_a?(String) ? content : JSON.generate(content)
      fields = {"content-length" => content.bytesize}.merge(extra || {})
      head = fields.map { |name, value| "#{name}: #{value}\r\n" }.join
      client.write("HTTP/1.1 #{status} X\r\n#{head}\r\n#{content}")
      break if fields["connection"] == "close"
    end
  rescue OpenSSL::SSL::SSLError
    nil # The client does not trust the certificate.
  ensure
    client.close
  end
end
