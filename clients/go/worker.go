package tickr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	maxJobs     = 500
	maxVerdicts = 500
	// body_limit of a server is 256 KiB unless an operator changed it. A larger single verdict is tried all the same.
	bodyBytes = 200 << 10
	// Shortest time between two heartbeats that only bring news of handlers.
	newsTime = 500 * time.Millisecond
	// Longest pause of a heartbeat that failed: meanwhile every lease grows old.
	beatPause = time.Second
	// Time for which the first registration is repeated after 422: a declaration is known everywhere after two seconds.
	declaredWithin = 5 * time.Second
	// Time for which handlers that were told to stop may still save what they have.
	lastWords = 500 * time.Millisecond
	// Time for which the last verdicts are sent at the end.
	leaveWithin = 5 * time.Second
	// Tokens whose attempts have ended, kept so that a late copy of an answer starts none of them again.
	remembered = 20_000
)

// WorkerConfig has the settings of a Worker.
type WorkerConfig struct {
	Config
	// Name is the name of the program. The id of the worker begins with it. Default: the name of the executable.
	Name string
	// Queues are the queues that it serves. Default: default and those of its kinds.
	Queues []string
	// Slots is the number of handlers that run at once, 1 to 1,000. Default: 10.
	Slots int
	// Lease is the time without a heartbeat after which the jobs are taken away. Default: 60 s.
	Lease time.Duration
	// Wait is the longest wait of one request for jobs, at most a minute. Default: 30 s.
	Wait time.Duration
	// Grace is the time in which running handlers may finish when the worker stops. Default: 30 s.
	Grace time.Duration
	// Version is the version of the program, for operators.
	Version string
	// Client is that of the handlers. Default: one with the address and the token of the worker.
	Client *Client
	// Logf writes what operators should know. Default: log.Printf. Payloads, results and tokens are not written.
	Logf func(format string, values ...any)
}

// String shows the settings without the token.
func (c WorkerConfig) String() string { return c.Name + c.Config.String() }

// Worker is a remote worker: it executes jobs that it fetches over HTTP. Each handler runs in a goroutine of its own,
// and no handler can stop the heartbeats.
type Worker struct {
	config    WorkerConfig
	transport *transport
	client    *Client
	handlers  map[string]erased

	mu sync.Mutex
	// The attempts whose verdicts are not answered, by token.
	held map[string]*held
	// The tokens that take a slot: those that are held, and lost ones whose handlers have not ended.
	busy         map[string]*held
	seen         map[string]bool
	seenInOrder  []string
	verdicts     []*held
	id           string
	beatEvery    time.Duration
	lastBeat     time.Time
	drained      bool
	saves        []save
	troubles     map[string]time.Time
	notBefore    map[string]time.Time
	running      int
	isStopping   bool
	hasRun       bool
	registering  sync.Mutex
	slotsBell    bell
	beatBell     bell
	verdictsBell bell
	idleBell     bell
}

// held is an attempt of this worker.
type held struct {
	worker  *Worker
	token   string
	attempt *Attempt
	payload json.RawMessage

	// All below is guarded by the worker.
	percent           *float64
	note              *string
	checkpointText    json.RawMessage
	version           int
	sent              int
	checkpointVersion int
	hasVerdict        bool
	isCancelled       bool
	isLost            bool
	verdict           verdictBody
}

type save struct {
	token   string
	version int
	done    chan struct{}
}

// bell is a place to wait for news. A ring before the wait counts.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// wait returns after a ring, after this time (unless it is negative), or when the context ends.
func (b bell) wait(ctx context.Context, d time.Duration) {
	var over <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-b:
	case <-over:
	case <-ctx.Done():
	}
}

// NewWorker makes a worker. It fails when the URL or the token is malformed; no server is called.
func NewWorker(config WorkerConfig) (*Worker, error) {
	transport, err := newTransport(config.URL, config.Token)
	if err != nil {
		return nil, err
	}
	client := config.Client
	if client == nil {
		if client, err = NewClient(config.Config); err != nil {
			return nil, err
		}
	}
	config.Token = ""
	if config.Name == "" {
		config.Name = filepath.Base(os.Args[0])
	}
	config.Name = cut(config.Name, 64)
	if config.Slots == 0 {
		config.Slots = 10
	}
	if config.Wait == 0 {
		config.Wait = 30 * time.Second
	}
	if config.Grace == 0 {
		config.Grace = 30 * time.Second
	}
	if config.Logf == nil {
		config.Logf = log.Printf
	}
	return &Worker{
		config:       config,
		transport:    transport,
		client:       client,
		handlers:     map[string]erased{},
		held:         map[string]*held{},
		busy:         map[string]*held{},
		seen:         map[string]bool{},
		troubles:     map[string]time.Time{},
		notBefore:    map[string]time.Time{},
		slotsBell:    make(bell, 1),
		beatBell:     make(bell, 1),
		verdictsBell: make(bell, 1),
		idleBell:     make(bell, 1),
	}, nil
}

// Handle lets a worker execute the jobs of a kind with this handler. Call it before Run. It panics when the worker has
// a handler of the kind already.
func Handle[P, R any](worker *Worker, kind Kind[P, R], handler Handler[P, R]) {
	if _, has := worker.handlers[kind.Name]; has {
		panic("tickr: the worker has a handler of " + kind.Name + " already")
	}
	worker.handlers[kind.Name] = erase(handler)
}

// ID returns the id that the server gave to this worker, once it is registered.
func (w *Worker) ID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

// RunUntilSignal runs the worker until SIGTERM or SIGINT. A second signal ends the process at once.
func (w *Worker) RunUntilSignal() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-signals:
			stop()
		case <-done:
			return
		}
		select {
		case second := <-signals:
			code := 1
			if number, is := second.(syscall.Signal); is {
				code = 128 + int(number)
			}
			os.Exit(code)
		case <-done:
		}
	}()
	return w.Run(ctx)
}

// Run registers the worker and executes jobs until the context ends. Then it fetches no more, gives running handlers
// the grace to finish, gives back the rest, leaves, and returns nil. A handler that ignores its context still runs
// then.
//
// While no server answers, the worker tries again, also at the start. Run fails with an *Error when the server refuses
// to register the worker: a wrong key, or a kind that is not declared.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.handlers) == 0 {
		return errors.New("tickr: the worker has no handler: call Handle")
	}
	w.mu.Lock()
	hasRun := w.hasRun
	w.hasRun = true
	w.mu.Unlock()
	if hasRun {
		return errors.New("tickr: the worker runs already, or has run")
	}
	defer w.transport.http.CloseIdleConnections()
	if err := w.registerFirst(ctx); err != nil || ctx.Err() != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	gone, leave := context.WithCancel(context.Background())
	defer leave()
	var loops, fetching sync.WaitGroup
	start := func(group *sync.WaitGroup, loop func(context.Context), ctx context.Context) {
		group.Add(1)
		go func() {
			defer group.Done()
			loop(ctx)
		}()
	}
	start(&fetching, w.fetchLoop, ctx)
	start(&loops, w.beatLoop, gone)
	start(&loops, w.finishLoop, gone)
	<-ctx.Done()
	w.mu.Lock()
	w.isStopping = true
	running := w.running
	w.mu.Unlock()
	w.config.Logf("tickr: the worker stops; %d jobs run", running)
	fetching.Wait()
	w.windUp()
	w.leave(time.Now().Add(leaveWithin))
	leave()
	loops.Wait()
	return nil
}

// windUp waits for the handlers, and gives back the jobs of those that need longer than the grace.
func (w *Worker) windUp() {
	if w.isIdleWithin(w.config.Grace) {
		return
	}
	w.mu.Lock()
	var late []*held
	for _, one := range w.busy {
		if !one.hasVerdict {
			late = append(late, one)
		}
	}
	w.mu.Unlock()
	for _, one := range late {
		one.attempt.stop(ErrStopping)
	}
	w.isIdleWithin(lastWords)
	for _, one := range late {
		w.settle(one, verdictBody{Verdict: "released", Error: "its worker stopped and gave it back"})
	}
}

func (w *Worker) isIdleWithin(d time.Duration) bool {
	end := time.Now().Add(d)
	for {
		w.mu.Lock()
		isIdle := w.running == 0
		w.mu.Unlock()
		left := time.Until(end)
		if isIdle || left <= 0 {
			return isIdle
		}
		w.idleBell.wait(context.Background(), left)
	}
}

// Registration.

func (w *Worker) registration() call {
	host, _ := os.Hostname()
	fields := map[string]any{"name": w.config.Name, "slots": w.config.Slots, "host": cut(host, 255), "pid": os.Getpid()}
	var kinds []string
	for kind := range w.handlers {
		kinds = append(kinds, kind)
	}
	fields["kinds"] = kinds
	if len(w.config.Queues) > 0 {
		fields["queues"] = w.config.Queues
	}
	if w.config.Lease != 0 {
		fields["lease_ms"] = w.config.Lease.Milliseconds()
	}
	if w.config.Version != "" {
		fields["version"] = w.config.Version
	}
	body, _ := encode(fields)
	return call{method: "POST", path: "/v1/workers", body: body}
}

func (w *Worker) registerFirst(ctx context.Context) error {
	end := time.Now().Add(declaredWithin)
	for failures := 0; ; failures++ {
		got := w.try(ctx, w.registration(), tryTime, "register")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if got != nil && got.status == 201 && w.registered(got, "registered") {
			return nil
		}
		if got != nil && got.status >= 400 && got.status < 500 && !isPassing(got.status) {
			// A kind that was declared a moment ago may not be known to this process yet.
			if got.status != 422 || time.Now().After(end) {
				return problemOf(got.status, got.body)
			}
		}
		w.pause(ctx, "register", failures, got, longestPause)
	}
}

// registerAgain registers again, unless that has happened since the worker had this id.
func (w *Worker) registerAgain(ctx context.Context, formerID string) {
	w.registering.Lock()
	defer w.registering.Unlock()
	for failures := 0; w.ID() == formerID && ctx.Err() == nil; failures++ {
		got := w.try(ctx, w.registration(), tryTime, "register")
		if got != nil && got.status == 201 && w.registered(got, "registered again") {
			// The server does not know yet what the worker holds.
			w.mu.Lock()
			w.lastBeat = time.Time{}
			w.mu.Unlock()
			w.beatBell.ring()
			return
		}
		w.pause(ctx, "register", failures, got, longestPause)
	}
}

func (w *Worker) registered(got *answer, how string) bool {
	var told struct {
		ID     string `json:"id"`
		BeatMS int64  `json:"beat_ms"`
	}
	if json.Unmarshal(got.body, &told) != nil || told.ID == "" {
		return false
	}
	w.mu.Lock()
	w.id = told.ID
	w.beatEvery = time.Duration(told.BeatMS) * time.Millisecond
	w.lastBeat = time.Now()
	w.mu.Unlock()
	w.config.Logf("tickr: the worker %s is %s", told.ID, how)
	return true
}

// Fetch.

func (w *Worker) fetchLoop(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		slots := w.config.Slots - len(w.busy)
		drained, every := w.drained, w.beatEvery
		w.mu.Unlock()
		if slots < 1 {
			w.slotsBell.wait(ctx, -1)
			continue
		}
		if drained {
			w.slotsBell.wait(ctx, every)
			if ctx.Err() != nil {
				return
			}
		}
		if slots > maxJobs {
			slots = maxJobs
		}
		w.fetch(ctx, slots)
	}
}

func (w *Worker) fetch(ctx context.Context, slots int) {
	w.mu.Lock()
	holding := make([]string, 0, len(w.held))
	for token := range w.held {
		holding = append(holding, token)
	}
	w.mu.Unlock()
	body, _ := encode(map[string]any{
		"slots": slots, "wait_ms": w.config.Wait.Milliseconds(), "holding": holding, "fetch_id": randomID(),
	})
	for failures := 0; ctx.Err() == nil; failures++ {
		id := w.ID()
		// The same body again, to any process, gets the same jobs and nothing new.
		got := w.try(ctx, call{method: "POST", path: path(id, "/fetch"), body: body}, w.config.Wait+tryTime, "fetch")
		if ctx.Err() != nil {
			return
		}
		if got != nil && got.status == 200 && w.deliver(got.body) {
			return
		}
		if got != nil && got.status == 404 {
			w.registerAgain(ctx, id)
			return
		}
		w.pause(ctx, "fetch", failures, got, longestPause)
	}
}

// deliver starts the jobs of an answer that are new. It returns false when the answer is not whole.
func (w *Worker) deliver(body []byte) bool {
	var fetched struct {
		Jobs []struct {
			AttemptInfo
			Token      string          `json:"token"`
			Payload    json.RawMessage `json:"payload"`
			Checkpoint json.RawMessage `json:"checkpoint"`
		} `json:"jobs"`
		Drain bool `json:"drain"`
	}
	if json.Unmarshal(body, &fetched) != nil {
		return false
	}
	var fresh []*held
	w.mu.Lock()
	for _, job := range fetched.Jobs {
		if w.seen[job.Token] {
			continue
		}
		w.remember(job.Token)
		one := &held{worker: w, token: job.Token, payload: job.Payload}
		one.attempt = &Attempt{
			AttemptInfo: job.AttemptInfo, began: job.Checkpoint, reports: one, client: w.client.Continuing(job.Traceparent),
		}
		w.held[job.Token] = one
		w.busy[job.Token] = one
		w.running++
		fresh = append(fresh, one)
	}
	w.mu.Unlock()
	for _, one := range fresh {
		go w.execute(one)
	}
	w.drain(fetched.Drain)
	return true
}

// remember is called with the lock.
func (w *Worker) remember(token string) {
	w.seen[token] = true
	w.seenInOrder = append(w.seenInOrder, token)
	for len(w.seenInOrder) > remembered && w.busy[w.seenInOrder[0]] == nil {
		delete(w.seen, w.seenInOrder[0])
		w.seenInOrder = w.seenInOrder[1:]
	}
}

func (w *Worker) drain(drained bool) {
	w.mu.Lock()
	isChange := drained != w.drained
	w.drained = drained
	w.mu.Unlock()
	switch {
	case !isChange:
	case drained:
		w.config.Logf("tickr: an operator drains this worker: it gets no jobs")
	default:
		w.config.Logf("tickr: this worker gets jobs again")
		w.slotsBell.ring()
	}
}

// execute runs the handler of an attempt.
func (w *Worker) execute(one *held) {
	w.mu.Lock()
	isStopping := w.isStopping
	w.mu.Unlock()
	handler, has := w.handlers[one.attempt.Kind]
	var verdict verdictBody
	switch {
	case isStopping || !has:
		verdict = verdictBody{Verdict: "released", Error: "its worker stops and gave it back"}
	case one.attempt.Cause() != nil:
		verdict = verdictOf(nil, one.attempt.Cause(), one.attempt.Cause())
	default:
		limit := time.Duration(one.attempt.TimeoutMS) * time.Millisecond
		deadline := time.AfterFunc(limit, func() { one.attempt.stop(ErrDeadline) })
		verdict = execute(context.Background(), handler, one.payload, one.attempt)
		deadline.Stop()
	}
	w.settle(one, verdict)
	w.mu.Lock()
	w.running--
	w.mu.Unlock()
	w.idleBell.ring()
}

// settle lets the verdict of an attempt be sent. The first one counts.
func (w *Worker) settle(one *held, verdict verdictBody) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one.hasVerdict {
		return
	}
	one.hasVerdict = true
	if one.isLost {
		delete(w.busy, one.token)
		w.slotsBell.ring()
		return
	}
	one.verdict = verdict
	one.verdict.Token = one.token
	one.verdict.Log = one.attempt.logText()
	// A completed job has no checkpoint. Any other one begins its next attempt with it.
	if verdict.Verdict != "succeeded" && one.checkpointVersion > one.sent {
		done := w.saveLocked(one)
		go func() {
			<-done
			w.mu.Lock()
			w.verdicts = append(w.verdicts, one)
			w.mu.Unlock()
			w.verdictsBell.ring()
		}()
		return
	}
	w.verdicts = append(w.verdicts, one)
	w.verdictsBell.ring()
}

// Reports.

func (h *held) progress(percent float64, note *string) {
	h.worker.mu.Lock()
	h.percent, h.note = &percent, note
	h.version++
	h.worker.mu.Unlock()
	h.worker.beatBell.ring()
}

func (h *held) checkpoint(text json.RawMessage) {
	h.worker.mu.Lock()
	h.version++
	h.checkpointText, h.checkpointVersion = text, h.version
	h.worker.mu.Unlock()
	h.worker.beatBell.ring()
}

func (h *held) saved() <-chan struct{} {
	h.worker.mu.Lock()
	defer h.worker.mu.Unlock()
	return h.worker.saveLocked(h)
}

// saveLocked returns a channel that is closed when the server has the newest checkpoint of an attempt, or when the
// worker does not hold it any more.
func (w *Worker) saveLocked(one *held) <-chan struct{} {
	done := make(chan struct{})
	if w.held[one.token] == nil || one.checkpointVersion <= one.sent {
		close(done)
		return done
	}
	w.saves = append(w.saves, save{token: one.token, version: one.checkpointVersion, done: done})
	w.beatBell.ring()
	return done
}

// answerSaves is called with the lock.
func (w *Worker) answerSaves() {
	var waiting []save
	for _, one := range w.saves {
		if holds := w.held[one.token]; holds != nil && holds.sent < one.version {
			waiting = append(waiting, one)
		} else {
			close(one.done)
		}
	}
	w.saves = waiting
}

// Beats.

func (w *Worker) beatLoop(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		w.mu.Lock()
		since := time.Since(w.lastBeat)
		rest := w.beatEvery - since
		for _, one := range w.held {
			if one.version > one.sent {
				rest = shorter(rest, newsTime-since)
			}
		}
		if len(w.saves) > 0 {
			rest = 0
		}
		w.mu.Unlock()
		if failures == 0 && rest > 0 {
			w.beatBell.wait(ctx, rest)
			continue
		}
		started := time.Now()
		if w.beat(ctx) {
			w.mu.Lock()
			w.lastBeat = started
			w.mu.Unlock()
			failures = 0
		} else {
			failures++
			w.pause(ctx, "beat", failures-1, nil, beatPause)
		}
	}
}

type entry struct {
	token   string
	version int
	text    []byte
}

// beat sends what the worker holds, in as many requests as their size needs. It returns false if one of them failed.
func (w *Worker) beat(ctx context.Context) bool {
	var entries []entry
	w.mu.Lock()
	for token, one := range w.held {
		var report struct {
			Token      string          `json:"token"`
			Percent    *float64        `json:"percent,omitempty"`
			Note       *string         `json:"note,omitempty"`
			Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
		}
		report.Token, report.Percent, report.Note = token, one.percent, one.note
		if one.checkpointVersion > one.sent {
			report.Checkpoint = one.checkpointText
		}
		text, _ := encode(report)
		entries = append(entries, entry{token: token, version: one.version, text: text})
	}
	w.mu.Unlock()
	// A worker that holds nothing beats as well: its own lease is to be renewed.
	for {
		count, size := 0, 0
		for count < len(entries) && count < maxJobs && (count == 0 || size+len(entries[count].text) < bodyBytes) {
			size += len(entries[count].text) + 1
			count++
		}
		part := entries[:count]
		entries = entries[count:]
		isSent, isRefused := w.beatOf(ctx, part)
		if isRefused {
			w.config.Logf("tickr: the server refuses a report of a handler: progress and checkpoint are left out")
			bare := make([]entry, len(part))
			for place, one := range part {
				text, _ := encode(map[string]string{"token": one.token})
				bare[place] = entry{token: one.token, text: text}
			}
			isSent, _ = w.beatOf(ctx, bare)
		}
		if !isSent {
			return false
		}
		w.mu.Lock()
		for _, sent := range part {
			if one := w.held[sent.token]; one != nil && one.sent < sent.version {
				one.sent = sent.version
			}
		}
		w.answerSaves()
		w.mu.Unlock()
		if len(entries) == 0 {
			return true
		}
	}
}

func (w *Worker) beatOf(ctx context.Context, part []entry) (isSent, isRefused bool) {
	body := []byte(`{"holding":[`)
	for place, one := range part {
		if place > 0 {
			body = append(body, ',')
		}
		body = append(body, one.text...)
	}
	body = append(body, `]}`...)
	w.mu.Lock()
	id, every := w.id, w.beatEvery
	w.mu.Unlock()
	within := shorter(longer(every, time.Second), 5*time.Second)
	got := w.try(ctx, call{method: "POST", path: path(id, "/beat"), body: body}, within, "beat")
	if got == nil {
		return false, false
	}
	switch got.status {
	case 200:
	case 404:
		w.registerAgain(ctx, id)
		return false, false
	case 400, 413, 422:
		return false, true
	default:
		return false, false
	}
	var told struct {
		Cancel []string `json:"cancel"`
		Lost   []string `json:"lost"`
		Drain  bool     `json:"drain"`
	}
	if json.Unmarshal(got.body, &told) != nil {
		return false, false
	}
	var cancelled, lost []*held
	w.mu.Lock()
	for _, token := range told.Cancel {
		if one := w.held[token]; one != nil && !one.isCancelled {
			one.isCancelled = true
			cancelled = append(cancelled, one)
		}
	}
	for _, token := range told.Lost {
		// An attempt that was finished meanwhile is not held any more either. The answer to its verdict decides.
		if one := w.held[token]; one != nil && !one.hasVerdict {
			one.isLost = true
			delete(w.held, token)
			lost = append(lost, one)
		}
	}
	w.answerSaves()
	w.mu.Unlock()
	for _, one := range cancelled {
		one.attempt.stop(ErrCancelled)
	}
	for _, one := range lost {
		one.attempt.stop(ErrLost)
	}
	w.drain(told.Drain)
	return true, false
}

// Verdicts.

func (w *Worker) finishLoop(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		var part []verdictBody
		for size := 0; len(w.verdicts) > 0 && len(part) < maxVerdicts; w.verdicts = w.verdicts[1:] {
			next := w.verdicts[0].verdict
			size += len(next.Result) + len(next.Error) + len(next.Log) + 256
			if len(part) > 0 && size > bodyBytes {
				break
			}
			part = append(part, next)
		}
		w.mu.Unlock()
		if len(part) == 0 {
			w.verdictsBell.wait(ctx, -1)
			continue
		}
		w.finish(ctx, part)
	}
}

// finish sends verdicts until they are answered.
func (w *Worker) finish(ctx context.Context, verdicts []verdictBody) {
	body, err := encode(map[string]any{"verdicts": verdicts})
	if err != nil {
		w.config.Logf("tickr: a verdict cannot be written: %v", err)
		return
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		id := w.ID()
		got := w.try(ctx, call{method: "POST", path: path(id, "/finish"), body: body}, tryTime, "finish")
		if got != nil {
			switch got.status {
			case 200:
				var told struct {
					Results []struct {
						Result string `json:"result"`
					} `json:"results"`
				}
				if json.Unmarshal(got.body, &told) == nil && len(told.Results) == len(verdicts) {
					for place, verdict := range verdicts {
						w.settled(verdict.Token, told.Results[place].Result)
					}
					return
				}
			case 400, 413, 422:
				w.refused(ctx, verdicts, got)
				return
			case 404:
				w.registerAgain(ctx, id)
			}
		}
		w.pause(ctx, "finish", failures, got, longestPause)
	}
}

// refused handles that one wrong or large verdict makes the server refuse all of a request. It finds it, and reports
// its attempt as failed.
func (w *Worker) refused(ctx context.Context, verdicts []verdictBody, got *answer) {
	if len(verdicts) > 1 {
		half := (len(verdicts) + 1) / 2
		w.finish(ctx, verdicts[:half])
		w.finish(ctx, verdicts[half:])
		return
	}
	verdict := verdicts[0]
	problem := problemOf(got.status, got.body)
	w.config.Logf("tickr: the server refuses a verdict: %v", problem)
	const refusal = "the server refuses the verdict "
	switch {
	case verdict.Log != "":
		// The log goes first, because it is the least of what is lost.
		verdict.Log = ""
	case len(verdict.Error) > len(refusal) && verdict.Error[:len(refusal)] == refusal:
		w.settled(verdict.Token, "refused")
		return
	default:
		why := cut(fmt.Sprintf("%s%s: %v", refusal, verdict.Verdict, problem), 1_000)
		verdict = verdictBody{Token: verdict.Token, Verdict: "failed", Error: why}
	}
	w.finish(ctx, []verdictBody{verdict})
}

func (w *Worker) settled(token, result string) {
	w.mu.Lock()
	delete(w.held, token)
	delete(w.busy, token)
	w.answerSaves()
	w.mu.Unlock()
	w.slotsBell.ring()
	w.idleBell.ring()
	if result != "settled" {
		w.config.Logf("tickr: a verdict came too late or was not taken: %s", result)
	}
}

// The end.

// leave waits for the answers to the last verdicts, and ends the registration.
func (w *Worker) leave(end time.Time) {
	for {
		w.mu.Lock()
		waiting := 0
		for _, one := range w.held {
			if one.hasVerdict {
				waiting++
			}
		}
		w.mu.Unlock()
		if waiting == 0 || time.Now().After(end) {
			break
		}
		w.idleBell.wait(context.Background(), shorter(time.Until(end), 50*time.Millisecond))
	}
	for failures := 0; ; failures++ {
		within := shorter(longer(time.Until(end), 500*time.Millisecond), 5*time.Second)
		got := w.try(context.Background(), call{method: "DELETE", path: path(w.ID(), "")}, within, "leave")
		if got != nil && (got.isSuccess() || got.status == 404) {
			return
		}
		if time.Now().After(end) {
			w.config.Logf("tickr: the registration of this worker could not be ended: it ends with its lease")
			return
		}
		w.pause(context.Background(), "leave", failures, got, time.Second)
	}
}

// Calls.

func path(id, below string) string { return "/v1/workers/" + url.PathEscape(id) + below }

// try sends a call once. It returns nil when no whole answer came. After a failure the next call goes elsewhere.
func (w *Worker) try(ctx context.Context, c call, within time.Duration, what string) *answer {
	place := w.transport.now()
	got, err := w.transport.once(ctx, place, c, within)
	if err != nil {
		if ctx.Err() == nil {
			w.trouble(what, err)
			w.transport.failed(place)
		}
		return nil
	}
	if got.isSuccess() {
		w.mu.Lock()
		_, had := w.troubles[what]
		delete(w.troubles, what)
		w.mu.Unlock()
		if had {
			w.config.Logf("tickr: %s: the server answers again", what)
		}
		return got
	}
	if got.status != 404 {
		w.trouble(what, problemOf(got.status, got.body))
	}
	if got.asks {
		w.mu.Lock()
		w.notBefore[fmt.Sprint(what, place)] = time.Now().Add(shorter(got.retryAfter, longestWait))
		w.mu.Unlock()
	}
	if isPassing(got.status) || got.status >= 500 {
		w.transport.failed(place)
	}
	return got
}

// trouble tells the operator of the first failure, and then once a minute.
func (w *Worker) trouble(what string, err error) {
	w.mu.Lock()
	last, had := w.troubles[what]
	isNews := !had || time.Since(last) > time.Minute
	if isNews {
		w.troubles[what] = time.Now()
	}
	w.mu.Unlock()
	if isNews {
		w.config.Logf("tickr: %s: %v; the worker tries again", what, err)
	}
}

// pause waits after a failure: once every address has failed, and for as long as the server at the next address asked
// for. A heartbeat does not wait that long.
func (w *Worker) pause(ctx context.Context, what string, failures int, got *answer, longest time.Duration) {
	addresses := len(w.transport.addresses)
	var d time.Duration
	isElsewhere := (failures+1)%addresses != 0 && (got == nil || isPassing(got.status))
	if !isElsewhere {
		d = pauseAfter(failures/addresses, longest)
	}
	if what != "beat" {
		w.mu.Lock()
		until := w.notBefore[fmt.Sprint(what, w.transport.now())]
		w.mu.Unlock()
		d = longer(d, time.Until(until))
	}
	sleep(ctx, d)
}
