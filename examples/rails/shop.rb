# frozen_string_literal: true

# The shop: ordinary classes of Active Job and Action Mailer. In an application of Rails they stand in app/jobs and
# app/mailers, and the first lines in config/application.rb.

require "active_job"
require "action_mailer"
require "tickr/active_job"

ActiveJob::Base.queue_adapter = ActiveJob::QueueAdapters::TickrAdapter.new(kind: "active_job_shop")
first_line = ->(_, _, _, text) { "#{text.to_s.lines.first.to_s.chomp}\n" }
ActiveJob::Base.logger = ActionMailer::Base.logger = Logger.new($stdout, level: Logger::INFO, formatter: first_line)
ActionMailer::Base.delivery_job = ActionMailer::MailDeliveryJob
ActionMailer::Base.delivery_method = :file
ActionMailer::Base.file_settings = {location: File.join(ENV.fetch("SHOP_DIR"), "mails")}
ActionMailer::Base.deliver_later_queue_name = :shop_mailers

def shop_file(name) = File.join(ENV.fetch("SHOP_DIR"), name)

class OrderMailer < ActionMailer::Base
  default from: "shop@example.com"

  def thanks(order, address)
    mail(to: address, subject: "Order #{order}", body: "Thank you for order #{order}.", content_type: "text/plain")
  end
end

class ShopJob < ActiveJob::Base
  queue_as :shop
end

# Draws the picture of an order and makes it smaller. Portable pixmaps need no library. The second picture fails once.
class ResizePictureJob < ShopJob
  class CameraBusy < StandardError; end

  retry_on CameraBusy, wait: 1, attempts: 5

  def perform(order)
    raise CameraBusy if order == 2 && executions == 1

    size, small = 256, 64
    pixels = small.times.flat_map do |y|
      small.times.flat_map { |x| [x * size / small, y * size / small, order * 40 % 256] }
    end
    File.binwrite(shop_file("picture-#{order}.ppm"), "P6 #{small} #{small} 255\n#{pixels.pack("C*")}")
  end
end

# Writes a report when all pictures and mails are there, and looks again after a second otherwise.
class MakeReportJob < ShopJob
  class NotYet < StandardError; end

  retry_on NotYet, wait: 1, attempts: 60

  def perform(orders)
    pictures = Dir[shop_file("picture-*.ppm")].sort
    mails = Dir[shop_file("mails/*")]
    raise NotYet if pictures.size < orders || mails.size < orders

    lines = ["#{mails.size} mails were sent."]
    pictures.each_with_index { |picture, i| lines << "Picture #{i + 1} has #{File.size(picture)} bytes." }
    File.write(shop_file("report.new"), lines.join("\n"))
    File.rename(shop_file("report.new"), shop_file("report.txt"))
  end
end
