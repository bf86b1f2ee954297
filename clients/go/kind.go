package tickr

import (
	"context"
	"encoding/json"
	"fmt"
)

// Kind is a kind of job with the types of its payload and of its result. Producers and workers share the value:
//
//	var SendMail = tickr.Kind[Mail, Receipt]{Name: "mail.send"}
type Kind[Payload, Result any] struct {
	Name string
}

// Enqueue enqueues a job of this kind.
func (k Kind[P, R]) Enqueue(ctx context.Context, client Enqueuer, payload P, options Options) (*Enqueued, error) {
	return client.Enqueue(ctx, k.Name, payload, options)
}

// Job returns a job of this kind, for EnqueueMany.
func (k Kind[P, R]) Job(payload P, options Options) Job {
	return Job{Kind: k.Name, Payload: payload, Options: options}
}

// EnqueueTx enqueues a job of this kind in a transaction of yours: see EnqueueTx.
func (k Kind[P, R]) EnqueueTx(ctx context.Context, tx Execer, payload P, options Options) (string, error) {
	return EnqueueTx(ctx, tx, k.Job(payload, options))
}

// Wait waits until a job of this kind has ended, and returns its result. A job that did not complete is a *JobError.
func (k Kind[P, R]) Wait(ctx context.Context, client *Client, id string) (R, error) {
	var result R
	ended, err := client.Wait(ctx, id)
	if err != nil {
		return result, err
	}
	if ended.State != Completed {
		return result, &JobError{ID: id, State: ended.State, LastError: ended.LastError}
	}
	if err := json.Unmarshal(ended.Result, &result); err != nil {
		return result, fmt.Errorf("tickr: the result of job %s has another type: %w", id, err)
	}
	return result, nil
}
