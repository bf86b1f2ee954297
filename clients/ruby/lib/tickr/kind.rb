# frozen_string_literal: true

module Tickr
  # Makes a class the payload of a kind. Its instances answer `to_h`, and `new` takes the fields as keywords, as
  # those of a Struct with `keyword_init` do.
  #
  #     Resize = Struct.new(:path, keyword_init: true) do
  #       include Tickr::Kind
  #       tickr_kind "resize", queue: "pictures"
  #     end
  module Kind
    def self.included(base) = base.extend(ClassMethods)

    module ClassMethods
      # @param name [String] name of the kind
      # @param options [Hash] options of every job of the class, by their names in the API
      def tickr_kind(name, **options)
        @tickr_kind = name
        @tickr_options = options
      end

      def tickr_name = @tickr_kind || raise(ArgumentError, "#{self} needs tickr_kind \"name\"")

      def tickr_options = @tickr_options || {}

      # Build the payload from its fields.
      #
      # @raise [Rejected] when the payload does not fit: no attempt could do better
      def tickr_build(payload)
        new(**payload.transform_keys(&:to_sym))
      rescue ArgumentError, NoMethodError, TypeError => e
        raise Rejected, "the payload does not fit #{self}: #{e.message}"
      end
    end
  end
end
