package tickr

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"
)

// Handler executes the jobs of a kind. Its result is that of the job, at most 256 KiB of JSON. An error fails the
// attempt; FailAfter, Reject, Snooze and Release make errors for other verdicts, also within a chain of errors. A panic
// fails the attempt and not the worker.
//
// The context ends when the attempt has to stop: its job was cancelled, its time is over, the worker does not hold it
// any more or gets no heartbeat answered before the end of the lease, or the worker stops. Return an error then, such
// as that of the context.
type Handler[Payload, Result any] func(ctx context.Context, payload Payload, attempt *Attempt) (Result, error)

// erased is a handler without its types.
type erased func(ctx context.Context, payload json.RawMessage, attempt *Attempt) (any, error)

func erase[P, R any](handler Handler[P, R]) erased {
	return func(ctx context.Context, text json.RawMessage, attempt *Attempt) (any, error) {
		var payload P
		if err := json.Unmarshal(text, &payload); err != nil {
			// No further attempt of this version can read it.
			return nil, Reject(fmt.Errorf("the payload does not fit the type of the handler: %w", err))
		}
		return handler(ctx, payload, attempt)
	}
}

// execute calls a handler and returns its verdict.
func execute(ctx context.Context, handler erased, payload json.RawMessage, attempt *Attempt) verdictBody {
	ctx, end := attempt.begin(ctx)
	defer end()
	result, err := guarded(ctx, handler, payload, attempt)
	return judged(result, err, attempt)
}

func guarded(ctx context.Context, handler erased, payload json.RawMessage, attempt *Attempt) (result any, err error) {
	hasReturned := false
	defer func() {
		// The value of panic(nil) is nil.
		if value := recover(); !hasReturned {
			attempt.LogError("%v\n%s", value, debug.Stack())
			err = &panicked{value: value}
		}
	}()
	result, err = handler(ctx, payload, attempt)
	hasReturned = true
	return result, err
}

// judged returns the verdict. What the handler returned has methods of the program, such as Error and MarshalJSON, and
// one that panics fails the attempt as well.
func judged(result any, err error, attempt *Attempt) (verdict verdictBody) {
	hasReturned := false
	defer func() {
		if value := recover(); !hasReturned {
			attempt.LogError("%v\n%s", value, debug.Stack())
			verdict = failed(fmt.Sprintf("what the handler returned cannot be read: panic: %v", value))
		}
	}()
	verdict = verdictOf(result, err, attempt.Cause())
	if verdict.Verdict == "succeeded" {
		for _, job := range attempt.added() {
			verdict.FollowUps = append(verdict.FollowUps, job.text)
		}
	}
	hasReturned = true
	return verdict
}

// Outcome is what a handler did in RunAlone.
type Outcome struct {
	// Verdict is succeeded, failed, rejected, snoozed or released.
	Verdict string
	// Result is JSON, with succeeded.
	Result json.RawMessage
	Error  string
	// Delay is that of Snooze and FailAfter.
	Delay time.Duration
	// Percent and Note are the newest progress.
	Percent float64
	Note    string
	// Checkpoint is the newest one, as JSON.
	Checkpoint json.RawMessage
	// Log are the lines of the attempt.
	Log string
	// FollowUps are the jobs of Attempt.Then, with succeeded.
	FollowUps []FollowUp
}

type recorded struct{ outcome *Outcome }

func (r recorded) progress(percent float64, note *string) {
	r.outcome.Percent, r.outcome.Note = percent, *note
}
func (r recorded) checkpoint(text json.RawMessage) { r.outcome.Checkpoint = text }
func (r recorded) saved() <-chan error {
	done := make(chan error, 1)
	done <- nil
	return done
}

// RunAlone executes a handler without a server, for tests. The payload and the result go through JSON, as in a worker.
// The info, the checkpoint and the client may be left out. The end of the context counts as a cancel. Package tickrtest
// has a client for it.
func RunAlone[P, R any](
	ctx context.Context, handler Handler[P, R], payload P, info AttemptInfo, checkpoint any, client Enqueuer,
) (*Outcome, error) {
	text, err := encode(payload)
	if err != nil {
		return nil, err
	}
	if info.ID == "" {
		info.ID = NewID()
	}
	if info.Attempt == 0 {
		info.Attempt, info.MaxAttempts = 1, 5
	}
	outcome := &Outcome{}
	attempt := &Attempt{AttemptInfo: info, reports: recorded{outcome}, client: client}
	if checkpoint != nil {
		if attempt.began, err = encode(checkpoint); err != nil {
			return nil, err
		}
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-ctx.Done():
			attempt.stop(ErrCancelled)
		case <-done:
		}
	}()
	verdict := execute(context.Background(), erase(handler), text, attempt)
	outcome.Verdict, outcome.Result, outcome.Error = verdict.Verdict, verdict.Result, verdict.Error
	if verdict.DelayMS != nil {
		outcome.Delay = time.Duration(*verdict.DelayMS) * time.Millisecond
	}
	for _, job := range attempt.added()[:len(verdict.FollowUps)] {
		outcome.FollowUps = append(outcome.FollowUps, job.FollowUp)
	}
	outcome.Log = attempt.logText()
	return outcome, nil
}
