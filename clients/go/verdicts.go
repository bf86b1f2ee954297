package tickr

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	maxResultBytes     = 256 << 10
	maxErrorCharacters = 2_000
)

// verdictBody is how an attempt ended, as the API takes it.
type verdictBody struct {
	Token   string          `json:"token"`
	Verdict string          `json:"verdict"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   string          `json:"error,omitempty"`
	DelayMS *int64          `json:"delay_ms,omitempty"`
	Log     string          `json:"log,omitempty"`
	// FollowUps are the jobs that exist exactly if this success counts.
	FollowUps []json.RawMessage `json:"follow_ups,omitempty"`
}

// A verdictError is an error with which a handler chooses the verdict.
type verdictError struct {
	verdict string
	message string
	delay   *time.Duration
	err     error
}

func (v *verdictError) Error() string { return v.message }
func (v *verdictError) Unwrap() error { return v.err }

// FailAfter returns an error that fails the attempt. The next attempt follows after this delay instead of the backoff.
// Any other error fails the attempt as well.
func FailAfter(delay time.Duration, err error) error {
	return &verdictError{verdict: "failed", message: err.Error(), delay: &delay, err: err}
}

// Reject returns an error that fails the job for good: no attempt can succeed.
func Reject(err error) error {
	return &verdictError{verdict: "rejected", message: err.Error(), err: err}
}

// Rejectf is Reject with a text.
func Rejectf(format string, values ...any) error { return Reject(fmt.Errorf(format, values...)) }

// Snooze returns an error that lets the job run again after this delay, without using an attempt. After a hundred
// attempts of a job that used none, each further snooze or release counts as failed and uses an attempt.
func Snooze(delay time.Duration, why string) error {
	return &verdictError{verdict: "snoozed", message: why, delay: &delay}
}

// Release returns an error that gives the job back at once, without using an attempt.
func Release(why string) error {
	return &verdictError{verdict: "released", message: why}
}

// verdictOf returns the verdict for what a handler returned. Cause is the reason for which it was told to stop.
func verdictOf(result any, err error, cause error) verdictBody {
	var chosen *verdictError
	if errors.As(err, &chosen) {
		verdict := verdictBody{Verdict: chosen.verdict, Error: errorText(err.Error())}
		if chosen.delay != nil {
			ms := milliseconds(longer(*chosen.delay, 0))
			verdict.DelayMS = &ms
		}
		return verdict
	}
	if err == nil && (cause == nil || cause == ErrStopping || cause == ErrLost) {
		text, err := encode(result)
		if err != nil {
			return failed("the result cannot be written as JSON: " + err.Error())
		}
		if len(text) > maxResultBytes {
			return failed(fmt.Sprintf("the result has %d bytes, and at most %d are possible", len(text), maxResultBytes))
		}
		return verdictBody{Verdict: "succeeded", Result: text}
	}
	if cause == ErrStopping {
		return verdictBody{Verdict: "released", Error: "its worker stopped and gave it back"}
	}
	if cause == ErrLost {
		// The server has not said so, or this verdict would not be sent. Another worker may have the job.
		return verdictBody{Verdict: "released", Error: "no heartbeat was answered before the end of the lease"}
	}
	if cause != nil {
		// docs/WORKERS.md: an attempt that was told to stop ends as failed. Its result came too late.
		return failed(cause.Error())
	}
	return failed(typed(err))
}

func failed(why string) verdictBody { return verdictBody{Verdict: "failed", Error: errorText(why)} }

// typed returns the text of an error, with its type if that says something.
func typed(err error) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
	if strings.HasPrefix(name, "errors.") || strings.HasPrefix(name, "fmt.") || name == "tickr.panicked" {
		return err.Error()
	}
	return name + ": " + err.Error()
}

// errorText makes a text that the server takes: 1 to 2,000 characters, and not spaces alone.
func errorText(text string) string {
	text = cut(text, maxErrorCharacters)
	if strings.TrimSpace(text) == "" {
		return "an error without a text"
	}
	return text
}
