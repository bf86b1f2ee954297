package tickr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

type mail struct {
	To string `json:"to"`
}

var sendMail = Kind[mail, map[string]bool]{Name: "mail.send"}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = 5 * time.Second
	}
	client, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// fates are used up one after the other.
func fates(list ...*fate) func(fakeCall) *fate {
	return func(fakeCall) *fate {
		if len(list) == 0 {
			return nil
		}
		next := list[0]
		list = list[1:]
		return next
	}
}

func TestALostAnswerIsAskedForAgainWithTheSameIdempotencyKeyAndBody(t *testing.T) {
	server := newFake(t)
	server.fate = fates(&fate{lost: true}, &fate{lost: true})
	client := newClient(t, Config{URL: server.URL})
	options := Options{Queue: "mail", Priority: Int(0), Delay: 1500 * time.Microsecond}
	job, err := sendMail.Enqueue(context.Background(), client, mail{To: "<ada>"}, options)
	if err != nil || job.State != Waiting || job.Existing {
		t.Fatal(job, err)
	}
	calls := server.of("jobs")
	if len(calls) != 3 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, call := range calls {
		key, first := call.header.Get("idempotency-key"), calls[0].header.Get("idempotency-key")
		if key == "" || key != first {
			t.Error("another idempotency key")
		}
		want := `{"delay_ms":2,"kind":"mail.send","payload":{"to":"<ada>"},"priority":0,"queue":"mail"}`
		if call.text != want {
			t.Error(call.text)
		}
	}
	if _, err := client.Enqueue(context.Background(), "x", nil, Options{IdempotencyKey: "order-7"}); err != nil {
		t.Fatal(err)
	}
	last := server.of("jobs")[3]
	if last.header.Get("idempotency-key") != "order-7" || last.text != `{"kind":"x","payload":{}}` {
		t.Error(last)
	}
}

func TestEveryOptionHasItsNameInTheAPI(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 125e6, time.FixedZone("", 7200))
	job := Job{Kind: "x", Payload: json.RawMessage(`{"n":9007199254740993}`), Options: Options{
		Queue: "q", ExecuteAt: at, ExpiresAt: at, ExpiresIn: time.Second, MaxAttempts: 3, Timeout: time.Second,
		Priority: Int(9), UniqueKey: "u", UniqueFields: []string{"/to"}, OnConflict: "postpone", MaxWait: time.Second,
		UniqueUntil: "start", UniqueFor: time.Second, OrderKey: "o", OnFailure: "skip", LimitKey: "l", After: []string{"p"},
		AfterPositions: []int{0}, OnParentFailure: "run", Batch: "b", Tags: []string{"t"}, Traceparent: "00-1-2-01",
		Retry: &Retry{Base: time.Second, Factor: 1.5, Cap: time.Minute, Jitter: Float(0), Delays: []time.Duration{1}},
	}}
	fields, err := job.fields()
	if err != nil {
		t.Fatal(err)
	}
	text, err := encode(fields)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"after":["p",0],"batch":"b","execute_at":"2026-12-01T08:00:00.125Z","expires_at":"2026-12-01T08:00:00.125Z",` +
		`"expires_in_ms":1000,"kind":"x","limit_key":"l","max_attempts":3,"max_wait_ms":1000,"on_conflict":"postpone",` +
		`"on_failure":"skip","on_parent_failure":"run","order_key":"o","payload":{"n":9007199254740993},"priority":9,` +
		`"queue":"q","retry":{"base_ms":1000,"cap_ms":60000,"delays_ms":[1],"factor":1.5,"jitter":0},"tags":["t"],` +
		`"timeout_ms":1000,"trace":{"traceparent":"00-1-2-01"},"unique_fields":["/to"],"unique_for_ms":1000,` +
		`"unique_key":"u","unique_until":"start"}`
	if string(text) != want {
		t.Errorf("%s\n%s", text, want)
	}
}

func TestADueTimeIsRoundedUpSoThatNoJobStartsEarly(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 125e6+1, time.UTC)
	job := Job{Kind: "x", Options: Options{ExecuteAt: at, ExpiresAt: at}}
	fields, err := job.fields()
	if err != nil {
		t.Fatal(err)
	}
	if fields["execute_at"] != "2026-12-01T10:00:00.126Z" || fields["expires_at"] != "2026-12-01T10:00:00.125Z" {
		t.Error(fields)
	}
	job.Options.ExpiresAt = time.Time{}
	row, err := NewOutboxRow("", "", job)
	if err != nil || row.Args[4] != "2026-12-01 10:00:00.126" {
		t.Error(row, err)
	}
}

func TestASuccessWithoutAnIDIsNoAnswerToAnEnqueue(t *testing.T) {
	server := newFake(t)
	stray := &fate{status: 200, body: `{"ok":true}`}
	server.fate = fates(stray, &fate{status: 200, body: "<html>"})
	client := newClient(t, Config{URL: server.URL})
	job, err := client.Enqueue(context.Background(), "x", 1, Options{})
	if err != nil || job.ID == "" || len(server.of("jobs")) != 3 {
		t.Error(job, err)
	}
	server.locked(func() { server.fate = fates(&fate{status: 201, body: `{"jobs":[{"id":"a"},{}]}`}) })
	receipts, err := client.EnqueueMany(context.Background(), "", Job{Kind: "x"}, Job{Kind: "x"})
	if err != nil || len(receipts) != 2 || receipts[1].ID != "b" || len(server.of("batch")) != 2 {
		t.Error(receipts, err)
	}
	server.locked(func() { server.fate = func(fakeCall) *fate { return stray } })
	var unavailable *UnavailableError
	client = newClient(t, Config{URL: server.URL, Timeout: 300 * time.Millisecond})
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); !errors.As(err, &unavailable) {
		t.Error(err)
	}
}

func TestAHeaderThatCannotBeSentIsRefusedAtOnce(t *testing.T) {
	server := newFake(t)
	client := newClient(t, Config{URL: server.URL})
	var unavailable *UnavailableError
	var problem *Error
	for _, key := range []string{"order→7", "order 7", "order-7\n", strings.Repeat("x", 256)} {
		_, err := client.Enqueue(context.Background(), "x", 1, Options{IdempotencyKey: key})
		_, many := client.EnqueueMany(context.Background(), key, Job{Kind: "x"})
		for _, err := range []error{err, many} {
			if err == nil || errors.As(err, &unavailable) || errors.As(err, &problem) {
				t.Errorf("%q: %v", key, err)
			}
		}
	}
	_, err := client.Continuing("00-1\n").Enqueue(context.Background(), "x", 1, Options{})
	if err == nil || errors.As(err, &unavailable) {
		t.Error(err)
	}
	if calls := len(server.of("jobs")) + len(server.of("batch")); calls != 0 {
		t.Errorf("%d calls", calls)
	}
	longest := "!~" + strings.Repeat("x", 253)
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{IdempotencyKey: longest}); err != nil {
		t.Error(err)
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	server := newFake(t)
	wait := map[string]string{"retry-after": "1"}
	server.fate = fates(&fate{status: 429, code: "overloaded", header: wait}, &fate{status: 502})
	if _, err := newClient(t, Config{URL: server.URL}).Enqueue(context.Background(), "x", 1, Options{}); err != nil {
		t.Fatal(err)
	}
	calls := server.of("jobs")
	if waited := calls[1].at.Sub(calls[0].at); len(calls) != 3 || waited < 990*time.Millisecond {
		t.Errorf("%d calls, the second one after %s", len(calls), waited)
	}
}

func TestAfterAFailureTheNextAddressIsTriedAtOnce(t *testing.T) {
	server, other := newFake(t), newFake(t)
	server.fate = func(fakeCall) *fate { return &fate{refused: true} }
	client := newClient(t, Config{URL: server.URL + " , " + other.URL + "/"})
	for range [2]int{} {
		if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(server.of("jobs")) != 1 || len(other.of("jobs")) != 2 {
		t.Errorf("%d and %d calls", len(server.of("jobs")), len(other.of("jobs")))
	}
}

func TestAnAddressIsNotCalledBeforeItsRetryAfterWhenTheOtherIsDown(t *testing.T) {
	server, down := newFake(t), httptest.NewServer(nil)
	down.Close()
	server.fate = fates(&fate{status: 503, code: "stopping", header: map[string]string{"retry-after": "2"}})
	client := newClient(t, Config{URL: server.URL + "," + down.URL, Timeout: 20 * time.Second})
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); err != nil {
		t.Fatal(err)
	}
	calls := server.of("jobs")
	if waited := calls[1].at.Sub(calls[0].at); len(calls) != 2 || waited < 1900*time.Millisecond {
		t.Errorf("%d calls, the second one after %s", len(calls), waited)
	}
}

func TestTheOtherAddressIsTriedWhileOneWaitsForItsRetryAfter(t *testing.T) {
	server, other := newFake(t), newFake(t)
	server.fate = func(fakeCall) *fate {
		return &fate{status: 503, code: "stopping", header: map[string]string{"retry-after": "60"}}
	}
	other.fate = fates(&fate{refused: true}, &fate{status: 503, code: "store_unavailable"})
	client := newClient(t, Config{URL: server.URL + "," + other.URL, Timeout: 20 * time.Second})
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); err != nil {
		t.Fatal(err)
	}
	if len(server.of("jobs")) != 1 || len(other.of("jobs")) != 3 {
		t.Errorf("%d and %d calls", len(server.of("jobs")), len(other.of("jobs")))
	}
}

func TestAPauseIsOverWhenTheAddressThatNamedATimeIsFree(t *testing.T) {
	turns := newTurns(2)
	for range [8]int{} {
		turns.next(0, 0)
		turns.next(1, 0)
	}
	turns.next(0, time.Second)
	if pause := turns.next(1, 0); pause > time.Second {
		t.Errorf("a pause of %s beside a Retry-After of 1 s", pause)
	}
	turns.next(0, time.Second)
	if pause := turns.next(1, 2*time.Second); pause < 2*time.Second {
		t.Errorf("a pause of %s: it no longer grows when all addresses name a time", pause)
	}
}

func TestANudgeIsTriedOnceAndHoldsUpNoRequest(t *testing.T) {
	gone := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-gone }))
	defer hangs.Close()
	defer close(gone)
	begun := time.Now()
	err := newClient(t, Config{URL: hangs.URL}).Nudge(context.Background())
	var unavailable *UnavailableError
	if took := time.Since(begun); !errors.As(err, &unavailable) || took > 2*time.Second {
		t.Error(err, took)
	}
	server := newFake(t)
	server.fate = fates(&fate{status: 503, code: "store_unavailable"})
	client := newClient(t, Config{URL: server.URL})
	if err := client.Nudge(context.Background()); !HasCode(err, "store_unavailable") || len(server.of("nudge")) != 1 {
		t.Error(err, len(server.of("nudge")))
	}
	if err := client.Nudge(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestCallsOverTLSUseHTTP1(t *testing.T) {
	protocols := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocols <- r.Proto
		write(w, 201, `{"id":"a","state":"waiting"}`, nil)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := newClient(t, Config{URL: server.URL})
	kept := client.transport.http.Transport.(*http.Transport)
	// A transport with certificates of its own would leave HTTP/2 out by itself.
	kept.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	kept.ForceAttemptHTTP2 = true
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); err != nil {
		t.Fatal(err)
	}
	if protocol := <-protocols; protocol != "HTTP/1.1" {
		t.Error(protocol)
	}
}

func TestAProblemDocumentIsOneTypeOfErrorAtOnce(t *testing.T) {
	server := newFake(t)
	body := `{"code":"unique_key_taken","title":"T","status":409,"detail":"D","holder":"h","current_state":"waiting",` +
		`"errors":[{"pointer":"/to","detail":"is missing"}]}`
	server.fate = fates(&fate{status: 409, body: body}, &fate{status: 500, body: "<html>"})
	client := newClient(t, Config{URL: server.URL})
	_, err := client.Enqueue(context.Background(), "x", 1, Options{})
	want := &Error{Code: "unique_key_taken", Title: "T", Detail: "D", Status: 409, Holder: "h", CurrentState: Waiting}
	want.Errors = []FieldError{{Pointer: "/to", Detail: "is missing"}}
	var problem *Error
	if !errors.As(err, &problem) || !reflect.DeepEqual(problem, want) || !HasCode(err, "unique_key_taken") {
		t.Errorf("%#v", err)
	}
	if err.Error() != "unique_key_taken: D: /to is missing" {
		t.Error(err)
	}
	if _, err := client.Get(context.Background(), "x"); !HasCode(err, "unexpected_answer") {
		t.Error(err)
	}
}

func TestTheTimeOfACallIsBounded(t *testing.T) {
	server := newFake(t)
	server.fate = func(fakeCall) *fate { return &fate{refused: true} }
	began := time.Now()
	impatient := newClient(t, Config{URL: server.URL, Timeout: 700 * time.Millisecond})
	_, err := impatient.Enqueue(context.Background(), "x", 1, Options{})
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || time.Since(began) > 2*time.Second || len(server.of("jobs")) < 2 {
		t.Error(err, time.Since(began))
	}
	server.locked(func() { server.fate = func(fakeCall) *fate { return &fate{status: 503, code: "stopping"} } })
	client := newClient(t, Config{URL: server.URL, Timeout: 300 * time.Millisecond})
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); !HasCode(err, "stopping") {
		t.Error(err)
	}
	ctx, end := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer end()
	_, err = newClient(t, Config{URL: server.URL}).Enqueue(ctx, "x", 1, Options{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestNothingShowsTheToken(t *testing.T) {
	server := newFake(t)
	config := Config{URL: server.URL, Token: "secret-token-of-thirty-characters", Timeout: 200 * time.Millisecond}
	client := newClient(t, config)
	if _, err := client.Enqueue(context.Background(), "x", 1, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := server.of("jobs")[0].header.Get("authorization"); got != "Bearer "+config.Token {
		t.Error(got)
	}
	server.locked(func() { server.fate = func(fakeCall) *fate { return &fate{refused: true} } })
	_, refused := client.Enqueue(context.Background(), "x", 1, Options{})
	_, malformed := NewClient(Config{URL: server.URL, Token: config.Token + "\n"})
	_, inURL := NewClient(Config{URL: "http://user:" + config.Token + "@localhost"})
	worker, err := NewWorker(WorkerConfig{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	settings := WorkerConfig{Config: config}
	for _, value := range []any{client, *client, config, &config, settings, refused, malformed, inURL, worker} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			if shown := fmt.Sprintf(verb, value); strings.Contains(shown, "secret") {
				t.Errorf("%s shows %s", verb, shown)
			}
		}
	}
}

func TestAWaitReturnsTheTypedResult(t *testing.T) {
	server := newFake(t)
	server.fate = fates(
		&fate{status: 202, body: `{"id":"x","state":"waiting"}`},
		&fate{status: 200, body: `{"id":"x","state":"completed","result":{"accepted":true},"last_error":null}`},
		&fate{status: 200, body: `{"id":"x","state":"failed","result":null,"last_error":"no"}`},
	)
	client := newClient(t, Config{URL: server.URL})
	result, err := sendMail.Wait(context.Background(), client, "x")
	if err != nil || !result["accepted"] {
		t.Error(result, err)
	}
	_, err = sendMail.Wait(context.Background(), client, "x")
	var failed *JobError
	if !errors.As(err, &failed) || failed.State != Failed || failed.LastError != "no" {
		t.Error(err)
	}
	server.locked(func() { server.fate = func(fakeCall) *fate { return &fate{status: 202, body: `{}`} } })
	ctx, end := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer end()
	if _, err := client.Wait(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestReceiptsAreInTheOrderOfTheJobs(t *testing.T) {
	server := newFake(t)
	client := newClient(t, Config{URL: server.URL}).Continuing("00-1-2-01")
	receipts, err := client.EnqueueMany(context.Background(), "", sendMail.Job(mail{To: "a"}, Options{}), Job{Kind: "x"})
	if err != nil || len(receipts) != 2 || receipts[1].ID != "b" {
		t.Error(receipts, err)
	}
	call := server.of("batch")[0]
	want := `{"jobs":[{"kind":"mail.send","payload":{"to":"a"}},{"kind":"x","payload":{}}]}`
	if call.text != want || call.header.Get("traceparent") != "00-1-2-01" {
		t.Error(call.text)
	}
}

func TestIDsAreUUIDv7OfNowAndSortInTheOrderInWhichTheyWereMade(t *testing.T) {
	last := ""
	for i := 0; i < 20_000; i++ {
		id := NewID()
		if id <= last || id[14] != '7' {
			t.Fatal(last, id)
		}
		last = id
	}
	var ms int64
	if _, err := fmt.Sscanf(strings.ReplaceAll(last, "-", "")[:12], "%x", &ms); err != nil {
		t.Fatal(err)
	}
	if age := time.Since(time.UnixMilli(ms)); age > 5*time.Second || age < -5*time.Second {
		t.Error(age)
	}
}

func TestARowHasTheColumnsOfTheOutbox(t *testing.T) {
	id := "019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718"
	at := time.Date(2026, 12, 1, 10, 0, 0, 125e6, time.FixedZone("", 7200))
	options := Options{Queue: "mail", ExecuteAt: at, Priority: Int(2), OrderKey: "customer-7"}
	row, err := NewOutboxRow("", id, sendMail.Job(mail{To: "ada"}, options))
	if err != nil {
		t.Fatal(err)
	}
	bytes := []byte{0x01, 0x9a, 0xb2, 0xc3, 0xd4, 0xe5, 0x7f, 0x60, 0xa1, 0xb2, 0xc3, 0xd4, 0xe5, 0xf6, 0x07, 0x18}
	at2, others := "2026-12-01 08:00:00.125", `{"order_key":"customer-7","priority":2}`
	want := []any{bytes, "mail.send", `{"to":"ada"}`, "mail", at2, others}
	if !reflect.DeepEqual(row.Args, want) || row.ID != id {
		t.Errorf("%#v", row)
	}
	for name, err := range map[string]error{
		"table":   second(NewOutboxRow("x; DROP TABLE y", "", Job{Kind: "x"})),
		"id":      second(NewOutboxRow("", "019ab2c3-d4e5-4f60-a1b2-c3d4e5f60718", Job{Kind: "x"})),
		"payload": second(NewOutboxRow("", "", Job{Kind: "x", Payload: strings.Repeat("x", 1<<20)})),
		"time":    second(NewOutboxRow("", "", Job{Kind: "x", Options: Options{ExecuteAt: time.Now().AddDate(2, 0, 0)}})),
		"delay":   second(NewOutboxRow("", "", Job{Kind: "x", Options: Options{ExecuteAt: time.Now(), Delay: time.Second}})),
	} {
		if err == nil {
			t.Errorf("a wrong %s is taken", name)
		}
	}
}

func second(_ any, err error) error { return err }
