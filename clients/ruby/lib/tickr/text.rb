# frozen_string_literal: true

module Tickr
  # Texts within the bounds of the API.
  #
  # @api private
  module Text
    module_function

    # Make valid UTF-8 of bytes of any origin.
    def clean(text)
      text = text.to_s
      text = if text.encoding == Encoding::BINARY
        text.dup.force_encoding(Encoding::UTF_8)
      else
        text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
      end
      text.scrub
    end

    # Keep the first characters, at most so many.
    def first(text, characters)
      text = clean(text)
      text.length <= characters ? text : "#{text[0, characters - 1]}…"
    end

    # The newest bytes of a log, at most so many, cut between lines where that is possible.
    def newest(log, bytes)
      return log if log.bytesize <= bytes

      kept = log.byteslice(-bytes, bytes)
      line = kept.b.index("\n".b)
      return kept.byteslice(line + 1, bytes).scrub if line && line < kept.bytesize - 1

      kept.b.sub(/\A[\x80-\xbf]+/n, "").force_encoding(Encoding::UTF_8)
    end

    # The text of an error, as an attempt keeps it.
    def error(text)
      text = clean(text).strip
      first(text.empty? ? "no reason was given" : text, 2000)
    end
  end
end
