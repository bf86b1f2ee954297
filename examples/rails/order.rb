# frozen_string_literal: true

# Takes some orders, and waits for the report about them.

require_relative "shop"

count = Integer(ARGV.fetch(0, "3"))
(1..count).each do |order|
  OrderMailer.thanks(order, "customer#{order}@example.com").deliver_later
  ResizePictureJob.perform_later(order)
end
MakeReportJob.perform_later(count)
puts "#{count} orders were taken."

deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
sleep 0.1 until File.exist?(shop_file("report.txt")) || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
abort "The report was not made within a minute." unless File.exist?(shop_file("report.txt"))
puts File.read(shop_file("report.txt"))
