package tickr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

type work struct {
	How string `json:"how"`
}

var testWork = Kind[work, any]{Name: "test.work"}

// start runs a worker of the server until the end of the test.
func start(t *testing.T, server *fake, change func(*WorkerConfig), handler Handler[work, any]) (*Worker, func()) {
	t.Helper()
	t.Parallel()
	config := WorkerConfig{
		Config: Config{URL: server.URL}, Name: "test", Slots: 4, Wait: time.Second, Grace: time.Millisecond, Logf: t.Logf,
	}
	if change != nil {
		change(&config)
	}
	worker, err := NewWorker(config)
	if err != nil {
		t.Fatal(err)
	}
	Handle(worker, testWork, handler)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return worker, stop
}

func pick(verdict map[string]any, names ...string) string {
	var values []string
	for _, name := range names {
		values = append(values, fmt.Sprint(verdict[name]))
	}
	return strings.Join(values, "|")
}

func how(how string) string { return fmt.Sprintf(`{"how":%q}`, how) }

type customError struct{}

func (*customError) Error() string { return "of a type" }

type brokenError struct{}

func (brokenError) Error() string { panic("no text") }

type brokenResult struct{}

func (brokenResult) MarshalJSON() ([]byte, error) { panic("no JSON") }

func TestAPanicBehindAHandlerFailsItsAttemptAndNotTheProcess(t *testing.T) {
	server := newFake(t)
	start(t, server, func(config *WorkerConfig) { config.Slots = 1 }, func(
		_ context.Context, payload work, _ *Attempt,
	) (any, error) {
		switch payload.How {
		case "error":
			return nil, brokenError{}
		case "panic":
			panic(brokenError{})
		case "result":
			return brokenResult{}, nil
		case "nil":
			panic(nil)
		case "exit":
			runtime.Goexit()
		}
		return "fine", nil
	})
	const unreadable = "failed|what the handler returned cannot be read: panic: "
	for _, each := range [][2]string{
		{"error", unreadable + "no text"},
		{"panic", unreadable + "no text"},
		{"result", unreadable + "no JSON"},
		{"nil", "failed|panic: <nil>"},
		{"exit", "failed|the handler ended its goroutine"},
		{"value", "succeeded|<nil>"},
	} {
		verdict := server.verdict(t, server.add("test.work", how(each[0]), ""))
		if got := pick(verdict, "verdict", "error"); got != each[1] {
			t.Errorf("%s: %s", each[0], got)
		}
	}
}

func TestEveryWayToEndAHandlerBecomesItsVerdict(t *testing.T) {
	server := newFake(t)
	start(t, server, nil, func(_ context.Context, payload work, attempt *Attempt) (any, error) {
		switch payload.How {
		case "value":
			return map[string]int64{"big": 9223372036854775807}, nil
		case "nothing":
			return nil, nil
		case "error":
			return nil, errors.New("plain")
		case "wrapped":
			return nil, fmt.Errorf("while x: %w", &customError{})
		case "typed":
			return nil, &customError{}
		case "after":
			return nil, FailAfter(1500*time.Microsecond, errors.New("later"))
		case "rejected":
			return nil, fmt.Errorf("chain: %w", Rejectf("never %d", 1))
		case "snoozed":
			return nil, Snooze(2*time.Second, "busy")
		case "released":
			return nil, Release("later")
		case "panic":
			panic("at the wall")
		case "long":
			return nil, errors.New(strings.Repeat("é", 3_000))
		case "empty":
			return nil, errors.New(" ")
		case "large":
			return strings.Repeat("x", 300_000), nil
		case "unwritable":
			return make(chan int), nil
		default:
			return "<" + payload.How + ">", nil
		}
	})
	for name, want := range map[string]string{
		"nothing":    "succeeded|<nil>|<nil>|<nil>",
		"error":      "failed|<nil>|plain|<nil>",
		"wrapped":    "failed|<nil>|while x: of a type|<nil>",
		"typed":      "failed|<nil>|tickr.customError: of a type|<nil>",
		"after":      "failed|<nil>|later|2",
		"rejected":   "rejected|<nil>|chain: never 1|<nil>",
		"snoozed":    "snoozed|<nil>|busy|2000",
		"released":   "released|<nil>|later|<nil>",
		"panic":      "failed|<nil>|panic: at the wall|<nil>",
		"long":       "failed|<nil>|" + strings.Repeat("é", 2_000) + "|<nil>",
		"empty":      "failed|<nil>|an error without a text|<nil>",
		"large":      "failed|<nil>|the result has 300002 bytes, and at most 262144 are possible|<nil>",
		"unwritable": "failed|<nil>|the result cannot be written as JSON: json: unsupported type: chan int|<nil>",
		"text":       "succeeded|<text>|<nil>|<nil>",
	} {
		verdict := server.verdict(t, server.add("test.work", how(name), ""))
		if got := pick(verdict, "verdict", "result", "error", "delay_ms"); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if name == "panic" && !strings.Contains(fmt.Sprint(verdict["log"]), "worker_test.go") {
			t.Error("the log of a panic has no stack")
		}
	}
	server.verdict(t, server.add("test.work", how("value"), ""))
	calls := server.of("finish")
	if last := calls[len(calls)-1].text; !strings.Contains(last, `"result":{"big":9223372036854775807}`) {
		t.Error(last)
	}
	verdict := server.verdict(t, server.add("test.work", `[]`, ""))
	if got := pick(verdict, "verdict"); got != "rejected" {
		t.Error("a payload of another type:", got)
	}
}

func TestAFetchWhoseAnswerIsLostIsSentAgainAndNoJobIsExecutedTwice(t *testing.T) {
	server := newFake(t)
	lost := 0
	server.fate = func(call fakeCall) *fate {
		if call.what == "fetch" && lost < 2 {
			lost++
			return &fate{lost: true}
		}
		return nil
	}
	var runs int32
	token := server.add("test.work", `{}`, "")
	start(t, server, nil, func(context.Context, work, *Attempt) (any, error) {
		atomic.AddInt32(&runs, 1)
		return nil, nil
	})
	server.verdict(t, token)
	fetches := server.of("fetch")
	if fetches[0].text != fetches[1].text || fetches[1].text != fetches[2].text {
		t.Error("the body has changed")
	}
	// A server that hands a token out again, twice in one answer and after its end.
	server.addAgain(token, "test.work", `{}`, "")
	server.addAgain(token, "test.work", `{}`, "")
	server.verdict(t, server.add("test.work", `{}`, ""))
	if n := atomic.LoadInt32(&runs); n != 2 {
		t.Errorf("%d runs", n)
	}
}

func TestEveryTokenStaysInHoldingUntilItsVerdictIsAnswered(t *testing.T) {
	server := newFake(t)
	lost := 0
	server.fate = func(call fakeCall) *fate {
		if call.what == "finish" && lost < 2 {
			lost++
			return &fate{lost: true}
		}
		return nil
	}
	open := make(chan struct{})
	start(t, server, nil, func(_ context.Context, payload work, _ *Attempt) (any, error) {
		if payload.How == "waits" {
			<-open
		}
		return nil, nil
	})
	held := server.add("test.work", how("waits"), "")
	server.runs(t, held)
	token := server.add("test.work", how("ends"), "")
	server.until(t, "the verdict is answered", func() bool { return len(server.ofLocked("finish")) == 3 })
	finishes := server.of("finish")
	if finishes[0].text != finishes[2].text {
		t.Error("another body")
	}
	for _, call := range append(server.of("fetch"), server.of("beat")...) {
		if call.at.After(finishes[0].at) && call.at.Before(finishes[2].at) && !strings.Contains(call.text, `"`+token+`"`) {
			t.Errorf("%s without the unanswered token: %s", call.what, call.text)
		}
	}
	server.until(t, "a beat without the settled token", func() bool {
		for _, call := range server.ofLocked("beat") {
			if call.at.After(finishes[2].at) && !strings.Contains(call.text, `"`+token+`"`) {
				return strings.Contains(call.text, `"`+held+`"`)
			}
		}
		return false
	})
	for _, call := range server.of("fetch") {
		body := call.body()
		if body["slots"].(float64)+float64(len(body["holding"].([]any))) > 4 {
			t.Error("more jobs than slots:", call.text)
		}
	}
	close(open)
	server.verdict(t, held)
}

func TestACancelALossAndTheTimeLimitEndTheContext(t *testing.T) {
	server := newFake(t)
	causes := make(chan error, 3)
	one := func(c *WorkerConfig) { c.Slots = 1 }
	start(t, server, one, func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		if payload.How == "" {
			return nil, nil
		}
		<-ctx.Done()
		causes <- attempt.Cause()
		if payload.How == "ignores" {
			return "done", nil
		}
		return nil, ctx.Err()
	})
	for _, name := range []string{"waits", "ignores"} {
		token := server.add("test.work", how(name), "")
		server.runs(t, token)
		server.locked(func() { server.cancel[token] = true })
		want := "failed|the server asked the attempt to stop|<nil>"
		if got := pick(server.verdict(t, token), "verdict", "error", "result"); got != want || <-causes != ErrCancelled {
			t.Error(got)
		}
	}
	verdict := server.verdict(t, server.add("test.work", how("waits"), `,"timeout_ms":100`))
	got := pick(verdict, "verdict", "error")
	if got != "failed|the time limit of the attempt is over" || <-causes != ErrDeadline {
		t.Error(got)
	}
	token := server.add("test.work", how("waits"), "")
	server.runs(t, token)
	server.locked(func() { server.lost[token] = true })
	server.verdict(t, server.add("test.work", how(""), ""))
	if <-causes != ErrLost {
		t.Error("another cause than the loss")
	}
	server.locked(func() {
		if server.verdicts[token] != nil {
			t.Error("a lost attempt got a verdict")
		}
	})
}

func TestAHandlerStopsBeforeItsLeaseEndsWhenNoHeartbeatIsAnswered(t *testing.T) {
	for name, refusal := range map[string]*fate{
		"401": {status: 401, code: "unauthorized"}, "stray": {status: 200, body: "{}"}, "hangs up": {refused: true},
	} {
		refusal := refusal
		t.Run(name, func(t *testing.T) { stopsBeforeItsLeaseEnds(t, refusal) })
	}
}

func stopsBeforeItsLeaseEnds(t *testing.T, refusal *fate) {
	const lease, slack = 2 * time.Second, 5 * time.Second
	server := newFake(t)
	server.leaseMS = int(lease.Milliseconds())
	causes, open := make(chan error, 3), make(chan struct{})
	start(t, server, nil, func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		<-ctx.Done()
		causes <- attempt.Cause()
		switch payload.How {
		case "gives up":
			return nil, ctx.Err()
		case "goes on":
			<-open
		}
		return "done", nil
	})
	givesUp := server.add("test.work", how("gives up"), "")
	completes := server.add("test.work", how("completes"), "")
	goesOn := server.add("test.work", how("goes on"), "")
	for _, token := range []string{givesUp, completes, goesOn} {
		server.runs(t, token)
	}
	var last time.Time
	server.locked(func() {
		beats := server.ofLocked("beat")
		last = beats[len(beats)-1].at
		server.fate = func(call fakeCall) *fate {
			if call.what == "beat" {
				return refusal
			}
			return nil
		}
	})
	if got := pick(server.verdict(t, givesUp), "verdict"); got != "released" {
		t.Error(got)
	}
	if got := pick(server.verdict(t, completes), "verdict", "result"); got != "succeeded|done" {
		t.Error(got)
	}
	for range [3]int{} {
		if cause := <-causes; cause != ErrLost {
			t.Error(cause)
		}
	}
	stopped := time.Now()
	if took := stopped.Sub(last); took > lease+slack {
		t.Errorf("stopped %s after the last answered heartbeat", took)
	}
	server.until(t, "a heartbeat that lists the attempt whose handler goes on", func() bool {
		beats := server.ofLocked("beat")
		newest := beats[len(beats)-1]
		return newest.at.After(stopped) && strings.Contains(newest.text, `"`+goesOn+`"`)
	})
	server.locked(func() { server.fate = nil })
	close(open)
	if got := pick(server.verdict(t, goesOn), "verdict", "result"); got != "succeeded|done" {
		t.Error(got)
	}
}

func TestAHandlerWhoseHeartbeatsAreAnsweredRunsForLongerThanTheLease(t *testing.T) {
	server := newFake(t)
	server.leaseMS = 3_000
	open := make(chan struct{})
	start(t, server, nil, func(ctx context.Context, _ work, _ *Attempt) (any, error) {
		select {
		case <-open:
			return "done", nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	token := server.add("test.work", `{}`, "")
	server.runs(t, token)
	over := time.Now().Add(3_500 * time.Millisecond)
	server.until(t, "a heartbeat after the first lease", func() bool {
		beats := server.ofLocked("beat")
		return beats[len(beats)-1].at.After(over)
	})
	close(open)
	if got := pick(server.verdict(t, token), "verdict", "result", "error"); got != "succeeded|done|<nil>" {
		t.Error(got)
	}
}

func TestTheLeaseOfANewAttemptHoldsFromTheTimeOfItsClaim(t *testing.T) {
	const lease = time.Minute
	took := func(ms int64) *int64 { return &ms }
	now := clock()
	ago := func(d time.Duration) time.Duration { return now - d }
	for name, one := range map[string]struct {
		tries    sending
		took     *int64
		expected time.Duration
	}{
		"a heartbeat that did not list it renews nothing": {
			sending{first: ago(time.Hour), last: ago(time.Hour)}, took(3_590_000), ago(10 * time.Second),
		},
		"a long request brings it with a new lease": {
			sending{first: ago(time.Hour), last: ago(time.Hour)}, took(3_600_000), now,
		},
		"a repeated request may have claimed it a quarter of the lease before": {
			sending{ago(time.Hour), ago(10 * time.Second), true}, took(0), ago(25 * time.Second),
		},
		"no request claims before it is sent": {
			sending{ago(12 * time.Second), ago(10 * time.Second), true}, took(0), ago(12 * time.Second),
		},
		"an older process does not say when it answered": {
			sending{first: ago(time.Hour), last: ago(time.Hour)}, nil, ago(5 * time.Second),
		},
	} {
		worker, err := NewWorker(WorkerConfig{Logf: func(string, ...any) {}})
		if err != nil {
			t.Fatal(err)
		}
		worker.lease, worker.beatEvery, worker.renewed = lease, lease/3, ago(5*time.Second)
		worker.deliver(fetched{Jobs: &[]fetchedJob{{Token: "new"}}, TookMS: one.took}, one.tries)
		worker.mu.Lock()
		got := worker.held["new"].renewed
		worker.mu.Unlock()
		if wrong := got - one.expected; wrong < -4*time.Second || wrong > 4*time.Second {
			t.Errorf("%s: %s off", name, wrong)
		}
	}
}

func TestASuccessThatDoesNotComeFromTickrIsNoAnswerToAFetchOrAHeartbeat(t *testing.T) {
	server := newFake(t)
	fetches, reports := 0, 0
	server.fate = func(call fakeCall) *fate {
		isReport := call.what == "beat" && strings.Contains(call.text, "checkpoint")
		if call.what == "fetch" {
			fetches++
		}
		if isReport {
			reports++
		}
		if call.what == "fetch" && fetches <= 4 || isReport && reports <= 2 {
			return &fate{status: 200, body: `{"ok":true}`}
		}
		return nil
	}
	start(t, server, nil, func(ctx context.Context, _ work, attempt *Attempt) (any, error) {
		if err := attempt.SaveCheckpoint(9); err != nil {
			return nil, err
		}
		return nil, attempt.CheckpointSaved(ctx)
	})
	if got := pick(server.verdict(t, server.add("test.work", `{}`, "")), "verdict"); got != "succeeded" {
		t.Error(got)
	}
	server.locked(func() {
		if reports < 3 {
			t.Errorf("the checkpoint counts as saved after %d strays", reports)
		}
	})
	asked := server.of("fetch")
	if asked[0].text != asked[4].text {
		t.Error("the request is not repeated")
	}
	if took := asked[4].at.Sub(asked[0].at); took < 500*time.Millisecond {
		t.Errorf("four repetitions within %s", took)
	}
}

func TestACheckpointThatTheServerRefusesIsNotSavedAndIsLogged(t *testing.T) {
	for name, refusal := range map[string]func(token string) *fate{
		"alone": func(token string) *fate {
			refused := fmt.Sprintf(`{"token":%q,"field":"checkpoint","detail":"invalid_request: no"}`, token)
			return &fate{status: 200, body: `{"cancel":[],"lost":[],"refused":[` + refused + `]}`}
		},
		"with its heartbeat": func(string) *fate { return &fate{status: 422, code: "invalid_request"} },
	} {
		refusal := refusal
		t.Run(name, func(t *testing.T) {
			server := newFake(t)
			token := server.add("test.work", `{}`, "")
			server.fate = func(call fakeCall) *fate {
				if call.what == "beat" && strings.Contains(call.text, "checkpoint") {
					return refusal(token)
				}
				return nil
			}
			start(t, server, nil, func(ctx context.Context, _ work, attempt *Attempt) (any, error) {
				if err := attempt.SaveCheckpoint(9); err != nil {
					return nil, err
				}
				return nil, attempt.CheckpointSaved(ctx)
			})
			verdict := server.verdict(t, token)
			const why = "failed|the server refuses the checkpoint: invalid_request: no"
			if got := pick(verdict, "verdict", "error"); got != why {
				t.Error(got)
			}
			log := fmt.Sprint(verdict["log"])
			if !strings.Contains(log, "refuses a report: checkpoint invalid_request: no") {
				t.Error(log)
			}
		})
	}
}

func TestProgressAndCheckpointReachTheServerBeforeTheVerdict(t *testing.T) {
	server := newFake(t)
	server.beatMS = 60_000
	start(t, server, nil, func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		var began int
		if has, err := attempt.Checkpoint(&began); !has || err != nil || began != 7 {
			return nil, fmt.Errorf("%v %v %d", has, err, began)
		}
		attempt.Progress(142, "half\nway")
		if err := attempt.SaveCheckpoint(map[string]int64{"row": 9223372036854775807}); err != nil {
			return nil, err
		}
		if payload.How == "large" {
			return nil, attempt.SaveCheckpoint(strings.Repeat("x", 70_000))
		}
		if payload.How == "saved" {
			return nil, attempt.CheckpointSaved(ctx)
		}
		return nil, errors.New("later")
	})
	for name, want := range map[string]string{
		"saved": "succeeded|<nil>", "fails": "failed|later",
		"large": "failed|the checkpoint has 70002 bytes, and at most 65536 are possible",
	} {
		token := server.add("test.work", how(name), `,"checkpoint":7`)
		if got := pick(server.verdict(t, token), "verdict", "error"); got != want {
			t.Error(got)
		}
		report := fmt.Sprintf(`"token":%q,"percent":100,"note":"half way","checkpoint":{"row":9223372036854775807}`, token)
		isReported := false
		for _, call := range server.of("beat") {
			finish := server.of("finish")
			isReported = isReported || strings.Contains(call.text, report) && call.at.Before(finish[len(finish)-1].at)
		}
		if !isReported {
			t.Error("no beat with", report)
		}
	}
}

func TestEveryHeartbeatListsEveryTokenHoweverLargeTheCheckpointsAre(t *testing.T) {
	server := newFake(t)
	const count = 6
	for n := 0; n < count; n++ {
		server.add("test.work", how("saves"), "")
	}
	open := make(chan struct{})
	defer close(open)
	all := func(c *WorkerConfig) { c.Slots = count }
	start(t, server, all, func(_ context.Context, _ work, attempt *Attempt) (any, error) {
		if err := attempt.SaveCheckpoint(strings.Repeat("x", 60_000)); err != nil {
			return nil, err
		}
		<-open
		return nil, nil
	})
	saved := map[string]bool{}
	server.until(t, "a beat with each checkpoint", func() bool {
		for _, call := range server.ofLocked("beat") {
			for _, one := range call.body()["holding"].([]any) {
				held := one.(map[string]any)
				if held["checkpoint"] != nil {
					saved[held["token"].(string)] = true
				}
			}
		}
		return len(saved) == count
	})
	for _, call := range server.of("beat") {
		listed := len(call.body()["holding"].([]any))
		if strings.Contains(call.text, "checkpoint") && listed != count || len(call.text) > 256<<10 {
			t.Errorf("a beat of %d bytes lists %d of %d attempts", len(call.text), listed, count)
		}
	}
}

func TestEveryCheckpointIsSavedBehindAProxyThatTakesOnlySmallHeartbeats(t *testing.T) {
	server := newFake(t)
	const count = 3
	saved := map[string]bool{}
	server.fate = func(call fakeCall) *fate {
		if call.what != "beat" {
			return nil
		}
		if strings.Count(call.text, `"checkpoint":`) > 1 {
			return &fate{status: 413, code: "too_large"}
		}
		for _, one := range call.body()["holding"].([]any) {
			if held := one.(map[string]any); held["checkpoint"] != nil {
				saved[held["token"].(string)] = true
			}
		}
		return nil
	}
	var tokens []string
	for n := 0; n < count; n++ {
		tokens = append(tokens, server.add("test.work", how("saves"), ""))
	}
	var begun sync.WaitGroup
	begun.Add(count)
	start(t, server, func(c *WorkerConfig) { c.Slots = count }, func(
		ctx context.Context, _ work, attempt *Attempt,
	) (any, error) {
		begun.Done()
		begun.Wait()
		if err := attempt.SaveCheckpoint(strings.Repeat("x", 40_000)); err != nil {
			return nil, err
		}
		return nil, attempt.CheckpointSaved(ctx)
	})
	for _, token := range tokens {
		if got := pick(server.verdict(t, token), "verdict"); got != "succeeded" {
			t.Error(got)
		}
		server.locked(func() {
			if !saved[token] {
				t.Errorf("the checkpoint of %s was never sent alone", token)
			}
		})
	}
}

func TestWhatARowThatIsLockedHoldsUpIsSentAgainAndHoldsUpNoOther(t *testing.T) {
	server := newFake(t)
	locked := server.add("test.work", how("saves"), "")
	server.rows[locked] = true
	var isSaved atomic.Bool
	start(t, server, nil, func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		if payload.How == "saves" {
			if err := attempt.SaveCheckpoint(9); err != nil {
				return nil, err
			}
			if err := attempt.CheckpointSaved(ctx); err != nil {
				return nil, err
			}
			isSaved.Store(true)
		}
		return nil, nil
	})
	const bare = "token-bare"
	server.locked(func() { server.rows[bare] = true })
	server.addAgain(bare, "test.work", how("plain"), "")
	count := func(what, part string) int {
		found := 0
		for _, call := range server.ofLocked(what) {
			if strings.Contains(call.text, part) {
				found++
			}
		}
		return found
	}
	server.until(t, "both were sent again", func() bool {
		return count("beat", `"checkpoint":9`) > 1 && count("finish", bare) > 1
	})
	if isSaved.Load() {
		t.Error("the checkpoint counts as saved")
	}
	if got := pick(server.verdict(t, server.add("test.work", how("plain"), "")), "verdict"); got != "succeeded" {
		t.Error(got)
	}
	server.locked(func() { server.rows = map[string]bool{} })
	for _, token := range []string{locked, bare} {
		if got := pick(server.verdict(t, token), "verdict"); got != "succeeded" {
			t.Error(got)
		}
	}
}

func TestTheLogKeepsTheNewestLines(t *testing.T) {
	server := newFake(t)
	start(t, server, nil, func(_ context.Context, _ work, attempt *Attempt) (any, error) {
		for line := 0; line < 2_000; line++ {
			attempt.Log("line %d", line)
		}
		attempt.Log("%s", strings.Repeat("é", 5_000))
		attempt.LogError("one\ntwo \x1b[31m")
		return nil, nil
	})
	text := fmt.Sprint(server.verdict(t, server.add("test.work", `{}`, ""))["log"])
	lines := strings.Split(text, "\n")
	if len(text) > 16<<10 || len(text) < 15_000 || !strings.HasSuffix(lines[0], "earlier lines were dropped)") {
		t.Error(len(text), lines[0])
	}
	end := lines[len(lines)-5:]
	if end[0][13:] != "INFO  line 1999" || len(end[1]) > 4_200 {
		t.Error(end)
	}
	if end[2][13:] != "ERROR one" || end[3][13:] != `ERROR two \u{1b}[31m` {
		t.Error(end)
	}
}

func TestAWorkerThatTheServerForgotRegistersAgainOnceAndGoesOn(t *testing.T) {
	server := newFake(t)
	open := make(chan struct{})
	start(t, server, nil, func(_ context.Context, payload work, _ *Attempt) (any, error) {
		if payload.How == "waits" {
			<-open
		}
		return nil, nil
	})
	held := server.add("test.work", how("waits"), "")
	server.runs(t, held)
	server.locked(func() { server.workers = map[string]bool{} })
	server.verdict(t, server.add("test.work", `{}`, ""))
	fetches := server.of("fetch")
	if !strings.Contains(fetches[len(fetches)-1].text, `"`+held+`"`) {
		t.Error("the new request does not list what the worker holds")
	}
	close(open)
	server.verdict(t, held)
	if n := len(server.of("workers")); n != 2 {
		t.Errorf("%d registrations", n)
	}
}

func TestAnAnswerThatWasLongOnItsWayStartsNoJobAndIsLogged(t *testing.T) {
	server := newFake(t)
	server.beatMS = 2_000
	server.more = `,"took_ms":0`
	lines := make(chan string, 100)
	change := func(c *WorkerConfig) {
		c.Wait = 10 * time.Second
		c.Logf = func(format string, values ...any) {
			select {
			case lines <- fmt.Sprintf(format, values...):
			default:
			}
		}
	}
	start(t, server, change, func(context.Context, work, *Attempt) (any, error) { return nil, nil })
	server.until(t, "a request for jobs", func() bool { return len(server.ofLocked("fetch")) == 1 })
	time.Sleep(1_600 * time.Millisecond)
	late := server.add("test.work", `{}`, "")
	server.until(t, "the next request", func() bool { return len(server.ofLocked("fetch")) == 2 })
	server.verdict(t, server.add("test.work", `{}`, ""))
	if text := server.of("fetch")[1].text; strings.Contains(text, late) {
		t.Error(text)
	}
	server.locked(func() {
		if server.verdicts[late] != nil {
			t.Error(server.verdicts[late])
		}
	})
	for {
		select {
		case line := <-lines:
			if line == "tickr: an answer with 1 jobs came late and counts as lost" {
				return
			}
		default:
			t.Fatal("the late answer is not logged")
		}
	}
}

func TestRetryAfterOfAFetchIsWaitedForAndBeatsGoOn(t *testing.T) {
	server := newFake(t)
	refused := false
	server.fate = func(call fakeCall) *fate {
		if call.what == "fetch" && !refused {
			refused = true
			return &fate{status: 503, code: "stopping", header: map[string]string{"retry-after": "1"}}
		}
		return nil
	}
	start(t, server, nil, func(context.Context, work, *Attempt) (any, error) { return nil, nil })
	server.verdict(t, server.add("test.work", `{}`, ""))
	fetches := server.of("fetch")
	if waited := fetches[1].at.Sub(fetches[0].at); waited < 990*time.Millisecond {
		t.Error(waited)
	}
	if n := len(server.of("beat")); n < 4 {
		t.Errorf("%d beats meanwhile", n)
	}
}

func TestWhenOneOfTwoAddressesIsGoneTheWorkerGoesOnAtTheOther(t *testing.T) {
	server := newFake(t)
	gone := httptest.NewServer(server)
	url := gone.URL
	gone.Close()
	change := func(c *WorkerConfig) { c.URL = url + "," + server.URL }
	start(t, server, change, func(context.Context, work, *Attempt) (any, error) { return nil, nil })
	server.verdict(t, server.add("test.work", `{}`, ""))
}

func TestADrainedWorkerGetsNothingAndGoesOnAsSoonAsItMay(t *testing.T) {
	server := newFake(t)
	server.drain = true
	start(t, server, nil, func(context.Context, work, *Attempt) (any, error) { return nil, nil })
	server.until(t, "the worker knows", func() bool { return len(server.ofLocked("beat")) > 1 })
	token := server.add("test.work", `{}`, "")
	server.locked(func() { server.drain = false })
	server.verdict(t, token)
	fetches := server.of("fetch")
	if waited := fetches[1].at.Sub(fetches[0].at); waited < 80*time.Millisecond {
		t.Error("asked again after", waited)
	}
}

func TestOneVerdictThatTheServerRefusesHoldsUpNoOther(t *testing.T) {
	server := newFake(t)
	server.fate = func(call fakeCall) *fate {
		if call.what == "finish" && strings.Contains(call.text, `"result":"wrong"`) {
			return &fate{status: 422, code: "invalid_request"}
		}
		return nil
	}
	var together sync.WaitGroup
	together.Add(3)
	start(t, server, nil, func(_ context.Context, payload work, attempt *Attempt) (any, error) {
		attempt.Log("a line")
		together.Done()
		together.Wait()
		return payload.How, nil
	})
	var got []string
	var tokens []string
	for _, name := range []string{"right", "wrong", "also"} {
		tokens = append(tokens, server.add("test.work", how(name), ""))
	}
	for _, token := range tokens {
		got = append(got, pick(server.verdict(t, token), "verdict", "error"))
	}
	want := "succeeded|<nil> failed|the server refuses the verdict succeeded: invalid_request: no succeeded|<nil>"
	if strings.Join(got, " ") != want {
		t.Error(got)
	}
}

func TestAStopLetsHandlersFinishGivesBackTheRestAndLeaves(t *testing.T) {
	server := newFake(t)
	server.beatMS = 60_000
	change := func(c *WorkerConfig) { c.Slots, c.Grace = 2, 700*time.Millisecond }
	never := make(chan struct{})
	defer close(never)
	_, stop := start(t, server, change, func(_ context.Context, payload work, attempt *Attempt) (any, error) {
		if err := attempt.SaveCheckpoint(1); err != nil {
			return nil, err
		}
		if payload.How == "endless" {
			<-never
		}
		time.Sleep(300 * time.Millisecond)
		return "finished", nil
	})
	short := server.add("test.work", how("short"), "")
	endless := server.add("test.work", how("endless"), "")
	server.runs(t, endless)
	late := server.add("test.work", `{}`, "")
	stop()
	if got := pick(server.verdict(t, short), "verdict", "result"); got != "succeeded|finished" {
		t.Error(got)
	}
	if got := pick(server.verdict(t, endless), "verdict"); got != "released" {
		t.Error(got)
	}
	server.locked(func() {
		last := server.calls[len(server.calls)-1].what
		if server.verdicts[late] != nil || last != "leave" || len(server.ofLocked("leave")) != 1 {
			t.Error("the end is wrong")
		}
	})
}

func TestAWorkerThatMayNotRegisterSaysWhy(t *testing.T) {
	server := newFake(t)
	server.fate = func(fakeCall) *fate { return &fate{status: 401, code: "unauthorized"} }
	worker, err := NewWorker(WorkerConfig{Config: Config{URL: server.URL}, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "no handler") {
		t.Error(err)
	}
	Handle(worker, testWork, func(context.Context, work, *Attempt) (any, error) { return nil, nil })
	if err := worker.Run(context.Background()); !HasCode(err, "unauthorized") {
		t.Error(err)
	}
}

// TestMain also is the program of the tests of signals.
func TestMain(m *testing.M) {
	if os.Getenv("TICKR_TEST_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	worker, err := NewWorker(WorkerConfig{Name: "program", Grace: time.Minute, Slots: 2})
	if err != nil {
		panic(err)
	}
	Handle(worker, testWork, func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		if payload.How == "short" {
			return "finished", attempt.Sleep(ctx, time.Second)
		}
		return nil, attempt.Sleep(ctx, time.Minute)
	})
	if err := worker.RunUntilSignal(); err != nil {
		panic(err)
	}
}

func TestTheFirstSignalStopsAndTheSecondEndsTheProcessAtOnce(t *testing.T) {
	for _, name := range []string{"short", "long"} {
		server := newFake(t)
		program := exec.Command(os.Args[0])
		program.Env = append(os.Environ(), "TICKR_TEST_PROGRAM=1", "TICKR_URL="+server.URL, "TICKR_TOKEN=")
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		over := time.AfterFunc(20*time.Second, func() { _ = program.Process.Kill() })
		token := server.add("test.work", how(name), "")
		server.runs(t, token)
		fetches := len(server.of("fetch"))
		_ = program.Process.Signal(syscall.SIGTERM)
		want := 0
		if name == "long" {
			want = 130
			time.Sleep(200 * time.Millisecond)
			_ = program.Process.Signal(os.Interrupt)
		}
		_ = program.Wait()
		over.Stop()
		if code := program.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit code %d", name, code)
		}
		if name == "short" {
			if got := pick(server.verdict(t, token), "verdict", "result"); got != "succeeded|finished" {
				t.Error(got)
			}
			if n := len(server.of("fetch")); n > fetches+1 || len(server.of("leave")) != 1 {
				t.Errorf("%d fetches, and before %d", n, fetches)
			}
		}
	}
}

func TestAHandlerRunsAlone(t *testing.T) {
	handler := func(ctx context.Context, payload work, attempt *Attempt) (any, error) {
		var began map[string]json.Number
		if _, err := attempt.Checkpoint(&began); err != nil {
			return nil, err
		}
		attempt.Progress(50, "half")
		attempt.Log("at %s", began["row"])
		if err := attempt.SaveCheckpoint(2); err != nil {
			return nil, err
		}
		if err := attempt.CheckpointSaved(ctx); err != nil {
			return nil, err
		}
		if payload.How == "waits" {
			return nil, attempt.Sleep(ctx, time.Minute)
		}
		return attempt.Attempt, Snooze(time.Second, "busy")
	}
	ctx, cancel := context.WithCancel(context.Background())
	outcome, err := RunAlone(ctx, handler, work{}, AttemptInfo{Attempt: 3}, map[string]int{"row": 1}, nil)
	if err != nil || outcome.Verdict != "snoozed" || outcome.Delay != time.Second || outcome.Error != "busy" {
		t.Fatal(outcome, err)
	}
	isReported := outcome.Percent == 50 && outcome.Note == "half" && string(outcome.Checkpoint) == "2"
	if !isReported || !strings.Contains(outcome.Log, "at 1") {
		t.Error(outcome)
	}
	time.AfterFunc(20*time.Millisecond, cancel)
	outcome, err = RunAlone(ctx, handler, work{How: "waits"}, AttemptInfo{}, nil, nil)
	if err != nil || outcome.Verdict != "failed" || outcome.Error != ErrCancelled.Error() {
		t.Error(outcome, err)
	}
}
