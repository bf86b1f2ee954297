package tickr

import (
	"context"
	"fmt"
	"net/url"
	"time"
)

func path(id, below string) string { return "/v1/workers/" + url.PathEscape(id) + below }

// try sends a call once. It returns nil when no whole answer of tickr came. After a failure the next call goes
// elsewhere.
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
	if got.isSuccess() && !c.isAnswer(got) {
		w.trouble(what, errStray)
		w.transport.failed(place)
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
