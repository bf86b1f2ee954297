module outboxtest

go 1.19

require (
	github.com/go-sql-driver/mysql v1.5.0
	tickr v0.1.0
)

replace tickr => ../
