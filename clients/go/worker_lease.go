package tickr

import (
	"context"
	"time"
)

const (
	// Longest time between two looks at the leases. A timer stands still while the machine is suspended.
	leaseLook = time.Second
	// Looks in one lease.
	leaseLooks = 20
)

var began = time.Now()

// leaseLoop stops the attempts for which no heartbeat was answered until nine tenths of the lease were over: another
// worker may start their jobs at its end.
func (w *Worker) leaseLoop(ctx context.Context) {
	for sleep(ctx, w.stopUnrenewed()) {
	}
}

// stopUnrenewed returns the time until the next look.
func (w *Worker) stopUnrenewed() time.Duration {
	var over []*held
	w.mu.Lock()
	now, most := clock(), w.lease*9/10
	next := shorter(leaseLook, longer(w.lease/leaseLooks, time.Millisecond))
	for _, one := range w.held {
		if one.hasVerdict || one.isUnrenewed {
			continue
		}
		if left := one.renewed + most - now; left > 0 {
			next = shorter(next, left)
			continue
		}
		// It stays held, so that a later heartbeat tells what has become of it.
		one.isUnrenewed = true
		over = append(over, one)
	}
	w.mu.Unlock()
	for _, one := range over {
		w.config.Logf("tickr: job %s is stopped: no heartbeat was answered, and its lease ends", one.attempt.ID)
		one.attempt.stop(ErrLost)
	}
	return next
}

// A sending has the readings of clock at the first and at the last try of a request.
type sending struct {
	first      time.Duration
	last       time.Duration
	isRepeated bool
}

// heldSince is called with the lock. It returns the reading of clock from which the leases of new attempts hold at the
// earliest. Their answer was read now, and was on its way for this long.
func (w *Worker) heldSince(now time.Duration, way *time.Duration, tries sending) time.Duration {
	if way == nil {
		// The request may have waited for longer than a lease, and the heartbeats went on meanwhile.
		return longer(tries.first, w.renewed)
	}
	left := now - *way
	if tries.isRepeated {
		// A repeated answer may have jobs that were claimed a quarter of the lease before.
		left -= w.lease / 4
	}
	return longer(tries.first, left)
}

// renew is called with the lock. It notes that a heartbeat that was sent then, with these tokens, was answered.
func (w *Worker) renew(tokens []string, sent time.Duration) {
	w.renewed = longer(w.renewed, sent)
	for _, token := range tokens {
		if one := w.held[token]; one != nil {
			one.renewed = longer(one.renewed, sent)
		}
	}
}
