# frozen_string_literal: true

require_relative "lib/tickr/version"

Gem::Specification.new do |spec|
  spec.name = "tickr"
  spec.version = Tickr::VERSION
  spec.authors = ["The tickr contributors"]
  spec.summary = "Client and worker of tickr, a durable job runner for teams on MySQL"
  spec.description = "Enqueues jobs of tickr, executes them as a remote worker, and is an adapter of Active Job."
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 3.0"
  spec.files = Dir["lib/**/*.rb", "exe/*", "README.md"]
  spec.bindir = "exe"
  spec.executables = ["tickr-active-job"]
  # The standard library of newer versions of Ruby has it no more.
  spec.add_dependency "logger"
  spec.metadata = {"rubygems_mfa_required" => "true"}
end
