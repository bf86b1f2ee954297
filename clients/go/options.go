package tickr

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// State is where a job is in its life.
type State string

// The states of a job.
const (
	Waiting   State = "waiting"
	Executing State = "executing"
	Retrying  State = "retrying"
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Retry is the backoff between attempts: growing delays (Base, Factor, Cap), or a table of Delays.
type Retry struct {
	Base   time.Duration
	Factor float64
	Cap    time.Duration
	Delays []time.Duration
	// Jitter is the share by which a delay varies in both directions. Nil: that of the kind.
	Jitter *float64
}

// Options are the options of a job. docs/API.md describes each; the zero value of a field leaves the default of the
// kind. Durations and ExecuteAt are rounded up to milliseconds, so that a job never starts early.
type Options struct {
	// Queue is the queue. Default: that of the kind, or default.
	Queue string
	// ExecuteAt is the due time, at most 366 days ahead. Not together with Delay.
	ExecuteAt time.Time
	// Delay is the time until the job is due. Not together with ExecuteAt.
	Delay time.Duration
	// ExpiresAt is the time from which on no attempt starts. Not together with ExpiresIn.
	ExpiresAt time.Time
	ExpiresIn time.Duration
	// MaxAttempts is 1 to 100.
	MaxAttempts int
	// Timeout is the time limit of one attempt, at most 24 hours.
	Timeout time.Duration
	// Priority is 0 (first) to 9 (last): tickr.Int(0). Nil: 5.
	Priority *int
	// UniqueKey is had by at most one unfinished job of the kind.
	UniqueKey string
	// UniqueFields are the fields of the payload that make the unique key, as JSON pointers. Instead of UniqueKey.
	UniqueFields []string
	// OnConflict says what happens when an unfinished job has the unique key: return (default), reject, replace,
	// postpone.
	OnConflict string
	MaxWait    time.Duration
	// UniqueUntil is end (default) or start.
	UniqueUntil string
	UniqueFor   time.Duration
	// OrderKey: jobs with the same one run one at a time, in the order in which they were accepted.
	OrderKey string
	// OnFailure is block (default) or skip.
	OnFailure string
	// LimitKey: limits by key count the jobs with the same one.
	LimitKey string
	// After are the ids of the parents of the job.
	After []string
	// AfterPositions are parents in the same call of EnqueueMany: positions of earlier jobs, from 0.
	AfterPositions []int
	// OnParentFailure is cancel (default), run or hold.
	OnParentFailure string
	// Batch is the id of the batch that counts the job.
	Batch string
	Retry *Retry
	// Tags are at most ten.
	Tags []string
	// Traceparent is the W3C Trace Context that the attempts continue.
	Traceparent string
	Tracestate  string
	// IdempotencyKey names the request of Client.Enqueue: a request with the same name and the same job is carried out
	// once. It has 1 to 255 visible ASCII characters. Default: the client makes one for each call, so that its own
	// repetitions enqueue once.
	IdempotencyKey string
}

// Job is a job to enqueue.
type Job struct {
	Kind    string
	Payload any
	Options Options
}

// Int returns a pointer to a number, for Options.Priority.
func Int(n int) *int { return &n }

// Float returns a pointer to a number, for Retry.Jitter.
func Float(n float64) *float64 { return &n }

// fields returns the job as the API takes it.
func (j Job) fields() (map[string]any, error) {
	payload, err := encode(j.Payload)
	if err != nil {
		return nil, fmt.Errorf("tickr: the payload cannot be written as JSON: %w", err)
	}
	if j.Payload == nil {
		payload = []byte("{}")
	}
	o := j.Options
	fields := map[string]any{"kind": j.Kind, "payload": json.RawMessage(payload)}
	text := func(name, value string) {
		if value != "" {
			fields[name] = value
		}
	}
	ms := func(name string, value time.Duration) {
		if value != 0 {
			fields[name] = milliseconds(value)
		}
	}
	at := func(name string, value time.Time) {
		if !value.IsZero() {
			fields[name] = value.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
	}
	text("queue", o.Queue)
	at("execute_at", roundedUp(o.ExecuteAt))
	ms("delay_ms", o.Delay)
	at("expires_at", o.ExpiresAt)
	ms("expires_in_ms", o.ExpiresIn)
	if o.MaxAttempts != 0 {
		fields["max_attempts"] = o.MaxAttempts
	}
	ms("timeout_ms", o.Timeout)
	if o.Priority != nil {
		fields["priority"] = *o.Priority
	}
	text("unique_key", o.UniqueKey)
	if len(o.UniqueFields) > 0 {
		fields["unique_fields"] = o.UniqueFields
	}
	text("on_conflict", o.OnConflict)
	ms("max_wait_ms", o.MaxWait)
	text("unique_until", o.UniqueUntil)
	ms("unique_for_ms", o.UniqueFor)
	text("order_key", o.OrderKey)
	text("on_failure", o.OnFailure)
	text("limit_key", o.LimitKey)
	var after []any
	for _, id := range o.After {
		after = append(after, id)
	}
	for _, position := range o.AfterPositions {
		after = append(after, position)
	}
	if len(after) > 0 {
		fields["after"] = after
	}
	text("on_parent_failure", o.OnParentFailure)
	text("batch", o.Batch)
	if o.Retry != nil {
		fields["retry"] = o.Retry.fields()
	}
	if len(o.Tags) > 0 {
		fields["tags"] = o.Tags
	}
	if o.Traceparent != "" {
		trace := map[string]any{"traceparent": o.Traceparent}
		if o.Tracestate != "" {
			trace["tracestate"] = o.Tracestate
		}
		fields["trace"] = trace
	}
	return fields, nil
}

func (r Retry) fields() map[string]any {
	fields := map[string]any{}
	if r.Base != 0 {
		fields["base_ms"] = milliseconds(r.Base)
	}
	if r.Factor != 0 {
		fields["factor"] = r.Factor
	}
	if r.Cap != 0 {
		fields["cap_ms"] = milliseconds(r.Cap)
	}
	if len(r.Delays) > 0 {
		var delays []int64
		for _, delay := range r.Delays {
			delays = append(delays, milliseconds(delay))
		}
		fields["delays_ms"] = delays
	}
	if r.Jitter != nil {
		fields["jitter"] = *r.Jitter
	}
	return fields
}

func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return d.Milliseconds()
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// roundedUp returns the time in whole milliseconds.
func roundedUp(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

// encode writes JSON without escapes for HTML, which would only make it longer.
func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(text.Bytes(), "\n"), nil
}

// cut makes a text valid Unicode of at most this many characters.
func cut(text string, characters int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	if utf8.RuneCountInString(text) <= characters {
		return text
	}
	return string([]rune(text)[:characters])
}
