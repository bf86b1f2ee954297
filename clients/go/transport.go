package tickr

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultURL   = "http://127.0.0.1:7070"
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// Longest time of one try of a call. Another try, perhaps at another address, follows it.
	tryTime = 10 * time.Second
	// Time of a nudge, which holds up the request of a user.
	nudgeTime = time.Second
	// Longest wait that a server may ask of a call.
	longestWait = time.Minute
	// An answer is as large as its jobs. More is no answer of tickr.
	maxAnswerBytes = 1 << 30
)

type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration
	// Whether the server asked for a pause.
	asks bool
}

func (a *answer) isSuccess() bool { return a.status >= 200 && a.status < 300 }

type call struct {
	method         string
	path           string
	body           []byte
	idempotencyKey string
	traceparent    string
	// Shows a further right in a header. Nil: there is none. A function for the reason of transport.authorize.
	right func(http.Header)
	// Reads the body of a success, and says whether it comes from tickr. Nil: nothing is read.
	reads func(body []byte) bool
}

// isAnswer says whether a success comes from tickr. A proxy may answer with a page of its own.
func (c call) isAnswer(got *answer) bool { return c.reads == nil || c.reads(got.body) }

// checkHeaders refuses what no header can have, because no repetition of the call could send it.
func (c call) checkHeaders() error {
	if c.idempotencyKey != "" && !isKey(c.idempotencyKey) {
		return errors.New("tickr: an idempotency key has 1 to 255 visible ASCII characters")
	}
	for _, sign := range c.traceparent {
		if sign < ' ' || sign > '~' {
			return errors.New("tickr: the traceparent has a character that no header can have")
		}
	}
	return nil
}

func isKey(text string) bool {
	for _, sign := range text {
		if sign < '!' || sign > '~' {
			return false
		}
	}
	return len(text) <= 255
}

var errStray = errors.New("the answer does not come from tickr")

// transport sends calls to the addresses of a cluster.
type transport struct {
	addresses []string
	// Sets a header with this name. A function, because package fmt shows every field: it would show the token.
	authorize func(header http.Header, name string)
	http      *http.Client

	mu      sync.Mutex
	current int
}

func newTransport(addresses, token string) (*transport, error) {
	if addresses == "" {
		addresses = os.Getenv("TICKR_URL")
	}
	if addresses == "" {
		addresses = defaultURL
	}
	if token == "" {
		token = os.Getenv("TICKR_TOKEN")
	}
	for _, sign := range token {
		if sign < '!' || sign > '~' {
			return nil, errors.New("tickr: the token has a character that no header can have")
		}
	}
	t := &transport{authorize: func(header http.Header, name string) {
		if token != "" {
			header.Set(name, "Bearer "+token)
		}
	}}
	for _, part := range strings.Split(addresses, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		parsed, err := url.Parse(part)
		if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			return nil, errors.New("tickr: the URL is none: it is like http://127.0.0.1:7070")
		}
		if parsed.User != nil {
			// It would end in messages about the address.
			return nil, errors.New("tickr: the URL has a password: give the API key as token")
		}
		t.addresses = append(t.addresses, strings.TrimRight(part, "/"))
	}
	if len(t.addresses) == 0 {
		return nil, errors.New("tickr: the URL is empty")
	}
	// Each client has connections of its own, so that the end of one disturbs no other.
	kept := &http.Transport{
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     20 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableCompression:  true,
		// HTTP/1.1, as docs/WORKERS.md says. With HTTP/2 all calls share one connection, and when it breaks without a
		// word, beats and verdicts time out on it again and again.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.http = &http.Client{Transport: kept, CheckRedirect: noRedirect}
	return t, nil
}

// now returns the place of the address to call.
func (t *transport) now() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current
}

// failed says that a call to the address at this place failed, so that the next call goes to another one.
func (t *transport) failed(place int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == place {
		t.current = (place + 1) % len(t.addresses)
	}
}

// once sends one call. It fails if no whole answer comes within the time.
func (t *transport) once(ctx context.Context, place int, c call, within time.Duration) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var body io.Reader
	if c.body != nil {
		body = bytes.NewReader(c.body)
	}
	request, err := http.NewRequestWithContext(limited, c.method, t.addresses[place]+c.path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("accept", "application/json")
	if c.body != nil {
		request.Header.Set("content-type", "application/json")
	}
	t.authorize(request.Header, "authorization")
	if c.right != nil {
		c.right(request.Header)
	}
	if c.idempotencyKey != "" {
		request.Header.Set("idempotency-key", c.idempotencyKey)
	}
	if c.traceparent != "" {
		request.Header.Set("traceparent", c.traceparent)
	}
	response, err := t.http.Do(request)
	if err == nil {
		defer response.Body.Close()
		var text []byte
		text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
		if err == nil {
			wait, asks := retryAfter(response.Header.Get("retry-after"))
			return &answer{status: response.StatusCode, body: text, retryAfter: wait, asks: asks}, nil
		}
	}
	if ctx.Err() == nil && limited.Err() != nil {
		return nil, fmt.Errorf("no answer within %s", within.Round(time.Millisecond))
	}
	return nil, err
}

// call sends a call until a server answers it, for at most this time. After a failure the next address is tried, as
// turns says.
func (t *transport) call(ctx context.Context, c call, within, try time.Duration) (*answer, error) {
	if err := c.checkHeaders(); err != nil {
		return nil, err
	}
	end := time.Now().Add(within)
	var problem *Error
	turns := newTurns(len(t.addresses))
	for {
		place := turns.place(t.now())
		var asked time.Duration
		left := time.Until(end)
		if left < time.Millisecond {
			left = time.Millisecond
		}
		got, err := t.once(ctx, place, c, shorter(try, left))
		if err == nil && got.isSuccess() {
			if c.isAnswer(got) {
				return got, nil
			}
			err = errStray
		} else if err == nil {
			problem = problemOf(got.status, got.body)
			if !isPassing(got.status) && problem.Code != "idempotency_in_progress" {
				return nil, problem
			}
			err = problem
			asked = shorter(got.retryAfter, longestWait)
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t.failed(place)
		pause := turns.next(place, asked)
		if time.Until(end) <= pause {
			// The last answer says more than a try that was cut off by the end of the time.
			if problem != nil {
				return nil, problem
			}
			return nil, &UnavailableError{Within: within, Err: err}
		}
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// turns are the addresses of a call that is repeated, and the pauses between its tries.
//
// The pauses grow. With several addresses a pause follows when all of them have failed, and the next one is tried at
// once before. An address that named a time with Retry-After gets no try before that time, also when another one has
// failed since. If another one named none, the pause is over at that time.
type turns struct {
	// By place: when the address may be tried again.
	notBefore []time.Time
	// By place: whether the address has failed since the last pause.
	failed []bool
	pauses int
}

func newTurns(addresses int) *turns {
	return &turns{notBefore: make([]time.Time, addresses), failed: make([]bool, addresses)}
}

// place returns the place of the address for the next try. Other calls use the one at current.
func (t *turns) place(current int) int {
	now, count := time.Now(), len(t.notBefore)
	best, bestRank := current, 4
	for step := 0; step < count; step++ {
		place := (current + step) % count
		rank := 0
		if t.notBefore[place].After(now) {
			rank += 2
		}
		if t.failed[place] {
			rank++
		}
		if rank < bestRank {
			best, bestRank = place, rank
		}
	}
	return best
}

// next returns the time until the next try, after one at this place that failed. Its address asked for a pause.
func (t *turns) next(place int, asked time.Duration) time.Duration {
	now := time.Now()
	t.failed[place] = true
	t.notBefore[place] = now.Add(asked)
	// The addresses that named a time which is not over: their number, and the first of their times.
	waiting, first := 0, time.Time{}
	for other, notBefore := range t.notBefore {
		if notBefore.After(now) {
			if waiting == 0 || notBefore.Before(first) {
				first = notBefore
			}
			waiting++
		} else if !t.failed[other] {
			return 0
		}
	}
	t.failed = make([]bool, len(t.failed))
	pause := pauseAfter(t.pauses, longestPause)
	t.pauses++
	switch waiting {
	case 0:
		// A proxy may ask for no pause at all.
		return pause
	case len(t.notBefore):
		return longer(pause, first.Sub(now))
	default:
		return shorter(pause, first.Sub(now))
	}
}

// isPassing says whether the same call may succeed after this status.
func isPassing(status int) bool {
	return status == 408 || status == 429 || status == 502 || status == 503 || status == 504
}

var (
	jitterLock sync.Mutex
	jitter     = rand.New(rand.NewSource(time.Now().UnixNano()))
)

// pauseAfter returns the pause after this many failures in a row: growing, and varied by a fifth.
func pauseAfter(failures int, longest time.Duration) time.Duration {
	if failures > 10 {
		failures = 10
	}
	jitterLock.Lock()
	share := 0.8 + 0.2*jitter.Float64()
	jitterLock.Unlock()
	return time.Duration(float64(shorter(firstPause<<failures, longest)) * share)
}

// sleep waits for this time. It returns false as soon as the context ends.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func retryAfter(header string) (time.Duration, bool) {
	if header == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(header); err == nil {
		return longer(time.Until(at), 0), true
	}
	return 0, false
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}
