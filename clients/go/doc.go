// Package tickr is the client of tickr, a durable job runner for teams on MySQL. A program enqueues jobs with a Client,
// or with EnqueueTx in a transaction of its own, and executes them with a Worker over HTTP. docs/WORKERS.md is the
// protocol.
package tickr
