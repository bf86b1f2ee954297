// Command conformance is a worker that serves the kinds of `tickr conformance`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"tickr"
)

func number(name string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return value
	}
	return otherwise
}

type message struct {
	Message string `json:"message"`
	DelayMS *int64 `json:"delay_ms"`
}

func (m message) delay() time.Duration {
	if m.DelayMS == nil {
		return 0
	}
	return time.Duration(*m.DelayMS) * time.Millisecond
}

type pause struct {
	MS int64 `json:"ms"`
}

func (p pause) duration() time.Duration { return time.Duration(p.MS) * time.Millisecond }

func handle[P any](worker *tickr.Worker, name string, handler tickr.Handler[P, any]) {
	tickr.Handle(worker, tickr.Kind[P, any]{Name: "conformance." + name}, handler)
}

func main() {
	queues := os.Getenv("TICKR_QUEUES")
	if queues == "" {
		queues = "conformance"
	}
	worker, err := tickr.NewWorker(tickr.WorkerConfig{
		Name:   "conformance-go",
		Queues: strings.Split(queues, ","),
		Slots:  number("TICKR_SLOTS", 4),
		Grace:  time.Duration(number("TICKR_GRACE_MS", 5_000)) * time.Millisecond,
		Lease:  time.Duration(number("TICKR_LEASE_MS", 10_000)) * time.Millisecond,
		Wait:   time.Duration(number("TICKR_WAIT_MS", 30_000)) * time.Millisecond,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Raw JSON keeps every digit.
	handle(worker, "echo", func(_ context.Context, payload json.RawMessage, _ *tickr.Attempt) (any, error) {
		return payload, nil
	})
	handle(worker, "fail", func(_ context.Context, payload message, _ *tickr.Attempt) (any, error) {
		if payload.DelayMS == nil {
			return nil, errors.New(payload.Message)
		}
		return nil, tickr.FailAfter(payload.delay(), errors.New(payload.Message))
	})
	handle(worker, "reject", func(_ context.Context, payload message, _ *tickr.Attempt) (any, error) {
		return nil, tickr.Reject(errors.New(payload.Message))
	})
	handle(worker, "snooze", func(_ context.Context, payload message, _ *tickr.Attempt) (any, error) {
		return nil, tickr.Snooze(payload.delay(), payload.Message)
	})
	handle(worker, "release", func(context.Context, struct{}, *tickr.Attempt) (any, error) {
		return nil, tickr.Release("given back")
	})
	handle(worker, "throw", func(_ context.Context, payload message, _ *tickr.Attempt) (any, error) {
		panic(errors.New(payload.Message))
	})
	handle(worker, "sleep", func(ctx context.Context, payload pause, attempt *tickr.Attempt) (any, error) {
		if err := attempt.Sleep(ctx, payload.duration()); err != nil {
			return nil, err
		}
		return map[string]bool{"slept": true}, nil
	})
	handle(worker, "block", func(_ context.Context, payload pause, _ *tickr.Attempt) (any, error) {
		time.Sleep(payload.duration())
		return nil, nil
	})
	type report struct {
		pause
		Percent    float64         `json:"percent"`
		Note       string          `json:"note"`
		Checkpoint json.RawMessage `json:"checkpoint"`
	}
	handle(worker, "progress", func(ctx context.Context, payload report, attempt *tickr.Attempt) (any, error) {
		var began json.RawMessage
		if _, err := attempt.Checkpoint(&began); err != nil {
			return nil, err
		}
		attempt.Progress(payload.Percent, payload.Note)
		if err := attempt.SaveCheckpoint(payload.Checkpoint); err != nil {
			return nil, err
		}
		if err := attempt.Sleep(ctx, payload.duration()); err != nil {
			return nil, err
		}
		return map[string]json.RawMessage{"began_with": began}, nil
	})
	type lines struct {
		Lines []string `json:"lines"`
	}
	handle(worker, "log", func(_ context.Context, payload lines, attempt *tickr.Attempt) (any, error) {
		for _, line := range payload.Lines {
			attempt.Log("%s", line)
		}
		return nil, nil
	})
	type big struct {
		Bytes int `json:"bytes"`
	}
	handle(worker, "big", func(_ context.Context, payload big, _ *tickr.Attempt) (any, error) {
		return strings.Repeat("x", payload.Bytes), nil
	})
	type enqueue struct {
		Kind    string          `json:"kind"`
		Payload json.RawMessage `json:"payload"`
		Queue   string          `json:"queue"`
	}
	handle(worker, "enqueue", func(ctx context.Context, payload enqueue, attempt *tickr.Attempt) (any, error) {
		job, err := attempt.Client().Enqueue(ctx, payload.Kind, payload.Payload, tickr.Options{Queue: payload.Queue})
		if err != nil {
			return nil, err
		}
		return map[string]string{"id": job.ID}, nil
	})
	if err := worker.RunUntilSignal(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
