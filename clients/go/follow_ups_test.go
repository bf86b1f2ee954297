package tickr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

type letter struct {
	To string `json:"to"`
}

var sendLetter = Kind[letter, any]{Name: "mail"}

func TestEveryOptionOfAFollowUpHasItsNameInTheAPI(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 1_000_001, time.UTC)
	job, err := newFollowUp("mail", letter{To: "<ü>"}, FollowUpOptions{
		Queue: "q", ExecuteAt: at, Delay: time.Second, ExpiresIn: time.Minute, MaxAttempts: 2, Timeout: time.Hour,
		Priority: Int(0), OrderKey: "o", OnFailure: "skip", LimitKey: "l", Retry: &Retry{Delays: []time.Duration{1}},
		Tags: []string{"a"}, InBatch: true,
	})
	want := `{"delay_ms":1000,"execute_at":"2026-12-01T10:00:00.002Z","expires_in_ms":60000,"in_batch":true,` +
		`"kind":"mail","limit_key":"l","max_attempts":2,"on_failure":"skip","order_key":"o","payload":{"to":"<ü>"},` +
		`"priority":0,"queue":"q","retry":{"delays_ms":[1]},"tags":["a"],"timeout_ms":3600000}`
	if err != nil || string(job.text) != want {
		t.Error(string(job.text), err)
	}
	job, err = newFollowUp("mail", nil, FollowUpOptions{})
	if err != nil || string(job.text) != `{"kind":"mail","payload":{}}` {
		t.Error(string(job.text), err)
	}
	if _, err = newFollowUp("mail", func() {}, FollowUpOptions{}); err == nil {
		t.Error("a payload without JSON")
	}
	jitter := FollowUpOptions{Retry: &Retry{Jitter: Float(math.NaN())}}
	if _, err = newFollowUp("mail", nil, jitter); err == nil {
		t.Error("an option without JSON")
	}
}

func TestJobsFollowASuccessAndNoOtherVerdict(t *testing.T) {
	server := newFake(t)
	client, err := NewClient(Config{URL: "http://elsewhere.invalid/x/," + server.URL + "/", Token: "may-enqueue"})
	if err != nil {
		t.Fatal(err)
	}
	change := func(c *WorkerConfig) {
		c.Slots, c.Token, c.Client = 1, "may-work", client
	}
	start(t, server, change, func(_ context.Context, payload work, attempt *Attempt) (any, error) {
		if payload.How == "plain" {
			return "sent", nil
		}
		if err := sendLetter.Then(attempt, letter{To: "ada"}, FollowUpOptions{Delay: 5 * time.Millisecond}); err != nil {
			return nil, err
		}
		if err := attempt.Then("log", json.RawMessage(`{"n":1.00000000000000000001}`), FollowUpOptions{}); err != nil {
			return nil, err
		}
		switch payload.How {
		case "fails":
			return nil, errors.New("no address")
		case "rejects":
			return nil, Rejectf("never")
		case "snoozes":
			return nil, Snooze(time.Second, "busy")
		case "gives back":
			return nil, Release("later")
		case "panics":
			panic("at the wall")
		case "wrong result":
			return func() {}, nil
		case "wrong payload":
			return nil, attempt.Then("mail", func() {}, FollowUpOptions{})
		}
		return "sent", nil
	})
	for _, way := range []string{
		"succeeds", "plain", "fails", "rejects", "snoozes", "gives back", "panics", "wrong result", "wrong payload",
	} {
		verdict := server.verdict(t, server.add("test.work", how(way), ""))
		calls := server.of("finish")
		last := calls[len(calls)-1]
		right := last.header.Get("tickr-enqueue-authorization")
		if last.header.Get("authorization") != "Bearer may-work" {
			t.Error(way, "has another key")
		}
		if way != "succeeds" {
			if _, has := verdict["follow_ups"]; has || right != "" {
				t.Error(way, "has jobs that follow:", last.text, right)
			}
			continue
		}
		want := `"follow_ups":[{"delay_ms":5,"kind":"mail","payload":{"to":"ada"}},` +
			`{"kind":"log","payload":{"n":1.00000000000000000001}}]`
		if !strings.Contains(last.text, want) || right != "Bearer may-enqueue" {
			t.Error(last.text, right)
		}
	}
}

func TestAtMostAThousandJobsFollowOne(t *testing.T) {
	const most = "tickr: at most 1,000 jobs follow one: let one of them enqueue the rest"
	for count, want := range map[int]string{1_000: "succeeded||1000", 1_001: "failed|" + most + "|0"} {
		outcome, err := RunAlone(context.Background(), func(_ context.Context, _ any, attempt *Attempt) (any, error) {
			for number := 0; number < count; number++ {
				if err := attempt.Then("mail", number, FollowUpOptions{}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, nil, AttemptInfo{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s|%s|%d", outcome.Verdict, outcome.Error, len(outcome.FollowUps)); got != want {
			t.Error(got)
		}
	}
}

func TestTheKeyOfAClientOfAnotherServerIsNotSentToThatOfTheWorker(t *testing.T) {
	server := newFake(t)
	client, err := NewClient(Config{URL: "http://elsewhere.invalid", Token: "of-another-server"})
	if err != nil {
		t.Fatal(err)
	}
	start(t, server, func(c *WorkerConfig) { c.Client = client }, func(
		_ context.Context, _ work, attempt *Attempt,
	) (any, error) {
		return "sent", attempt.Then("mail", nil, FollowUpOptions{})
	})
	verdict := server.verdict(t, server.add("test.work", `{}`, ""))
	want := "failed|<nil>|tickr: jobs that follow are enqueued by the server of the worker (" + server.URL + "), but " +
		"its client has other addresses (http://elsewhere.invalid): give the worker a client with its own, or use " +
		"Attempt.Client"
	if got := pick(verdict, "verdict", "follow_ups", "error"); got != want {
		t.Error(got)
	}
	for _, call := range server.of("finish") {
		if call.header.Get("tickr-enqueue-authorization") != "" {
			t.Error("the key was sent")
		}
	}
}

func TestAnAddressThatIsWrittenOtherwiseIsTheSame(t *testing.T) {
	for addresses, want := range map[[2]string]bool{
		{"http://A:80/x, https://b", "https://B:443/,http://c,http://a/x/"}: true,
		{"http://a,http://b", "http://a"}:                                   false,
		{"http://a", "https://a"}:                                           false,
		{"http://a/x", "http://a/X"}:                                        false,
		{"http://[::1]:7070", "http://[::1]:7070/"}:                         true,
	} {
		worker, err := newTransport(addresses[0], "")
		if err != nil {
			t.Fatal(err)
		}
		client, err := newTransport(addresses[1], "")
		if err != nil {
			t.Fatal(err)
		}
		if problem := noFollowUps(worker, client); (problem == nil) != want {
			t.Error(addresses, problem)
		}
	}
}

func TestASuccessWhoseJobsAreRefusedFailsItsAttempt(t *testing.T) {
	server := newFake(t)
	server.fate = func(call fakeCall) *fate {
		if call.what != "finish" || !strings.Contains(call.text, `"follow_ups":`) {
			return nil
		}
		token := call.body()["verdicts"].([]any)[0].(map[string]any)["token"]
		const errs = `[{"field":"follow_ups/0/kind","detail":"no kind is called so"}]`
		body := fmt.Sprintf(`{"results":[{"token":%q,"result":"refused","errors":%s}]}`, token, errs)
		return &fate{status: 200, body: body}
	}
	start(t, server, nil, func(_ context.Context, _ work, attempt *Attempt) (any, error) {
		attempt.Log("a line")
		return "sent", attempt.Then("no-kind", nil, FollowUpOptions{})
	})
	verdict := server.verdict(t, server.add("test.work", `{}`, ""))
	want := "failed|<nil>|<nil>|the server refuses the verdict succeeded: follow_ups/0/kind no kind is called so"
	if got := pick(verdict, "verdict", "result", "follow_ups", "error"); got != want {
		t.Error(got)
	}
}

func TestTheJobsThatFollowCountForTheSizeOfARequest(t *testing.T) {
	server := newFake(t)
	const workers = 4
	var together sync.WaitGroup
	together.Add(workers)
	start(t, server, nil, func(_ context.Context, _ work, attempt *Attempt) (any, error) {
		for row := 0; row < 100; row++ {
			if err := attempt.Then("mail", letter{To: strings.Repeat("ü", 500)}, FollowUpOptions{}); err != nil {
				return nil, err
			}
		}
		together.Done()
		together.Wait()
		return nil, nil
	})
	var tokens []string
	for number := 0; number < workers; number++ {
		tokens = append(tokens, server.add("test.work", `{}`, ""))
	}
	for _, token := range tokens {
		if jobs, _ := server.verdict(t, token)["follow_ups"].([]any); len(jobs) != 100 {
			t.Error(token, "has", len(jobs))
		}
	}
	for _, call := range server.of("finish") {
		if len(call.text) > bodyBytes+1_024 {
			t.Error("a request has", len(call.text))
		}
	}
}
