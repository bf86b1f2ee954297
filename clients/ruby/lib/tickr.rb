# frozen_string_literal: true

require_relative "tickr/version"
require_relative "tickr/errors"
require_relative "tickr/json"
require_relative "tickr/text"
require_relative "tickr/uuid"
require_relative "tickr/kind"
require_relative "tickr/new_job"
require_relative "tickr/http"
require_relative "tickr/client"
require_relative "tickr/outbox"
require_relative "tickr/context"
require_relative "tickr/worker"

# A client and a worker of tickr, a durable job runner for teams on MySQL.
module Tickr
end
