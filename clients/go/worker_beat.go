package tickr

import (
	"context"
	"encoding/json"
	"fmt"
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

func (h *held) saved() <-chan error {
	h.worker.mu.Lock()
	defer h.worker.mu.Unlock()
	return h.worker.saveLocked(h)
}

// saveLocked returns a channel that gets nil when the server has the newest checkpoint of an attempt, or an error when
// the server refuses it or the worker does not hold the attempt any more.
func (w *Worker) saveLocked(one *held) <-chan error {
	done := make(chan error, 1)
	if w.held[one.token] == nil || one.checkpointVersion <= one.sent {
		done <- w.held[one.token].refused(one.checkpointVersion)
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
			one.done <- holds.refused(one.version)
		}
	}
	w.saves = waiting
}

// refused returns why the server does not have the checkpoint of this version, which it has seen.
func (h *held) refused(version int) error {
	switch {
	case h == nil:
		return ErrLost
	case h.refusal != nil && h.refusedVersion >= version:
		return h.refusal
	default:
		return nil
	}
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
	// The version of its checkpoint, or 0.
	checkpointVersion int
	text              []byte
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
		this := report{token: token, version: one.version}
		if one.checkpointVersion > one.sent {
			said.Checkpoint, this.checkpointVersion = one.checkpointText, one.checkpointVersion
		}
		this.text, _ = encode(said)
		news = append(news, this)
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
		told := w.beatOf(ctx, tokens, part)
		if told.problem != "" && count > 1 {
			// A proxy may take less than the server, or one of the reports is wrong. Fewer go in one request.
			most = count / 2
			continue
		}
		news = news[count:]
		if problem := told.problem; problem != "" {
			told = w.beatOf(ctx, tokens, nil)
			for _, sent := range part {
				wrong := refusedReport{Token: sent.token, Field: "progress", Detail: problem}
				if sent.checkpointVersion > 0 {
					wrong.Field = "checkpoint"
				}
				told.refused = append(told.refused, wrong)
			}
		}
		if !told.isSent {
			return false
		}
		w.noteRefused(told.refused, part)
		w.noteSent(part, told.unsaved)
		if len(news) == 0 {
			return true
		}
	}
}

// noteSent notes which reports the server has. What it could not store for a locked row goes with a later heartbeat
// again.
func (w *Worker) noteSent(part []report, unsaved map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(unsaved) > 0 {
		w.unsavedUntil = time.Now().Add(unsavedTime)
	}
	for _, sent := range part {
		if one := w.held[sent.token]; one != nil && !unsaved[sent.token] && one.sent < sent.version {
			one.sent = sent.version
		}
	}
	w.answerSaves()
}

// A refusedReport is a report of a handler that the server left out of a heartbeat.
type refusedReport struct {
	Token  string `json:"token"`
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// noteRefused tells the operator and the logs of the attempts what the server refused of these reports.
func (w *Worker) noteRefused(refused []refusedReport, part []report) {
	for _, wrong := range refused {
		w.mu.Lock()
		one := w.held[wrong.Token]
		for _, sent := range part {
			if one != nil && wrong.Field == "checkpoint" && sent.token == wrong.Token && sent.checkpointVersion > 0 {
				one.refusedVersion = sent.checkpointVersion
				one.refusal = fmt.Errorf("the server refuses the checkpoint: %s", wrong.Detail)
			}
		}
		w.mu.Unlock()
		if one == nil {
			continue
		}
		w.config.Logf("tickr: the server refuses a report of job %s: %s %s", one.attempt.ID, wrong.Field, wrong.Detail)
		one.attempt.LogError("the server refuses a report: %s %s", wrong.Field, wrong.Detail)
	}
}

// beaten is what came of a heartbeat.
type beaten struct {
	isSent bool
	// Why the server refuses the request, if it does.
	problem string
	unsaved map[string]bool
	refused []refusedReport
}

// beatAnswer is the answer to a heartbeat.
type beatAnswer struct {
	// Nil in JSON that is none of tickr.
	Cancel  *[]string       `json:"cancel"`
	Lost    *[]string       `json:"lost"`
	Drain   bool            `json:"drain"`
	Unsaved []string        `json:"unsaved"`
	Refused []refusedReport `json:"refused"`
}

func (b *beatAnswer) read(body []byte) bool {
	*b = beatAnswer{}
	return json.Unmarshal(body, b) == nil && b.Cancel != nil && b.Lost != nil
}

func (w *Worker) beatOf(ctx context.Context, tokens []string, part []report) beaten {
	body := []byte(`{"holding":[`)
	for place, entry := range holding(tokens, part) {
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
	var told beatAnswer
	sent := clock()
	got := w.try(ctx, call{method: "POST", path: path(id, "/beat"), body: body, reads: told.read}, within, "beat")
	if got == nil {
		return beaten{}
	}
	switch got.status {
	case 200:
	case 404:
		w.registerAgain(ctx, id)
		return beaten{}
	case 400, 413, 422:
		return beaten{problem: problemOf(got.status, got.body).Error()}
	default:
		return beaten{}
	}
	unsaved := map[string]bool{}
	for _, token := range told.Unsaved {
		unsaved[token] = true
	}
	w.obey(told, tokens, sent)
	return beaten{isSent: true, unsaved: unsaved, refused: told.Refused}
}

// obey does what the answer to a heartbeat asks for. The heartbeat had these tokens, and was sent at this reading of
// clock.
func (w *Worker) obey(told beatAnswer, tokens []string, sent time.Duration) {
	var cancelled, lost []*held
	w.mu.Lock()
	w.renew(tokens, sent)
	for _, token := range *told.Cancel {
		if one := w.held[token]; one != nil && !one.isCancelled {
			one.isCancelled = true
			cancelled = append(cancelled, one)
		}
	}
	for _, token := range *told.Lost {
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
}
