module shop

go 1.19

require tickr v0.1.0

replace tickr => ../../clients/go
