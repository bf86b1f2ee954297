package tickr_test

// Against a real server at TICKR_URL, with the right to declare kinds.

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tickr"
)

// suffix makes the names of this run.
var suffix = func() string {
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(random[:])
}()

func connect(t *testing.T) *tickr.Client {
	t.Helper()
	if os.Getenv("TICKR_URL") == "" {
		t.Skip("TICKR_URL is not set: it names a running tickr")
	}
	t.Parallel()
	client, err := tickr.NewClient(tickr.Config{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func request(t *testing.T, method, path string, body any) (int, string) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.Split(os.Getenv("TICKR_URL"), ",")[0] + path
	call, err := http.NewRequest(method, url, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	call.Header.Set("content-type", "application/json")
	if token := os.Getenv("TICKR_TOKEN"); token != "" {
		call.Header.Set("authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(call)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(got)
}

// declare declares a kind of this run, with a queue of the same name.
func declare(t *testing.T, name string) string {
	t.Helper()
	full := "go-" + suffix + "." + name
	retry := map[string]any{"base_ms": 1, "jitter": 0}
	status, body := request(t, "PUT", "/v1/kinds/"+full, map[string]any{"queue": full, "retry": retry})
	if status != 201 {
		t.Fatal(status, body)
	}
	return full
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// run runs a worker until the end of the test, or until the function that it returns is called.
func run[P, R any](
	t *testing.T, kind tickr.Kind[P, R], handler tickr.Handler[P, R], changes ...func(*tickr.WorkerConfig),
) (stop func()) {
	t.Helper()
	config := tickr.WorkerConfig{
		Name: "go-" + suffix, Queues: []string{kind.Name}, Slots: 4, Lease: 10 * time.Second, Grace: 100 * time.Millisecond,
		Logf: t.Logf,
	}
	for _, change := range changes {
		change(&config)
	}
	worker, err := tickr.NewWorker(config)
	if err != nil {
		t.Fatal(err)
	}
	tickr.Handle(worker, kind, handler)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestAJobGoesFromTheClientToAWorkerAndBackWithEveryDigit(t *testing.T) {
	client := connect(t)
	kind := tickr.Kind[json.RawMessage, json.RawMessage]{Name: declare(t, "echo")}
	run(t, kind, func(_ context.Context, payload json.RawMessage, _ *tickr.Attempt) (json.RawMessage, error) {
		return payload, nil
	})
	ctx := within(t, 20*time.Second)
	payload := `{"n":9223372036854775807,"d":12345678901234567890.123456789,"f":1.0,"s":"für <😀>"}`
	job := must(kind.Enqueue(ctx, client, json.RawMessage(payload), tickr.Options{Tags: []string{"run:" + suffix}}))(t)
	if result := must(kind.Wait(ctx, client, job.ID))(t); string(result) != payload {
		t.Error(string(result))
	}
	view := must(client.Get(ctx, job.ID))(t)
	if view.Tags[0] != "run:"+suffix || len(view.Attempts) != 1 || *view.Attempts[0].Verdict != "succeeded" {
		t.Error(string(view.Raw))
	}
}

func TestOptionsAreAcceptedByTheServer(t *testing.T) {
	client := connect(t)
	ctx := within(t, 20*time.Second)
	kind := tickr.Kind[map[string]int, any]{Name: declare(t, "options")}
	payload := map[string]int{"to": 7}
	parent := must(kind.Enqueue(ctx, client, payload, tickr.Options{Delay: time.Hour}))(t)
	must(kind.Enqueue(ctx, client, payload, tickr.Options{
		ExecuteAt: time.Now().Add(time.Minute), ExpiresIn: 2 * time.Minute, MaxAttempts: 3, Timeout: time.Minute,
		Priority: tickr.Int(0), UniqueKey: "u-" + suffix, OnConflict: "postpone", MaxWait: time.Minute, UniqueUntil: "start",
		LimitKey: "l-" + suffix, After: []string{parent.ID}, OnParentFailure: "run", Tags: []string{"a"},
		Retry:       &tickr.Retry{Delays: []time.Duration{time.Second}},
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}))(t)
	must(kind.Enqueue(ctx, client, payload, tickr.Options{
		Delay: time.Hour, ExpiresAt: time.Now().Add(2 * time.Hour), UniqueFields: []string{"/to"}, UniqueFor: time.Second,
		OrderKey: "o-" + suffix, OnFailure: "skip",
		Retry: &tickr.Retry{Base: time.Second, Factor: 2, Cap: time.Minute, Jitter: tickr.Float(0.1)},
	}))(t)
	unique := tickr.Options{Delay: time.Hour, UniqueKey: "order-7-" + suffix}
	first := must(kind.Enqueue(ctx, client, payload, unique))(t)
	if second := must(kind.Enqueue(ctx, client, payload, unique))(t); second.ID != first.ID || !second.Existing {
		t.Error(second)
	}
	unique.OnConflict = "reject"
	_, err := kind.Enqueue(ctx, client, payload, unique)
	var problem *tickr.Error
	isTaken := errors.As(err, &problem) && problem.Code == "unique_key_taken" && problem.Status == 409
	if !isTaken || problem.Holder != first.ID {
		t.Error(err)
	}
	if isDone := must(client.Cancel(ctx, first.ID))(t); !isDone {
		t.Error("a waiting job is cancelled at once")
	}
	if _, err := client.Cancel(ctx, first.ID); !tickr.HasCode(err, "wrong_state") {
		t.Error(err)
	}
	once := tickr.Options{Delay: time.Hour, IdempotencyKey: "once-" + suffix}
	one, again := must(kind.Enqueue(ctx, client, payload, once))(t), must(kind.Enqueue(ctx, client, payload, once))(t)
	if one.ID != again.ID {
		t.Error("the same request was carried out twice")
	}
	if _, err := kind.Enqueue(ctx, client, map[string]int{"to": 8}, once); !tickr.HasCode(err, "idempotency_conflict") {
		t.Error(err)
	}
	chain := []tickr.Job{
		kind.Job(payload, tickr.Options{Delay: time.Hour}), kind.Job(payload, tickr.Options{AfterPositions: []int{0}}),
	}
	if receipts := must(client.EnqueueMany(ctx, "", chain...))(t); len(receipts) != 2 {
		t.Error(receipts)
	}
	chain[1].Kind = "go-" + suffix + ".missing"
	if _, err := client.EnqueueMany(ctx, "", chain...); !tickr.HasCode(err, "unknown_kind") {
		t.Error(err)
	}
}

func TestVerdictsOfAHandlerHaveTheirEffectOnTheJob(t *testing.T) {
	client := connect(t)
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[string, string]{Name: declare(t, "verdicts")}
	var seen sync.Map
	run(t, kind, func(_ context.Context, how string, attempt *tickr.Attempt) (string, error) {
		if _, is := seen.LoadOrStore(how, true); is {
			var began string
			_, err := attempt.Checkpoint(&began)
			return fmt.Sprint(attempt.Attempt, " ", began), err
		}
		attempt.Log("the first attempt: %s", how)
		if err := attempt.SaveCheckpoint(how); err != nil {
			return "", err
		}
		switch how {
		case "failed":
			return "", tickr.FailAfter(time.Millisecond, errors.New("no"))
		case "panics":
			panic("at the wall")
		case "rejected":
			return "", tickr.Rejectf("never")
		case "snoozed":
			return "", tickr.Snooze(time.Millisecond, "busy")
		}
		return "", tickr.Release("later")
	})
	for how, want := range map[string]string{
		"failed": "completed \"2 failed\" failed:no", "panics": "completed \"2 panics\" failed:panic: at the wall",
		"rejected": "failed null rejected:never", "snoozed": "completed \"1 snoozed\" snoozed:busy",
		"released": "completed \"1 released\" interrupted:later",
	} {
		job := must(kind.Enqueue(ctx, client, how, tickr.Options{}))(t)
		ended := must(client.Wait(ctx, job.ID))(t)
		first := must(client.Get(ctx, job.ID))(t).Attempts[0]
		got := fmt.Sprintf("%s %s %s:%s", ended.State, ended.Result, *first.Verdict, *first.Error)
		if got != want {
			t.Error(got)
		}
		status, log := request(t, "GET", "/v1/jobs/"+job.ID+"/attempts/1/log", nil)
		if status != 200 || !strings.Contains(log, "INFO  the first attempt: "+how) {
			t.Error(status, log)
		}
	}
}

type row struct {
	Row int `json:"row"`
}

func TestJobsFollowASuccessWithTheirOptionsAndExistExactlyIfItCounts(t *testing.T) {
	client := connect(t)
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[string, string]{Name: declare(t, "parent")}
	follower := tickr.Kind[row, any]{Name: declare(t, "follower")}
	later := tickr.FollowUpOptions{
		Delay: time.Hour, ExpiresIn: 2 * time.Hour, MaxAttempts: 2, Timeout: 30 * time.Second, Priority: tickr.Int(1),
		OrderKey: "order-" + suffix, OnFailure: "skip", LimitKey: "limit-" + suffix, Queue: follower.Name + ".later",
		Retry: &tickr.Retry{Delays: []time.Duration{100 * time.Millisecond}}, Tags: []string{"a", "b"}, InBatch: true,
	}
	run(t, kind, func(_ context.Context, how string, attempt *tickr.Attempt) (string, error) {
		if err := follower.Then(attempt, row{attempt.Attempt * 10}, later); err != nil {
			return "", err
		}
		at := tickr.FollowUpOptions{ExecuteAt: time.Now().Add(time.Hour)}
		if err := follower.Then(attempt, row{attempt.Attempt*10 + 1}, at); err != nil {
			return "", err
		}
		if how == "refused" {
			return "", attempt.Then("go-"+suffix+".missing", nil, tickr.FollowUpOptions{})
		}
		if attempt.Attempt == 1 {
			return "", errors.New("once")
		}
		return "sent", nil
	})
	followers := func() map[int]*tickr.JobView {
		status, body := request(t, "GET", "/v1/jobs?q=kind:"+follower.Name, nil)
		var page struct {
			Data []struct{ ID string }
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 {
			t.Fatal(status, body)
		}
		found := map[int]*tickr.JobView{}
		for _, one := range page.Data {
			view := must(client.Get(ctx, one.ID))(t)
			var payload row
			if err := json.Unmarshal(view.Payload, &payload); err != nil {
				t.Fatal(err)
			}
			found[payload.Row] = view
		}
		return found
	}
	job := must(kind.Enqueue(ctx, client, "refused", tickr.Options{MaxAttempts: 1}))(t)
	ended := must(client.Wait(ctx, job.ID))(t)
	if ended.State != tickr.Failed || !strings.Contains(ended.LastError, "follow_ups/2/kind") || len(followers()) != 0 {
		t.Error(ended, len(followers()))
	}
	job = must(kind.Enqueue(ctx, client, "once", tickr.Options{}))(t)
	if result := must(kind.Wait(ctx, client, job.ID))(t); result != "sent" {
		t.Error(result)
	}
	found := followers()
	if len(found) != 2 || found[20] == nil || found[21] == nil {
		t.Fatal(found)
	}
	one := found[20]
	got := fmt.Sprint(one.Queue, one.Priority, one.MaxAttempts, one.OrderKey, one.LimitKey, one.Tags)
	want := fmt.Sprint(later.Queue, 1, 2, later.OrderKey, later.LimitKey, later.Tags)
	if got != want || !strings.Contains(string(one.Raw), `"timeout_ms":30000`) {
		t.Error(string(one.Raw))
	}
	if found[21].Queue != follower.Name {
		t.Error(string(found[21].Raw))
	}
	for _, view := range found {
		if time.Until(view.ExecuteAt) < 59*time.Minute {
			t.Error(view.ExecuteAt)
		}
	}
}

func TestWithAKeyOfTheScopeWorkAloneNoJobFollowsAndTheErrorSaysSo(t *testing.T) {
	client := connect(t)
	if os.Getenv("TICKR_TOKEN") == "" {
		t.Skip("TICKR_TOKEN is not set: it has the scope admin")
	}
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[any, any]{Name: declare(t, "keys")}
	follower := declare(t, "keys-follower")
	key := func(scope string) string {
		status, body := request(t, "PUT", "/v1/api-keys/go-"+suffix+"-"+scope, map[string]string{"scope": scope})
		var made struct{ Token string }
		if err := json.Unmarshal([]byte(body), &made); err != nil || made.Token == "" {
			t.Fatal(status, body)
		}
		return made.Token
	}
	work := key("work")
	enqueues := must(tickr.NewClient(tickr.Config{Token: key("enqueue")}))(t)
	handler := func(_ context.Context, _ any, attempt *tickr.Attempt) (any, error) {
		return nil, attempt.Then(follower, nil, tickr.FollowUpOptions{})
	}
	end := func(second *tickr.Client) *tickr.Ended {
		stop := run(t, kind, handler, func(c *tickr.WorkerConfig) { c.Token, c.Client = work, second })
		defer stop()
		job := must(kind.Enqueue(ctx, client, nil, tickr.Options{MaxAttempts: 1}))(t)
		return must(client.Wait(ctx, job.ID))(t)
	}
	alone := end(nil)
	isClear := strings.Contains(alone.LastError, "the server refuses the verdict succeeded: follow_ups") &&
		strings.Contains(alone.LastError, "scope")
	if alone.State != tickr.Failed || !isClear {
		t.Error(alone.State, alone.LastError)
	}
	if both := end(enqueues); both.State != tickr.Completed {
		t.Error(both.State, both.LastError)
	}
}

func TestProgressIsShownAndACancelReachesTheHandler(t *testing.T) {
	client := connect(t)
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[any, any]{Name: declare(t, "waits")}
	var cause atomic.Value
	run(t, kind, func(ctx context.Context, _ any, attempt *tickr.Attempt) (any, error) {
		attempt.Progress(40, "second pass")
		err := attempt.Sleep(ctx, time.Minute)
		cause.Store(attempt.Cause().Error())
		return nil, err
	})
	job := must(kind.Enqueue(ctx, client, nil, tickr.Options{}))(t)
	var view *tickr.JobView
	until(t, "progress is shown", func() bool {
		view = must(client.Get(ctx, job.ID))(t)
		return view.Progress != nil
	})
	if view.Progress.Percent != 40 || view.Progress.Note != "second pass" {
		t.Error(string(view.Raw))
	}
	if isDone := must(client.Cancel(ctx, job.ID))(t); isDone {
		t.Error("a handler that runs is asked to stop")
	}
	ended := must(client.Wait(ctx, job.ID))(t)
	if ended.State != tickr.Cancelled || cause.Load() != tickr.ErrCancelled.Error() {
		t.Error(ended.State, cause.Load())
	}
	options := tickr.Options{Timeout: 300 * time.Millisecond, MaxAttempts: 1}
	job = must(kind.Enqueue(ctx, client, nil, options))(t)
	if ended := must(client.Wait(ctx, job.ID))(t); ended.LastError != tickr.ErrDeadline.Error() {
		t.Error(ended)
	}
}

func TestAHandlerThatBlocksForLongerThanTheLeaseKeepsItsJob(t *testing.T) {
	client := connect(t)
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[any, string]{Name: declare(t, "blocks")}
	run(t, kind, func(context.Context, any, *tickr.Attempt) (string, error) {
		time.Sleep(11500 * time.Millisecond)
		return "blocked", nil
	})
	job := must(kind.Enqueue(ctx, client, nil, tickr.Options{}))(t)
	if result := must(kind.Wait(ctx, client, job.ID))(t); result != "blocked" {
		t.Error(result)
	}
	if view := must(client.Get(ctx, job.ID))(t); len(view.Attempts) != 1 {
		t.Error(string(view.Raw))
	}
}

func TestAWorkerThatStopsGivesItsJobBack(t *testing.T) {
	client := connect(t)
	ctx := within(t, 30*time.Second)
	kind := tickr.Kind[any, int]{Name: declare(t, "handed")}
	var runs int32
	stop := run(t, kind, func(ctx context.Context, _ any, attempt *tickr.Attempt) (int, error) {
		atomic.AddInt32(&runs, 1)
		return 0, attempt.Sleep(ctx, time.Minute)
	})
	job := must(kind.Enqueue(ctx, client, nil, tickr.Options{}))(t)
	until(t, "the first worker has the job", func() bool { return atomic.LoadInt32(&runs) == 1 })
	stop()
	run(t, kind, func(_ context.Context, _ any, attempt *tickr.Attempt) (int, error) { return attempt.Attempt, nil })
	if attempt := must(kind.Wait(ctx, client, job.ID))(t); attempt != 1 {
		t.Error("an attempt was used")
	}
}
