package tickr

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeCall is a call that the fake server got.
type fakeCall struct {
	method string
	path   string
	// The last part of the path: jobs, workers, fetch, beat, finish, or leave.
	what   string
	text   string
	header http.Header
	at     time.Time
}

func (c fakeCall) body() map[string]any {
	var body map[string]any
	_ = json.Unmarshal([]byte(c.text), &body)
	return body
}

// fate is what happens to a call: its answer is lost (after it was carried out), the connection ends before, or it gets
// another answer.
type fate struct {
	lost    bool
	refused bool
	status  int
	code    string
	body    string
	header  map[string]string
}

// fake is a small server of the worker protocol whose answers a test can lose, delay and replace.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	changed  *sync.Cond
	calls    []fakeCall
	fate     func(call fakeCall) *fate
	jobs     []string
	answers  map[string]string
	newest   map[string]string
	workers  map[string]bool
	verdicts map[string]map[string]any
	cancel   map[string]bool
	lost     map[string]bool
	// Tokens of attempts whose rows another session locks.
	rows    map[string]bool
	drain   bool
	beatMS  int
	leaseMS int
	// Further fields of an answer with jobs.
	more   string
	tokens int
}

func newFake(t *testing.T) *fake {
	f := &fake{
		answers: map[string]string{}, newest: map[string]string{}, workers: map[string]bool{},
		verdicts: map[string]map[string]any{}, cancel: map[string]bool{}, lost: map[string]bool{}, beatMS: 100,
		rows: map[string]bool{}, leaseMS: 10_000,
	}
	f.changed = sync.NewCond(&f.mu)
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// locked changes the server.
func (f *fake) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.changed.Broadcast()
}

// add offers a job with this JSON payload and these further fields. It returns the token.
func (f *fake) add(kind, payload, fields string) string {
	f.mu.Lock()
	f.tokens++
	token := fmt.Sprintf("token-%d", f.tokens)
	f.mu.Unlock()
	f.addAgain(token, kind, payload, fields)
	return token
}

func (f *fake) addAgain(token, kind, payload, fields string) {
	job := fmt.Sprintf(
		`{"id":%q,"kind":%q,"queue":"test","attempt":1,"max_attempts":5,"token":%q,"payload":%s%s`,
		NewID(), kind, token, payload, fields,
	)
	if !strings.Contains(fields, "timeout_ms") {
		job += `,"timeout_ms":60000`
	}
	f.locked(func() { f.jobs = append(f.jobs, job+`,"started_at":"2026-11-27T00:00:00.000Z"}`) })
}

func (f *fake) of(what string) []fakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ofLocked(what)
}

func (f *fake) ofLocked(what string) []fakeCall {
	var calls []fakeCall
	for _, call := range f.calls {
		if call.what == what {
			calls = append(calls, call)
		}
	}
	return calls
}

// until waits until the condition holds, which is called with the lock.
func (f *fake) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	over := time.AfterFunc(time.Until(end), func() { f.locked(func() {}) })
	defer over.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
		f.changed.Wait()
	}
}

func (f *fake) verdict(t *testing.T, token string) map[string]any {
	t.Helper()
	f.until(t, "a verdict of "+token, func() bool { return f.verdicts[token] != nil })
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verdicts[token]
}

// runs waits until a heartbeat lists the token.
func (f *fake) runs(t *testing.T, token string) {
	t.Helper()
	f.until(t, token+" runs", func() bool {
		for _, call := range f.ofLocked("beat") {
			if strings.Contains(call.text, `"`+token+`"`) {
				return true
			}
		}
		return false
	})
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	parts := strings.Split(strings.Split(r.URL.Path, "?")[0], "/")
	call := fakeCall{
		method: r.Method, path: r.URL.String(), what: parts[len(parts)-1], text: string(text), header: r.Header, at: time.Now(),
	}
	if r.Method == "DELETE" {
		call.what = "leave"
	}
	f.mu.Lock()
	f.calls = append(f.calls, call)
	decide := f.fate
	var fated *fate
	if decide != nil {
		fated = decide(call)
	}
	f.changed.Broadcast()
	f.mu.Unlock()
	switch {
	case fated == nil:
		status, body := f.carryOut(r, call, parts)
		write(w, status, body, nil)
	case fated.refused:
		panic(http.ErrAbortHandler)
	case fated.lost:
		f.carryOut(r, call, parts)
		panic(http.ErrAbortHandler)
	default:
		body := fated.body
		if fated.code != "" {
			body = fmt.Sprintf(`{"type":"x","title":"T","status":%d,"code":%q,"detail":"no"}`, fated.status, fated.code)
		}
		write(w, fated.status, body, fated.header)
	}
}

func write(w http.ResponseWriter, status int, body string, header map[string]string) {
	for name, value := range header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(status)
	if status != 204 {
		_, _ = io.WriteString(w, body)
	}
}

func (f *fake) carryOut(r *http.Request, call fakeCall, parts []string) (int, string) {
	const notFound = `{"code":"not_found","detail":"register again"}`
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.changed.Broadcast()
	id := ""
	if len(parts) > 3 {
		id = parts[3]
	}
	switch call.what {
	case "workers":
		id = fmt.Sprintf("fake-%d", len(f.calls))
		f.workers[id] = true
		return 201, fmt.Sprintf(`{"id":%q,"lease_ms":%d,"beat_ms":%d}`, id, f.leaseMS, f.beatMS)
	case "fetch":
		return f.fetch(r, call, id)
	case "beat":
		if !f.workers[id] {
			return 404, notFound
		}
		told := map[string]any{"cancel": []string{}, "lost": []string{}, "unsaved": []string{}, "drain": f.drain}
		for _, one := range call.body()["holding"].([]any) {
			token := one.(map[string]any)["token"].(string)
			for name, set := range map[string]map[string]bool{"cancel": f.cancel, "lost": f.lost} {
				if set[token] {
					told[name] = append(told[name].([]string), token)
				}
			}
			if f.rows[token] && len(one.(map[string]any)) > 1 {
				told["unsaved"] = append(told["unsaved"].([]string), token)
			}
		}
		body, _ := json.Marshal(told)
		return 200, string(body)
	case "finish":
		var results []string
		for _, one := range call.body()["verdicts"].([]any) {
			verdict := one.(map[string]any)
			token := verdict["token"].(string)
			if f.rows[token] {
				results = append(results, fmt.Sprintf(`{"token":%q,"result":"locked"}`, token))
				continue
			}
			if f.verdicts[token] == nil {
				f.verdicts[token] = verdict
			}
			results = append(results, fmt.Sprintf(`{"token":%q,"result":"settled","state":"completed"}`, token))
		}
		return 200, `{"results":[` + strings.Join(results, ",") + `]}`
	case "leave":
		if !f.workers[id] {
			return 404, notFound
		}
		delete(f.workers, id)
		return 204, ""
	default:
		return 201, `{"id":"019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718","state":"waiting","jobs":[{"id":"a"},{"id":"b"}]}`
	}
}

func (f *fake) fetch(r *http.Request, call fakeCall, id string) (int, string) {
	body := call.body()
	fetchID := body["fetch_id"].(string)
	if former := f.answers[fetchID]; former != "" {
		return 200, former
	}
	f.newest[id] = fetchID
	f.changed.Broadcast()
	end := time.Now().Add(time.Duration(body["wait_ms"].(float64)) * time.Millisecond)
	over := time.AfterFunc(time.Until(end), func() { f.locked(func() {}) })
	defer over.Stop()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			f.locked(func() {})
		case <-stop:
		}
	}()
	for f.workers[id] && f.newest[id] == fetchID && len(f.jobs) == 0 && !f.drain && time.Now().Before(end) {
		if r.Context().Err() != nil {
			return 200, ""
		}
		f.changed.Wait()
	}
	switch {
	case f.drain:
		return 200, `{"jobs":[],"drain":true}`
	case !f.workers[id]:
		return 404, `{"code":"not_found","detail":"register again"}`
	case f.newest[id] != fetchID || r.Context().Err() != nil:
		return 200, `{"jobs":[],"drain":false}`
	}
	count := int(body["slots"].(float64))
	if count > len(f.jobs) {
		count = len(f.jobs)
	}
	answer := `{"jobs":[` + strings.Join(f.jobs[:count], ",") + `],"drain":false` + f.more + `}`
	f.jobs = f.jobs[count:]
	f.answers[fetchID] = answer
	return 200, answer
}
