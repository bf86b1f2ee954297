// Package outboxtest tests tickr.EnqueueTx with a driver. It is a module of its own, so that the client needs none.
package outboxtest
