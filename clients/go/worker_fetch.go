package tickr

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

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
	var end time.Time
	for failures := 0; ; failures++ {
		got := w.try(ctx, w.registration(), tryTime, "register")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if got != nil && got.status == 201 && w.registered(got, "registered") {
			return nil
		}
		if got != nil && got.status >= 400 && got.status < 500 && !isPassing(got.status) {
			// A kind that was declared a moment ago may not be known to this process yet. The server may come long after
			// this program, so the time runs from its first such answer.
			if end.IsZero() {
				end = time.Now().Add(declaredWithin)
			}
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
		ID      string `json:"id"`
		BeatMS  int64  `json:"beat_ms"`
		LeaseMS int64  `json:"lease_ms"`
	}
	if json.Unmarshal(got.body, &told) != nil || told.ID == "" {
		return false
	}
	w.mu.Lock()
	w.id = told.ID
	w.beatEvery = time.Duration(told.BeatMS) * time.Millisecond
	w.lease = time.Duration(told.LeaseMS) * time.Millisecond
	if w.lease <= 0 {
		w.lease = 3 * w.beatEvery
	}
	w.lastBeat = time.Now()
	w.mu.Unlock()
	w.config.Logf("tickr: the worker %s is %s", told.ID, how)
	return true
}

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
		// The bell also rings for a slot that became free before the drain, and that is no reason to ask earlier.
		for end := time.Now().Add(every); drained && ctx.Err() == nil && time.Now().Before(end); {
			w.slotsBell.wait(ctx, time.Until(end))
			w.mu.Lock()
			drained = w.drained
			w.mu.Unlock()
		}
		if ctx.Err() != nil {
			return
		}
		if slots > maxJobs {
			slots = maxJobs
		}
		w.fetch(ctx, slots)
	}
}

func (w *Worker) fetch(ctx context.Context, slots int) {
	body, _ := encode(map[string]any{
		"slots": slots, "wait_ms": w.config.Wait.Milliseconds(), "holding": w.tokens(), "fetch_id": NewID(),
	})
	var jobs fetched
	tries := sending{first: clock()}
	for failures := 0; ctx.Err() == nil; failures++ {
		id := w.ID()
		// The same body again, to any process, gets the same jobs and nothing new.
		tries.last, tries.isRepeated = clock(), failures > 0
		request := call{method: "POST", path: path(id, "/fetch"), body: body, reads: jobs.read}
		got := w.try(ctx, request, w.config.Wait+tryTime, "fetch")
		if ctx.Err() != nil {
			return
		}
		if got != nil && got.status == 200 {
			w.deliver(jobs, tries)
			return
		}
		if got != nil && got.status == 404 {
			w.registerAgain(ctx, id)
			return
		}
		w.pause(ctx, "fetch", failures, got, longestPause)
	}
}

// fetched is the answer to a request for jobs.
type fetched struct {
	// Nil in JSON that is none of tickr.
	Jobs   *[]fetchedJob `json:"jobs"`
	Drain  bool          `json:"drain"`
	TookMS *int64        `json:"took_ms"`
}

type fetchedJob struct {
	AttemptInfo
	Token      string          `json:"token"`
	Payload    json.RawMessage `json:"payload"`
	Checkpoint json.RawMessage `json:"checkpoint"`
}

func (f *fetched) read(body []byte) bool {
	*f = fetched{}
	return json.Unmarshal(body, f) == nil && f.Jobs != nil
}

// onWay returns for how long the answer to a request that was sent at this reading of clock was on its way, or nothing
// if it does not say how long it was at the process.
func (f *fetched) onWay(now, sent time.Duration) *time.Duration {
	if f.TookMS == nil {
		return nil
	}
	way := longer(0, now-sent-time.Duration(*f.TookMS)*time.Millisecond)
	return &way
}

// deliver starts the jobs of an answer that are new.
func (w *Worker) deliver(answer fetched, tries sending) {
	var fresh []*held
	late := 0
	jobs := *answer.Jobs
	now := clock()
	way := answer.onWay(now, tries.last)
	w.mu.Lock()
	// After a quarter of the lease on its way, the answer counts as lost. The next request lists none of its jobs.
	if way != nil && *way >= w.beatEvery*3/4 {
		late = len(jobs)
		jobs = nil
	}
	renewed := w.heldSince(now, way, tries)
	for _, job := range jobs {
		if w.seen[job.Token] {
			continue
		}
		w.remember(job.Token)
		one := &held{worker: w, token: job.Token, payload: job.Payload, renewed: renewed}
		one.attempt = &Attempt{
			AttemptInfo: job.AttemptInfo, began: job.Checkpoint, reports: one, client: w.client.Continuing(job.Traceparent),
			noFollowUps: w.noFollowUps,
		}
		w.held[job.Token] = one
		w.busy[job.Token] = one
		w.running++
		fresh = append(fresh, one)
	}
	w.mu.Unlock()
	if late > 0 {
		w.config.Logf("tickr: an answer with %d jobs came late and counts as lost", late)
	}
	for _, one := range fresh {
		go w.execute(one)
	}
	w.drain(answer.Drain)
}

// remember is called with the lock.
func (w *Worker) remember(token string) {
	w.seen[token] = true
	w.seenInOrder = append(w.seenInOrder, token)
	// Those that are busy go to the end: one long job must not keep the tokens of all that came after it.
	for looks := len(w.busy); len(w.seenInOrder) > remembered && looks >= 0; {
		oldest := w.seenInOrder[0]
		w.seenInOrder = w.seenInOrder[1:]
		if w.busy[oldest] != nil {
			w.seenInOrder = append(w.seenInOrder, oldest)
			looks--
			continue
		}
		delete(w.seen, oldest)
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
