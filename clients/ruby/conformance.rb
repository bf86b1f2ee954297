# frozen_string_literal: true

# The program that `tickr conformance` runs against this library.

$LOAD_PATH.unshift(File.expand_path("lib", __dir__))
require "tickr"

client = Tickr::Client.new
worker = Tickr::Worker.new(
  client: client,
  name: "conformance-ruby",
  queues: ENV.fetch("TICKR_QUEUES", "conformance").split(","),
  slots: Integer(ENV.fetch("TICKR_SLOTS", "4")),
  lease: Integer(ENV.fetch("TICKR_LEASE_MS", "10000")) / 1000.0,
  grace: Integer(ENV.fetch("TICKR_GRACE_MS", "5000")) / 1000.0,
  wait: Integer(ENV.fetch("TICKR_WAIT_MS", "30000")) / 1000.0
)
member = lambda do |context, name|
  Tickr::RawJson.new(Tickr::Json.members(context.attempt.payload_json.text).fetch(name, "null"))
end

worker.handle("conformance.echo") { |_, context| context.attempt.payload_json }
worker.handle("conformance.fail") do |payload, _|
  raise Tickr::Failed.new(payload["message"], delay_ms: payload["delay_ms"])
end
worker.handle("conformance.reject") { |payload, _| Tickr::Rejected.new(payload["message"]) }
worker.handle("conformance.snooze") do |payload, _|
  raise Tickr::Snoozed.new(payload["message"], delay_ms: payload["delay_ms"])
end
worker.handle("conformance.release") { |_, _| raise Tickr::Released }
worker.handle("conformance.throw") { |payload, _| raise payload["message"] }
worker.handle("conformance.sleep") do |payload, context|
  context.sleep(payload["ms"] / 1000.0)
  {slept: true}
end
worker.handle("conformance.block") do |payload, _|
  sleep(payload["ms"] / 1000.0)
  nil
end
worker.handle("conformance.progress") do |payload, context|
  context.progress(payload["percent"], payload["note"])
  context.checkpoint(member.(context, "checkpoint"))
  context.sleep(payload["ms"] / 1000.0)
  {began_with: context.attempt.checkpoint_json}
end
worker.handle("conformance.log") do |payload, context|
  payload["lines"].each { |line| context.log(line) }
  nil
end
worker.handle("conformance.big") { |payload, _| "x" * payload["bytes"] }
worker.handle("conformance.enqueue") do |payload, context|
  {id: client.enqueue(payload["kind"], member.(context, "payload"), queue: payload["queue"]).id}
end

exit worker.run
