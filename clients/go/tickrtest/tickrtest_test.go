package tickrtest

import (
	"context"
	"testing"
	"time"

	"tickr"
)

type picture struct {
	Path string `json:"path"`
}

var notify = tickr.Kind[picture, any]{Name: "notify"}

func resize(ctx context.Context, payload picture, attempt *tickr.Attempt) (any, error) {
	_, err := notify.Enqueue(ctx, attempt.Client(), payload, tickr.Options{Queue: "mail"})
	return "small", err
}

// failing is a test that records its failure.
type failing struct {
	testing.TB
	hasFailed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.hasFailed = true }

func TestAnOutcomeHasTheJobsThatFollowASuccessAndNoneOfAnotherVerdict(t *testing.T) {
	handler := func(ctx context.Context, payload picture, attempt *tickr.Attempt) (any, error) {
		options := tickr.FollowUpOptions{Delay: time.Second, InBatch: true}
		if err := notify.Then(attempt, payload, options); err != nil || payload.Path == "" {
			return nil, tickr.Rejectf("no path")
		}
		return "small", nil
	}
	cat := picture{Path: "cat.png"}
	outcome, err := tickr.RunAlone(context.Background(), handler, cat, tickr.AttemptInfo{}, nil, nil)
	if err != nil || len(outcome.FollowUps) != 1 {
		t.Fatal(outcome, err)
	}
	job := outcome.FollowUps[0]
	if job.Kind != "notify" || string(job.Payload) != `{"path":"cat.png"}` || job.Options.Delay != time.Second {
		t.Error(job)
	}
	outcome, err = tickr.RunAlone(context.Background(), handler, picture{}, tickr.AttemptInfo{}, nil, nil)
	if err != nil || outcome.Verdict != "rejected" || outcome.FollowUps != nil {
		t.Error(outcome, err)
	}
}

func TestAHandlerEnqueuesWithoutAServer(t *testing.T) {
	client := &Client{}
	outcome, err := tickr.RunAlone(context.Background(), resize, picture{Path: "cat.png"}, tickr.AttemptInfo{}, nil, client)
	if err != nil || outcome.Verdict != "succeeded" || string(outcome.Result) != `"small"` {
		t.Fatal(outcome, err)
	}
	job := client.AssertEnqueued(t, "notify", map[string]string{"path": "cat.png"})
	if job.Options.Queue != "mail" || len(client.Jobs()) != 1 {
		t.Error(client.Jobs())
	}
	client.AssertNotEnqueued(t, "other")
	for name, assert := range map[string]func(t testing.TB){
		"another payload": func(t testing.TB) { client.AssertEnqueued(t, "notify", picture{Path: "dog.png"}) },
		"another kind":    func(t testing.TB) { client.AssertEnqueued(t, "other", nil) },
		"not enqueued":    func(t testing.TB) { client.AssertNotEnqueued(t, "notify") },
	} {
		record := &failing{TB: t}
		assert(record)
		if !record.hasFailed {
			t.Error("no failure:", name)
		}
	}
}
