package tickr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"
)

// resultWait is the longest wait of one request for a result. The server allows a minute.
const resultWait = 30 * time.Second

// Config says where the servers are, and gives the right to call them.
type Config struct {
	// URL is the address of a tickr process, or several, separated by commas. Default: TICKR_URL, or
	// http://127.0.0.1:7070.
	URL string
	// Token is the API key. Default: TICKR_TOKEN; without either, calls have none.
	Token string
	// Timeout is the longest time of a call with all its repetitions. Default: 30 s.
	Timeout time.Duration
}

// String shows the settings without the token.
func (c Config) String() string {
	return fmt.Sprintf("{URL:%s Token:%s Timeout:%s}", c.URL, hidden(c.Token), c.Timeout)
}

// GoString does the same for %#v.
func (c Config) GoString() string { return "tickr.Config" + c.String() }

func hidden(token string) string {
	if token == "" {
		return ""
	}
	return "***"
}

// Enqueuer enqueues jobs: a Client, the client of an Attempt, or a fake one in a test.
type Enqueuer interface {
	// Enqueue enqueues one job.
	Enqueue(ctx context.Context, kind string, payload any, options Options) (*Enqueued, error)
	// EnqueueMany enqueues up to 1,000 jobs in one request, all or none.
	EnqueueMany(ctx context.Context, idempotencyKey string, jobs ...Job) ([]Receipt, error)
}

// Enqueued is a job that was accepted, or that had the unique key already.
type Enqueued struct {
	ID    string
	State State
	// Existing is true when an unfinished job has the unique key, and nothing was written.
	Existing bool
	// Warnings are reasons why the job would not run at present, such as a paused queue.
	Warnings []string
}

// Receipt is what the server says of one of many jobs.
type Receipt struct {
	ID string `json:"id"`
	// Existing is true when an earlier job has the unique key, and nothing was written.
	Existing bool `json:"existing"`
}

// AttemptView is one execution of a job, as the API shows it.
type AttemptView struct {
	Number   int     `json:"number"`
	Runner   string  `json:"runner"`
	Verdict  *string `json:"verdict"`
	Error    *string `json:"error"`
	LogBytes int     `json:"log_bytes"`
}

// JobView is a job as the API shows it. Of the job of another producer a key with the scope enqueue sees ID and State.
type JobView struct {
	ID          string          `json:"id"`
	State       State           `json:"state"`
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue"`
	Priority    int             `json:"priority"`
	Attempt     int             `json:"attempt"`
	MaxAttempts int             `json:"max_attempts"`
	CreatedAt   time.Time       `json:"created_at"`
	ExecuteAt   time.Time       `json:"execute_at"`
	StartedAt   *time.Time      `json:"started_at"`
	FinishedAt  *time.Time      `json:"finished_at"`
	Payload     json.RawMessage `json:"payload"`
	Result      json.RawMessage `json:"result"`
	LastError   *string         `json:"last_error"`
	Tags        []string        `json:"tags"`
	OrderKey    string          `json:"order_key"`
	LimitKey    string          `json:"limit_key"`
	Progress    *struct {
		Percent float64 `json:"percent"`
		Note    string  `json:"note"`
	} `json:"progress"`
	Attempts []AttemptView `json:"attempts"`
	// Raw is the whole answer, with the fields that have no name here.
	Raw json.RawMessage `json:"-"`
}

// Ended is a job that has ended.
type Ended struct {
	ID string `json:"id"`
	// State is completed, failed or cancelled.
	State State `json:"state"`
	// Result is what the handler returned, as JSON.
	Result json.RawMessage `json:"result"`
	// LastError is the error of the last attempt that did not succeed.
	LastError string `json:"last_error"`
}

// Client calls the API of tickr. Make one for the whole program: it keeps connections open, and is safe for use by
// several goroutines.
//
// Every call but Nudge is repeated after a failed connection and after 408, 429, 502, 503 and 504, with pauses, until its context
// ends or the Timeout is over. It then returns an *Error with the problem of the last answer, or an *UnavailableError.
type Client struct {
	transport   *transport
	timeout     time.Duration
	traceparent string
}

// NewClient makes a client. It fails when the URL or the token is malformed; no server is called.
func NewClient(config Config) (*Client, error) {
	transport, err := newTransport(config.URL, config.Token)
	if err != nil {
		return nil, err
	}
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	return &Client{transport: transport, timeout: config.Timeout}, nil
}

// Enqueue enqueues a job. It is durable in MySQL when the call returns. Kind.Enqueue is the same with types.
func (c *Client) Enqueue(ctx context.Context, kind string, payload any, options Options) (*Enqueued, error) {
	fields, err := Job{Kind: kind, Payload: payload, Options: options}.fields()
	if err != nil {
		return nil, err
	}
	var seen struct {
		ID       string   `json:"id"`
		State    State    `json:"state"`
		Warnings []string `json:"warnings"`
	}
	reads := func(body []byte) bool {
		seen.ID = ""
		return json.Unmarshal(body, &seen) == nil && seen.ID != ""
	}
	got, err := c.post(ctx, "/v1/jobs", options.IdempotencyKey, fields, reads)
	if err != nil {
		return nil, err
	}
	return &Enqueued{ID: seen.ID, State: seen.State, Existing: got.status == 200, Warnings: seen.Warnings}, nil
}

// EnqueueMany enqueues up to 1,000 jobs in one request, all or none. The receipts are in the order of the jobs. An
// empty idempotency key means that the client makes one.
func (c *Client) EnqueueMany(ctx context.Context, idempotencyKey string, jobs ...Job) ([]Receipt, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	all := make([]map[string]any, len(jobs))
	for place, job := range jobs {
		fields, err := job.fields()
		if err != nil {
			return nil, err
		}
		all[place] = fields
	}
	var receipts struct {
		Jobs []Receipt `json:"jobs"`
	}
	reads := func(body []byte) bool {
		receipts.Jobs = nil
		isRead := json.Unmarshal(body, &receipts) == nil && len(receipts.Jobs) == len(jobs)
		for _, receipt := range receipts.Jobs {
			isRead = isRead && receipt.ID != ""
		}
		return isRead
	}
	if _, err := c.post(ctx, "/v1/jobs/batch", idempotencyKey, map[string]any{"jobs": all}, reads); err != nil {
		return nil, err
	}
	return receipts.Jobs, nil
}

// Get returns a job with its attempts. The code of the error is not_found when there is no such job.
func (c *Client) Get(ctx context.Context, id string) (*JobView, error) {
	got, err := c.transport.call(ctx, call{method: "GET", path: "/v1/jobs/" + url.PathEscape(id)}, c.timeout, tryTime)
	if err != nil {
		return nil, err
	}
	view := &JobView{Raw: got.body}
	return view, json.Unmarshal(got.body, view)
}

// Cancel cancels a job. It returns true when no attempt of it starts any more, and false when its handler was asked to
// stop. The code of the error is wrong_state when the job has ended.
func (c *Client) Cancel(ctx context.Context, id string) (bool, error) {
	return c.cancel(ctx, id, "")
}

// CancelUnlessExecuting cancels a job that does not run. The code of the error is wrong_state when it runs or has
// ended.
func (c *Client) CancelUnlessExecuting(ctx context.Context, id string) error {
	_, err := c.cancel(ctx, id, "?unless=executing")
	return err
}

func (c *Client) cancel(ctx context.Context, id, query string) (bool, error) {
	request := call{method: "POST", path: "/v1/jobs/" + url.PathEscape(id) + "/cancel" + query, idempotencyKey: randomID()}
	got, err := c.transport.call(ctx, request, c.timeout, tryTime)
	return err == nil && got.status != 202, err
}

// Wait waits until a job has ended, or until the context ends. A job that failed or was cancelled is no error here: see
// State. Kind.Wait returns the result with its type.
func (c *Client) Wait(ctx context.Context, id string) (*Ended, error) {
	for {
		wait := resultWait
		if end, has := ctx.Deadline(); has {
			wait = longer(shorter(wait, time.Until(end)), 0)
		}
		path := fmt.Sprintf("/v1/jobs/%s/result?wait=%dms", url.PathEscape(id), wait.Milliseconds())
		got, err := c.transport.call(ctx, call{method: "GET", path: path}, wait+c.timeout, wait+tryTime)
		if err != nil {
			return nil, err
		}
		if got.status == 200 {
			ended := &Ended{}
			return ended, json.Unmarshal(got.body, ended)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// Nudge asks a tickr process to move the rows of the outbox at once. Call it after the COMMIT to start jobs within
// milliseconds. Without it they start about a tenth of a second later, so its error may be ignored. It is tried once, for
// a second, so that it holds up no request while tickr is down.
func (c *Client) Nudge(ctx context.Context) error {
	place := c.transport.now()
	got, err := c.transport.once(ctx, place, call{method: "POST", path: "/v1/outbox/nudge"}, nudgeTime)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil || isPassing(got.status) {
		c.transport.failed(place)
	}
	if err != nil {
		return &UnavailableError{Within: nudgeTime, Err: err}
	}
	if !got.isSuccess() {
		return problemOf(got.status, got.body)
	}
	return nil
}

// Close closes the connections that are kept open. The client can still be used.
func (c *Client) Close() { c.transport.http.CloseIdleConnections() }

// Continuing returns a client over the same connections whose jobs continue this trace, unless they set one.
func (c *Client) Continuing(traceparent string) *Client {
	other := *c
	if traceparent != "" {
		other.traceparent = traceparent
	}
	return &other
}

func (c *Client) post(
	ctx context.Context, path, key string, fields map[string]any, reads func(body []byte) bool,
) (*answer, error) {
	body, err := encode(fields)
	if err != nil {
		return nil, err
	}
	if key == "" {
		key = randomID()
	}
	request := call{
		method: "POST", path: path, body: body, idempotencyKey: key, traceparent: c.traceparent, reads: reads,
	}
	return c.transport.call(ctx, request, c.timeout, tryTime)
}
