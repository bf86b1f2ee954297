package tickr

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxCheckpointBytes = 64 << 10
	maxNote            = 120
	maxLogBytes        = 16 << 10
	maxLineBytes       = 4 << 10
	// Room for the line that says how many lines were dropped.
	noteBytes = 64
)

// AttemptInfo describes an attempt. docs/WORKERS.md has the meaning of each field.
type AttemptInfo struct {
	// ID is the id of the job, the same in each of its attempts.
	ID    string `json:"id"`
	Kind  string `json:"kind"`
	Queue string `json:"queue"`
	// Attempt is the number of attempts used, this one included.
	Attempt     int       `json:"attempt"`
	MaxAttempts int       `json:"max_attempts"`
	StartedAt   time.Time `json:"started_at"`
	// DeadlineAt is the end of the time limit, by the clock of the database.
	DeadlineAt  time.Time `json:"deadline_at"`
	TimeoutMS   int64     `json:"timeout_ms"`
	Traceparent string    `json:"traceparent"`
	Tags        []string  `json:"tags"`
}

// reports is where the reports of a handler go: the worker, or the record of a test.
type reports interface {
	progress(percent float64, note *string)
	checkpoint(text json.RawMessage)
	// saved returns a channel that gets nil when the server has the newest checkpoint, or the reason why it has not.
	saved() <-chan error
}

// Attempt is what a handler gets beside the payload. It is safe for use by several goroutines.
type Attempt struct {
	AttemptInfo
	began   json.RawMessage
	reports reports
	client  Enqueuer
	// The reason for which no jobs can follow, or nil.
	noFollowUps error

	mu        sync.Mutex
	cause     error
	end       context.CancelFunc
	log       attemptLog
	followUps []followUp
}

// Checkpoint reads the checkpoint that an earlier attempt saved. It returns false when there is none, and an error when
// it does not fit the type.
func (a *Attempt) Checkpoint(into any) (bool, error) {
	if len(a.began) == 0 {
		return false, nil
	}
	return true, json.Unmarshal(a.began, into)
}

// SaveCheckpoint saves a JSON value with which the next attempt begins, at most 64 KiB. It replaces the last one. The
// worker sends the newest one within a second, and at the latest before the verdict.
func (a *Attempt) SaveCheckpoint(value any) error {
	text, err := encode(value)
	if err != nil {
		return err
	}
	if len(text) > maxCheckpointBytes {
		return fmt.Errorf("the checkpoint has %d bytes, and at most %d are possible", len(text), maxCheckpointBytes)
	}
	a.reports.checkpoint(text)
	return nil
}

// CheckpointSaved waits until the server has the newest checkpoint. Call it before a step that must not be repeated. It
// fails when the context ends before, when the server refuses the checkpoint, and when the attempt is lost.
func (a *Attempt) CheckpointSaved(ctx context.Context) error {
	select {
	case err := <-a.reports.saved():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Progress shows the progress with the job: percent from 0 to 100, and a note of at most 120 characters.
func (a *Attempt) Progress(percent float64, note string) {
	if math.IsNaN(percent) {
		percent = 0
	}
	percent = math.Min(math.Max(percent, 0), 100)
	text := cut(strings.Map(func(sign rune) rune {
		if unicode.IsControl(sign) {
			return ' '
		}
		return sign
	}, note), maxNote)
	a.reports.progress(percent, &text)
}

// Log adds a line to the log of the attempt. The newest 16 KiB are stored with the verdict.
func (a *Attempt) Log(format string, values ...any) {
	a.logAt("INFO", fmt.Sprintf(format, values...))
}

// LogError adds a line with the level error to the log of the attempt.
func (a *Attempt) LogError(format string, values ...any) {
	a.logAt("ERROR", fmt.Sprintf(format, values...))
}

func (a *Attempt) logAt(level, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log.add(level, text)
}

// Client enqueues jobs that continue the trace of this one. Its key needs the scope enqueue.
func (a *Attempt) Client() Enqueuer { return a.client }

// Cause returns why the context of the handler has ended: ErrCancelled, ErrDeadline, ErrLost or ErrStopping. It is nil
// while the attempt goes on.
func (a *Attempt) Cause() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cause
}

// Sleep waits for this time. It fails with the cause as soon as the attempt has to stop.
func (a *Attempt) Sleep(ctx context.Context, d time.Duration) error {
	if sleep(ctx, d) {
		return nil
	}
	if cause := a.Cause(); cause != nil {
		return cause
	}
	return ctx.Err()
}

// stop ends the context of the handler.
func (a *Attempt) stop(cause error) {
	a.mu.Lock()
	if a.cause == nil {
		a.cause = cause
	}
	end := a.end
	a.mu.Unlock()
	if end != nil {
		end()
	}
}

// begin makes the context of the handler.
func (a *Attempt) begin(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(parent)
	a.mu.Lock()
	a.end = end
	isStopped := a.cause != nil
	a.mu.Unlock()
	if isStopped {
		end()
	}
	return ctx, end
}

func (a *Attempt) logText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.text()
}

// attemptLog has the newest lines of an attempt.
type attemptLog struct {
	lines   []string
	bytes   int
	dropped int
}

func (l *attemptLog) add(level, text string) {
	at := time.Now().UTC().Format("15:04:05.000")
	for _, line := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		line = fmt.Sprintf("%s %-5s %s", at, level, printable(line))
		l.lines = append(l.lines, line)
		l.bytes += len(line) + 1
	}
	for l.bytes > maxLogBytes-noteBytes {
		l.bytes -= len(l.lines[0]) + 1
		l.lines = l.lines[1:]
		l.dropped++
	}
}

func (l *attemptLog) text() string {
	var text strings.Builder
	if l.dropped > 0 {
		fmt.Fprintf(&text, "(%d earlier lines were dropped)\n", l.dropped)
	}
	for _, line := range l.lines {
		text.WriteString(line)
		text.WriteByte('\n')
	}
	return text.String()
}

// printable writes out what controls a terminal, and cuts a long line.
func printable(line string) string {
	var text strings.Builder
	for _, sign := range strings.ToValidUTF8(line, "\ufffd") {
		if sign != '\t' && (unicode.IsControl(sign) || unicode.Is(unicode.Bidi_Control, sign)) {
			fmt.Fprintf(&text, "\\u{%x}", sign)
		} else {
			text.WriteRune(sign)
		}
		if text.Len() > maxLineBytes {
			break
		}
	}
	cut := text.String()
	if len(cut) <= maxLineBytes {
		return cut
	}
	cut = cut[:maxLineBytes-8]
	for !utf8.ValidString(cut) {
		cut = cut[:len(cut)-1]
	}
	return cut + "…"
}

// panicked is the error of a handler that panicked.
type panicked struct{ value any }

func (p *panicked) Error() string {
	if err, is := p.value.(error); is {
		return "panic: " + typed(err)
	}
	return fmt.Sprintf("panic: %v", p.value)
}
