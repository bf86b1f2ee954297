# frozen_string_literal: true

require "json"
require "strscan"

module Tickr
  # JSON text that is passed on as it is. Ruby reads decimals as floats, so give a payload or a result as RawJson when
  # every digit matters.
  class RawJson
    # @return [String]
    attr_reader :text

    # @raise [ArgumentError] when the text is not JSON
    def initialize(text)
      JSON.parse(text, max_nesting: 200)
      @text = text.dup.freeze
    rescue JSON::ParserError => e
      raise ArgumentError, "this is not JSON: #{e.message}"
    end

    def decode = JSON.parse(text, max_nesting: 200)

    def to_json(*) = text

    # Active Support writes nested objects by this method.
    def as_json(*) = decode

    def ==(other) = other.is_a?(RawJson) && other.text == text
  end

  # JSON as this library writes and reads it.
  #
  # @api private
  module Json
    module_function

    # @raise [ArgumentError] when the value cannot be written as JSON
    def encode(value)
      value.is_a?(RawJson) ? value.text : JSON.generate(value, max_nesting: 200)
    rescue JSON::GeneratorError, JSON::NestingError, EncodingError => e
      raise ArgumentError, "the value cannot be written as JSON: #{e.message}"
    end

    # Cut an object or an array into the texts of its members, without reading them.
    #
    # @return [Hash{String => String}, Array<String>]
    def members(json)
      scanner = StringScanner.new(json.strip)
      opening = scanner.getch
      raise ArgumentError, "expected a JSON object or array" unless ["{", "["].include?(opening)

      members = opening == "{" ? {} : []
      until scanner.skip(/[\s,]*/) && (scanner.eos? || scanner.match?(/[}\]]/))
        if members.is_a?(Hash)
          name = JSON.parse(scanner.scan(STRING) || raise(ArgumentError, "expected a JSON string"))
          scanner.skip(/[\s:]*/)
          members[name] = value(scanner)
        else
          members << value(scanner)
        end
      end
      members
    end

    STRING = /"(?:[^"\\]|\\.)*"/m
    private_constant :STRING

    # Read the text of one value.
    def value(scanner)
      start = scanner.pos
      depth = 0
      until scanner.eos?
        scanner.skip(/[^"{}\[\],]+/)
        case scanner.peek(1)
        when '"' then scanner.skip(STRING) || raise(ArgumentError, "a JSON string does not end")
        when "{", "["
          depth += 1
          scanner.getch
        when ","
          break if depth.zero?
          scanner.getch
        when "}", "]"
          break if depth.zero?
          depth -= 1
          scanner.getch
        end
      end
      scanner.string.byteslice(start, scanner.pos - start).rstrip
    end
    private_class_method :value
  end
end
