package tickr

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const maxFollowUps = 1_000

var errTooManyFollowUps = errors.New("tickr: at most 1,000 jobs follow one: let one of them enqueue the rest")

// FollowUpOptions are the options of a job that follows a success. Times count from the success; the zero value of a
// field leaves the default of the kind.
type FollowUpOptions struct {
	// Queue is the queue. Default: that of the kind, or default.
	Queue string
	// ExecuteAt is the due time, at most 366 days ahead. Not together with Delay.
	ExecuteAt time.Time
	// Delay is the time until the job is due. Not together with ExecuteAt.
	Delay time.Duration
	// ExpiresIn is the time after which no attempt starts.
	ExpiresIn time.Duration
	// MaxAttempts is 1 to 100.
	MaxAttempts int
	// Timeout is the time limit of one attempt, at most 24 hours.
	Timeout time.Duration
	// Priority is 0 (first) to 9 (last): tickr.Int(0). Nil: 5.
	Priority *int
	// OrderKey: jobs with the same one run one at a time, those of one success in their order.
	OrderKey string
	// OnFailure is block (default) or skip.
	OnFailure string
	// LimitKey: limits by key count the jobs with the same one.
	LimitKey string
	Retry    *Retry
	// Tags are at most ten.
	Tags []string
	// InBatch adds the job to the batch of the job that ends. Without a batch it changes nothing.
	InBatch bool
}

// FollowUp is a job that follows a success, in Outcome.FollowUps.
type FollowUp struct {
	Kind string
	// Payload is JSON.
	Payload json.RawMessage
	Options FollowUpOptions
}

// followUp is a job that follows a success, with its text for the API.
type followUp struct {
	FollowUp
	text json.RawMessage
}

// Then enqueues a job with the success of this attempt: the server stores both, or neither. The job continues the
// trace. A nil payload is {}. Kind.Then is the same with types.
//
// An attempt that does not succeed enqueues none of its jobs, so its next attempt repeats none. The Client of the
// worker needs a key with the scope enqueue, which is sent to the addresses of the worker. Then fails when the payload
// cannot be written as JSON, after 1,000 jobs, and when the client does not have the addresses of the worker. Return
// its error from the handler: without this job the attempt would succeed all the same.
func (a *Attempt) Then(kind string, payload any, options FollowUpOptions) error {
	if a.noFollowUps != nil {
		return a.noFollowUps
	}
	job, err := newFollowUp(kind, payload, options)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.followUps) >= maxFollowUps {
		return errTooManyFollowUps
	}
	a.followUps = append(a.followUps, job)
	return nil
}

// Then enqueues a job of this kind with the success of an attempt: see Attempt.Then.
func (k Kind[P, R]) Then(attempt *Attempt, payload P, options FollowUpOptions) error {
	return attempt.Then(k.Name, payload, options)
}

func newFollowUp(kind string, payload any, o FollowUpOptions) (followUp, error) {
	fields, err := Job{Kind: kind, Payload: payload, Options: Options{
		Queue: o.Queue, ExecuteAt: o.ExecuteAt, Delay: o.Delay, ExpiresIn: o.ExpiresIn, MaxAttempts: o.MaxAttempts,
		Timeout: o.Timeout, Priority: o.Priority, OrderKey: o.OrderKey, OnFailure: o.OnFailure, LimitKey: o.LimitKey,
		Retry: o.Retry, Tags: o.Tags,
	}}.fields()
	if err != nil {
		return followUp{}, err
	}
	if o.InBatch {
		fields["in_batch"] = true
	}
	text, err := encode(fields)
	if err != nil {
		return followUp{}, fmt.Errorf("tickr: the job cannot be written as JSON: %w", err)
	}
	written, _ := fields["payload"].(json.RawMessage)
	return followUp{FollowUp: FollowUp{Kind: kind, Payload: written, Options: o}, text: text}, nil
}

// added returns the jobs that follow a success. What the handler adds later is not among them.
func (a *Attempt) added() []followUp {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]followUp(nil), a.followUps...)
}

// noFollowUps returns why the jobs of a worker at these addresses cannot be followed by others: only addresses of its
// client may get the key of that client.
func noFollowUps(worker, client *transport) error {
	known := map[string]bool{}
	for _, address := range client.addresses {
		known[plainAddress(address)] = true
	}
	for _, address := range worker.addresses {
		if !known[plainAddress(address)] {
			return fmt.Errorf(
				"tickr: jobs that follow are enqueued by the server of the worker (%s), but its client has other addresses "+
					"(%s): give the worker a client with its own, or use Attempt.Client",
				strings.Join(worker.addresses, ", "), strings.Join(client.addresses, ", "),
			)
		}
	}
	return nil
}

// plainAddress writes an address in one way: in small letters, and with its port.
func plainAddress(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return address
	}
	port := parsed.Port()
	switch {
	case port != "":
	case parsed.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return parsed.Scheme + "://" + strings.ToLower(parsed.Hostname()) + ":" + port + parsed.Path
}

// mayEnqueue shows in a header that the successes of a call may enqueue jobs.
func (t *transport) mayEnqueue(header http.Header) {
	t.authorize(header, "tickr-enqueue-authorization")
}
