// Doubles for tests of programs that use tickr.

import { AssertionError } from 'node:assert';
import { isDeepStrictEqual } from 'node:util';

import type { FollowUp, NewJob, Receipt } from './api.js';
import type { CallOptions, Enqueued, EnqueueOptions, Enqueuer } from './client.js';
import { Context, type AttemptJob } from './context.js';
import { parse, stringify } from './json.js';
import { bodyOf, jobOf, type Kind } from './kind.js';
import { uuidv7 } from './outbox.js';
import { execute, type Handler } from './run.js';

/** What a handler did in {@link runHandler}. */
export interface Outcome<Result = unknown> {
  verdict: 'succeeded' | 'failed' | 'rejected' | 'snoozed' | 'released';
  /** What it returned, as JSON gives it back. */
  result: Result | undefined;
  error: string | undefined;
  delayMs: number | undefined;
  /** Its reports of progress, in order. */
  progress: { percent: number | undefined; note: string | undefined }[];
  /** The newest checkpoint that it saved. */
  checkpoint: unknown;
  /** The log of the attempt. */
  log: string;
  /** What it enqueued. */
  enqueued: FakeClient;
  /** The jobs of `context.followUp`, if it succeeded, as they would have been sent. */
  followUps: FollowUp[];
}

/** Settings of {@link runHandler}. */
export interface RunHandlerOptions {
  /** Fields of the attempt that differ from those of a first attempt. */
  job?: Partial<AttemptJob>;
  /** Records what the handler enqueues. */
  client?: FakeClient;
  /** Cancels the attempt. */
  cancel?: AbortSignal;
}

/** Execute a handler without a server. The payload and the result go through JSON, as in a worker. */
export async function runHandler<P, R>(
  handler: Handler<P, R>,
  payload: P,
  options: RunHandlerOptions = {},
): Promise<Outcome<R>> {
  const now = Date.now();
  const enqueued = options.client ?? new FakeClient();
  const progress: Outcome['progress'] = [];
  let checkpoint: unknown;
  const job: AttemptJob = {
    id: uuidv7(),
    kind: 'test',
    queue: 'default',
    attempt: 1,
    max_attempts: 5,
    started_at: new Date(now).toISOString(),
    deadline_at: new Date(now + 300_000).toISOString(),
    timeout_ms: 300_000,
    ...options.job,
  };
  const reports = {
    progress: (percent: number | undefined, note: string | undefined) => void progress.push({ percent, note }),
    checkpoint: (json: string) => void (checkpoint = parse(json)),
    saved: () => Promise.resolve(),
  };
  const context = new Context(job, reports, enqueued);
  const cancel = () => context.stop('cancelled');
  options.cancel?.addEventListener('abort', cancel, { once: true });
  if (options.cancel?.aborted) cancel();
  const body = await execute(handler as Handler<never>, parse(stringify(payload)), context);
  options.cancel?.removeEventListener('abort', cancel);
  return {
    verdict: body.verdict,
    result: body.result === undefined ? undefined : (parse(body.result) as R),
    error: body.error,
    delayMs: body.delay_ms,
    progress,
    checkpoint,
    log: context.logText ?? '',
    enqueued,
    followUps: (body.follow_ups ?? []).map((json) => parse(json) as FollowUp),
  };
}

/** A client that enqueues nothing and records everything. */
export class FakeClient implements Enqueuer {
  /** The jobs, as they would have been sent. */
  readonly jobs: NewJob[] = [];

  enqueue<P, R>(kind: Kind<P, R>, payload: P, options?: EnqueueOptions): Promise<Enqueued<R>>;
  enqueue(kind: string, payload: unknown, options?: EnqueueOptions): Promise<Enqueued>;
  async enqueue(kind: Kind<never> | string, payload: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const { signal, idempotency_key, ...jobOptions } = options;
    void signal;
    void idempotency_key;
    return this.#record(jobOf(kind, payload, jobOptions));
  }

  async enqueueMany(
    jobs: readonly NewJob[],
    _options?: CallOptions & { idempotency_key?: string },
  ): Promise<Receipt[]> {
    return jobs.map((job) => ({ id: this.#record(job).id }));
  }

  /**
   * Return the jobs of a kind. With `payload`, only those whose payload has these fields, and with `options` those
   * with these options.
   */
  enqueued<P>(kind: Kind<P, unknown> | string, payload?: Partial<P>, options: Partial<NewJob> = {}): NewJob[] {
    const name = typeof kind === 'string' ? kind : kind.name;
    const expected = { ...bodyOf({ ...options, kind: name, payload: undefined }), payload: undefined };
    return this.jobs.filter(
      (job) =>
        job.kind === name &&
        (payload === undefined || has(job.payload, parse(stringify(payload)))) &&
        Object.entries(expected).every(
          ([field, value]) => value === undefined || isDeepStrictEqual(job[field as keyof NewJob], value),
        ),
    );
  }

  /** Fail unless there is such a job. Returns the first one. */
  assertEnqueued<P>(kind: Kind<P, unknown> | string, payload?: Partial<P>, options: Partial<NewJob> = {}): NewJob {
    const [job] = this.enqueued(kind, payload, options);
    if (job !== undefined) return job;
    const wanted = { kind: typeof kind === 'string' ? kind : kind.name, payload, ...options };
    throw new AssertionError({
      message: `no such job was enqueued: ${stringify(wanted)}; there are: ${stringify(this.jobs)}`,
      actual: this.jobs,
      expected: wanted,
      operator: 'assertEnqueued',
      stackStartFn: this.assertEnqueued,
    });
  }

  /** Fail if there is such a job. */
  assertNotEnqueued<P>(kind: Kind<P, unknown> | string, payload?: Partial<P>): void {
    const [job] = this.enqueued(kind, payload);
    if (job === undefined) return;
    const message = `a job was enqueued: ${stringify(job)}`;
    throw new AssertionError({ message, operator: 'assertNotEnqueued', stackStartFn: this.assertNotEnqueued });
  }

  #record(job: NewJob): Enqueued {
    // As JSON gives it back, so that an assertion sees what a handler would see.
    this.jobs.push(parse(stringify(bodyOf(job))) as NewJob);
    const id = uuidv7();
    return { id, state: 'waiting', existing: false, warnings: [], job: { id, state: 'waiting', foreign: true } };
  }
}

function has(actual: unknown, expected: unknown): boolean {
  if (typeof expected !== 'object' || expected === null || Array.isArray(expected))
    return isDeepStrictEqual(actual, expected);
  if (typeof actual !== 'object' || actual === null) return false;
  return Object.entries(expected).every(([field, value]) => has((actual as Record<string, unknown>)[field], value));
}
