package tickr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

func (w *Worker) finishLoop(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		var part []verdictBody
		for size := 0; len(w.verdicts) > 0 && len(part) < maxVerdicts; w.verdicts = w.verdicts[1:] {
			next := w.verdicts[0].verdict
			size += len(next.Result) + len(next.Error) + len(next.Log) + 256
			for _, job := range next.FollowUps {
				size += len(job) + 1
			}
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
	// The key of the worker may enqueue nothing, so that of its client goes with jobs that follow.
	var right func(http.Header)
	for _, verdict := range verdicts {
		if len(verdict.FollowUps) > 0 {
			right = w.client.transport.mayEnqueue
		}
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		id := w.ID()
		request := call{method: "POST", path: path(id, "/finish"), body: body, right: right}
		got := w.try(ctx, request, tryTime, "finish")
		if got != nil {
			switch got.status {
			case 200:
				var told struct {
					Results []verdictResult `json:"results"`
				}
				if json.Unmarshal(got.body, &told) == nil && len(told.Results) == len(verdicts) {
					for place, verdict := range verdicts {
						switch result := told.Results[place].Result; result {
						case "refused":
						case "locked":
							w.putOff(ctx, verdict)
						default:
							w.settled(verdict.Token, result)
						}
					}
					for place, verdict := range verdicts {
						if result := told.Results[place]; result.Result == "refused" {
							w.mend(ctx, verdict, result.wrong())
						}
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

// putOff sends a verdict again later: another session locks the row of its job. The others do not wait for it.
func (w *Worker) putOff(ctx context.Context, verdict verdictBody) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.held[verdict.Token]
	if one == nil {
		return
	}
	one.verdict = verdict
	one.lockedPause = shorter(longer(2*one.lockedPause, firstLockedPause), longestPause)
	time.AfterFunc(one.lockedPause, func() {
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.verdicts = append(w.verdicts, one)
		w.mu.Unlock()
		w.verdictsBell.ring()
	})
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
	w.mend(ctx, verdicts[0], problemOf(got.status, got.body).Error())
}

// A verdictResult is the answer to one verdict.
type verdictResult struct {
	Result string `json:"result"`
	Errors []struct {
		Field  string `json:"field"`
		Detail string `json:"detail"`
	} `json:"errors"`
}

func (r verdictResult) wrong() string {
	said := make([]string, 0, len(r.Errors))
	for _, wrong := range r.Errors {
		said = append(said, strings.TrimSpace(wrong.Field+" "+wrong.Detail))
	}
	return strings.Join(said, "; ")
}

// mend replaces a verdict that the server refuses by one that says so.
func (w *Worker) mend(ctx context.Context, verdict verdictBody, problem string) {
	w.config.Logf("tickr: the server refuses a verdict: %s", problem)
	const refusal = "the server refuses the verdict "
	switch {
	case verdict.Log != "":
		// The log goes first, because it is the least of what is lost.
		verdict.Log = ""
	case len(verdict.Error) > len(refusal) && verdict.Error[:len(refusal)] == refusal:
		w.settled(verdict.Token, "refused")
		return
	default:
		why := cut(fmt.Sprintf("%s%s: %s", refusal, verdict.Verdict, problem), 1_000)
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
