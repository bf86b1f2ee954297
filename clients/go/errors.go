package tickr

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// FieldError is one error in a request, with a JSON pointer into its body.
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Error is an answer of the server that is no success: a problem document (RFC 9457). docs/PROBLEMS.md has each code
// and its remedy. An answer that is no problem document, for example of a proxy, has the code unexpected_answer.
type Error struct {
	// Code is stable, for programs, such as unknown_kind.
	Code string `json:"code"`
	// Title is the code in words.
	Title string `json:"title"`
	// Detail describes this occurrence, for people.
	Detail string `json:"detail"`
	// Status is the HTTP status.
	Status int `json:"-"`
	// Errors are the single errors of the request.
	Errors []FieldError `json:"errors"`
	// Holder is the id of the job in the way, with unique_key_taken.
	Holder string `json:"holder"`
	// CurrentState is the state of the job, with wrong_state and unique_key_taken.
	CurrentState State `json:"current_state"`
}

func (e *Error) Error() string {
	text := e.Code + ": " + e.Detail
	var listed []string
	for place, one := range e.Errors {
		if place == 5 {
			break
		}
		listed = append(listed, strings.TrimSpace(one.Pointer+" "+one.Detail))
	}
	if len(listed) > 0 {
		text += ": " + strings.Join(listed, "; ")
	}
	return text
}

// HasCode says whether an error is a problem with this code.
func HasCode(err error, code string) bool {
	var problem *Error
	return errors.As(err, &problem) && problem.Code == code
}

func problemOf(status int, body []byte) *Error {
	problem := &Error{}
	if json.Unmarshal(body, problem) != nil || problem.Code == "" {
		problem = &Error{Code: "unexpected_answer", Title: fmt.Sprintf("HTTP status %d", status)}
		problem.Detail = fmt.Sprintf("the server answered with HTTP status %d", status)
	}
	problem.Status = status
	return problem
}

// UnavailableError says that no server gave a usable answer within the time of a call. The call may have been carried
// out: repeat it with the same idempotency key.
type UnavailableError struct {
	// Within is the time after which the client gave up.
	Within time.Duration
	// Err is the last failure.
	Err error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("no answer of tickr within %s: %v", e.Within.Round(time.Millisecond), e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// JobError says that a job for which the caller waited did not complete.
type JobError struct {
	ID string
	// State is failed or cancelled.
	State State
	// LastError is the error of the last attempt.
	LastError string
}

func (e *JobError) Error() string {
	return fmt.Sprintf("job %s ended as %s: %s", e.ID, e.State, e.LastError)
}

// The reasons for which the context of a handler ends: see Attempt.Cause.
var (
	// ErrCancelled says that the server asked the attempt to stop.
	ErrCancelled = errors.New("the server asked the attempt to stop")
	// ErrDeadline says that the time limit of the attempt is over.
	ErrDeadline = errors.New("the time limit of the attempt is over")
	// ErrLost says that the worker does not hold the attempt any more, or that no heartbeat was answered before the end
	// of its lease. Another worker may execute the job. What the handler returns is sent in the second case.
	ErrLost = errors.New("the worker does not hold the attempt any more")
	// ErrStopping says that the worker stops, and gives the job back.
	ErrStopping = errors.New("the worker stops")
)
