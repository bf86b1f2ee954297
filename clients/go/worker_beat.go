package tickr

import (
	"context"
	"encoding/json"
	"time"
)

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
