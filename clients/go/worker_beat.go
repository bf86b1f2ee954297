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
		// A report that the server could not store waits longer than others.
		unsaved := time.Until(w.unsavedUntil)
		for _, one := range w.held {
			if one.version > one.sent {
				rest = shorter(rest, longer(newsTime-since, unsaved))
			}
		}
		if len(w.saves) > 0 {
			rest = shorter(rest, longer(0, unsaved))
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

// A report is what the handler of an attempt has said since the last heartbeat.
type report struct {
	token   string
	version int
	text    []byte
}

// news returns what handlers have said and the server does not have yet.
func (w *Worker) news() []report {
	w.mu.Lock()
	defer w.mu.Unlock()
	var news []report
	for token, one := range w.held {
		if one.version <= one.sent {
			continue
		}
		var said struct {
			Token      string          `json:"token"`
			Percent    *float64        `json:"percent,omitempty"`
			Note       *string         `json:"note,omitempty"`
			Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
		}
		said.Token, said.Percent, said.Note = token, one.percent, one.note
		if one.checkpointVersion > one.sent {
			said.Checkpoint = one.checkpointText
		}
		text, _ := encode(said)
		news = append(news, report{token: token, version: one.version, text: text})
	}
	return news
}

// tokens returns the tokens of all attempts that the worker holds.
func (w *Worker) tokens() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	tokens := make([]string, 0, len(w.held))
	for token := range w.held {
		tokens = append(tokens, token)
	}
	return tokens
}

// holding returns the entries of a heartbeat: each token, with what is said of it.
func holding(tokens []string, said []report) [][]byte {
	texts := map[string][]byte{}
	for _, one := range said {
		texts[one.token] = one.text
	}
	entries := make([][]byte, 0, len(tokens))
	for _, token := range tokens {
		text, isSaid := texts[token]
		if !isSaid {
			text, _ = encode(map[string]string{"token": token})
		}
		entries = append(entries, text)
	}
	return entries
}

// beat sends what the worker holds. Each request lists every token, because the server takes an attempt that is not
// listed for one that did not arrive. What handlers have said goes in as many requests as its size needs. It returns
// false if one of them failed.
func (w *Worker) beat(ctx context.Context) bool {
	news := w.news()
	most := len(news)
	// A worker that holds nothing beats as well: its own lease is to be renewed.
	for {
		tokens := w.tokens()
		bare := holding(tokens, nil)
		count, size := 0, 0
		for _, entry := range bare {
			size += len(entry) + 1
		}
		for count < len(news) && (count == 0 || count < most && size+len(news[count].text) < bodyBytes) {
			size += len(news[count].text) + 1
			count++
		}
		part := news[:count]
		isSent, isRefused, unsaved := w.beatOf(ctx, holding(tokens, part))
		if isRefused && count > 1 {
			// A proxy may take less than the server, or one of the reports is wrong. Fewer go in one request.
			most = count / 2
			continue
		}
		news = news[count:]
		if isRefused {
			w.config.Logf("tickr: the server refuses a report of a handler: progress and checkpoint are left out")
			isSent, _, _ = w.beatOf(ctx, bare)
		}
		if !isSent {
			return false
		}
		w.mu.Lock()
		// What could not be stored for a locked row goes with a later heartbeat again.
		if len(unsaved) > 0 {
			w.unsavedUntil = time.Now().Add(unsavedTime)
		}
		for _, sent := range part {
			if one := w.held[sent.token]; one != nil && !unsaved[sent.token] && one.sent < sent.version {
				one.sent = sent.version
			}
		}
		w.answerSaves()
		w.mu.Unlock()
		if len(news) == 0 {
			return true
		}
	}
}

func (w *Worker) beatOf(ctx context.Context, entries [][]byte) (isSent, isRefused bool, unsaved map[string]bool) {
	body := []byte(`{"holding":[`)
	for place, entry := range entries {
		if place > 0 {
			body = append(body, ',')
		}
		body = append(body, entry...)
	}
	body = append(body, `]}`...)
	w.mu.Lock()
	id, every := w.id, w.beatEvery
	w.mu.Unlock()
	within := shorter(longer(every, time.Second), 5*time.Second)
	got := w.try(ctx, call{method: "POST", path: path(id, "/beat"), body: body}, within, "beat")
	if got == nil {
		return false, false, nil
	}
	switch got.status {
	case 200:
	case 404:
		w.registerAgain(ctx, id)
		return false, false, nil
	case 400, 413, 422:
		return false, true, nil
	default:
		return false, false, nil
	}
	var told struct {
		Cancel  []string `json:"cancel"`
		Lost    []string `json:"lost"`
		Drain   bool     `json:"drain"`
		Unsaved []string `json:"unsaved"`
	}
	if json.Unmarshal(got.body, &told) != nil {
		return false, false, nil
	}
	unsaved = map[string]bool{}
	for _, token := range told.Unsaved {
		unsaved[token] = true
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
	return true, false, unsaved
}
