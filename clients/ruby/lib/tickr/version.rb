# frozen_string_literal: true

module Tickr
  VERSION = "0.1.0"
end
