package tickr

import (
	"context"
	"encoding/json"
	"errors"
	"log"
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
	// Shortest time between two heartbeats with a report that the server could not store, because its row is locked.
	unsavedTime = time.Second
	// First pause before a verdict is sent again whose row is locked.
	firstLockedPause = 500 * time.Millisecond
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
	// Client is that of the handlers. Its key, with the scope enqueue, also stands for the jobs of Attempt.Then. Default:
	// one with the address and the token of the worker, which enqueues nothing if that token has the scope work.
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
	// The reason for which no jobs can follow, or nil.
	noFollowUps error

	mu sync.Mutex
	// The attempts whose verdicts are not answered, by token.
	held map[string]*held
	// The tokens that take a slot: those that are held, and lost ones whose handlers have not ended.
	busy        map[string]*held
	seen        map[string]bool
	seenInOrder []string
	verdicts    []*held
	id          string
	beatEvery   time.Duration
	lease       time.Duration
	// The reading of clock when the newest heartbeat that was answered was sent.
	renewed      time.Duration
	lastBeat     time.Time
	drained      bool
	saves        []save
	unsavedUntil time.Time
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
	// The newest checkpoint that the server refused, and why.
	refusedVersion int
	refusal        error
	// The reading of clock from which its lease holds, at the earliest.
	renewed     time.Duration
	isUnrenewed bool
	hasVerdict  bool
	isCancelled bool
	isLost      bool
	verdict     verdictBody
	// The pause before the verdict is sent again while another session locks the row of its job.
	lockedPause time.Duration
}

type save struct {
	token   string
	version int
	done    chan error
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
		noFollowUps:  noFollowUps(transport, client.transport),
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
	start(&loops, w.leaseLoop, gone)
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

// execute runs the handler of an attempt.
func (w *Worker) execute(one *held) {
	w.mu.Lock()
	isStopping := w.isStopping
	w.mu.Unlock()
	handler, has := w.handlers[one.attempt.Kind]
	// Goexit runs nothing but what is deferred. Without a verdict the slot would never be free again.
	verdict := failed("the handler ended its goroutine")
	defer func() {
		w.settle(one, verdict)
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
		w.idleBell.ring()
	}()
	switch {
	case isStopping || !has:
		verdict = verdictBody{Verdict: "released", Error: "its worker stops and gave it back"}
	case one.attempt.Cause() != nil:
		verdict = verdictOf(nil, one.attempt.Cause(), one.attempt.Cause())
	default:
		limit := time.Duration(one.attempt.TimeoutMS) * time.Millisecond
		deadline := time.AfterFunc(limit, func() { one.attempt.stop(ErrDeadline) })
		defer deadline.Stop()
		verdict = execute(context.Background(), handler, one.payload, one.attempt)
	}
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
			// The server may have refused the checkpoint.
			one.verdict.Log = one.attempt.logText()
			w.verdicts = append(w.verdicts, one)
			w.mu.Unlock()
			w.verdictsBell.ring()
		}()
		return
	}
	w.verdicts = append(w.verdicts, one)
	w.verdictsBell.ring()
}
