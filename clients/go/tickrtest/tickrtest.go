// Package tickrtest has a client for tests that enqueues nothing and records everything. tickr.RunAlone executes a
// handler without a server.
package tickrtest

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"testing"

	"tickr"
)

// Client is a tickr.Enqueuer that records the jobs. The zero value is ready.
type Client struct {
	mu   sync.Mutex
	jobs []tickr.Job
}

var _ tickr.Enqueuer = (*Client)(nil)

// Enqueue records a job.
func (c *Client) Enqueue(_ context.Context, kind string, payload any, options tickr.Options) (*tickr.Enqueued, error) {
	if _, err := json.Marshal(payload); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, tickr.Job{Kind: kind, Payload: payload, Options: options})
	return &tickr.Enqueued{ID: tickr.NewID(), State: tickr.Waiting}, nil
}

// EnqueueMany records jobs.
func (c *Client) EnqueueMany(ctx context.Context, _ string, jobs ...tickr.Job) ([]tickr.Receipt, error) {
	var receipts []tickr.Receipt
	for _, job := range jobs {
		enqueued, err := c.Enqueue(ctx, job.Kind, job.Payload, job.Options)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, tickr.Receipt{ID: enqueued.ID})
	}
	return receipts, nil
}

// Jobs returns what was enqueued, in order.
func (c *Client) Jobs() []tickr.Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]tickr.Job{}, c.jobs...)
}

// AssertEnqueued fails the test unless a job of the kind with this payload was enqueued. It returns the first one.
// Payloads are compared as JSON. With a nil payload any one counts.
func (c *Client) AssertEnqueued(t testing.TB, kind string, payload any) tickr.Job {
	t.Helper()
	for _, job := range c.Jobs() {
		if job.Kind == kind && (payload == nil || equal(job.Payload, payload)) {
			return job
		}
	}
	t.Fatalf("no job of the kind %s with the payload %s was enqueued; there are: %s", kind, show(payload), show(c.Jobs()))
	return tickr.Job{}
}

// AssertNotEnqueued fails the test if a job of the kind was enqueued.
func (c *Client) AssertNotEnqueued(t testing.TB, kind string) {
	t.Helper()
	for _, job := range c.Jobs() {
		if job.Kind == kind {
			t.Fatalf("a job of the kind %s was enqueued: %s", kind, show(job.Payload))
		}
	}
}

func equal(one, other any) bool {
	return reflect.DeepEqual(plain(one), plain(other))
}

func plain(value any) any {
	var read any
	text, err := json.Marshal(value)
	if err != nil || json.Unmarshal(text, &read) != nil {
		return value
	}
	return read
}

func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
