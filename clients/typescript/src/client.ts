import { randomUUID } from 'node:crypto';

import type { ForeignJobView, JobOptions, JobState, JobView, NewJob, Receipt } from './api.js';
import { WaitTimeoutError } from './errors.js';
import { type ConnectOptions, Transport } from './http.js';
import { parse, stringify } from './json.js';
import { bodyOf, jobOf, type Kind } from './kind.js';

declare const resultType: unique symbol;

/** Longest wait of one request for a result, in milliseconds. The server allows a minute. */
const RESULT_WAIT_MS = 30_000;
/** Time of a nudge, in milliseconds. */
const NUDGE_MS = 1_000;

/** Settings of a {@link Client}. */
export interface ClientOptions extends ConnectOptions {
  /** Longest time of a call with all its repetitions, in milliseconds. Default: 30,000. */
  timeoutMs?: number;
  /** Trace that jobs continue which set none of their own: the value of a `traceparent` header. */
  traceparent?: string;
}

/** What every call takes. */
export interface CallOptions {
  /** Ends the call. What was sent already may still be carried out. */
  signal?: AbortSignal;
}

/** Options of an enqueue: those of the job, and of the call. */
export interface EnqueueOptions extends JobOptions, CallOptions {
  /**
   * Name of this request: a request with the same name and the same job is carried out once. Default: the client
   * makes one for each call, so that its own repetitions enqueue once. Give your own, of 1 to 255 visible ASCII
   * characters, to repeat a call yourself.
   */
  idempotency_key?: string;
}

/** A job that was accepted, or that had the unique key already. */
export interface Enqueued<Result = unknown> {
  id: string;
  state: JobState;
  /** True when an unfinished job has the unique key, and nothing was written. */
  existing: boolean;
  /** Reasons why the job would not run at present, such as a paused queue. */
  warnings: string[];
  /** The job as the API shows it. */
  job: JobView | ForeignJobView;
  /** Only for the compiler. */
  readonly [resultType]?: () => Result;
}

/** A job that has ended. */
export interface Ended<Result = unknown> {
  id: string;
  state: 'completed' | 'failed' | 'cancelled';
  /** What the handler returned, with `completed`. */
  result: Result;
  last_error: string | null;
}

/** What enqueues: a {@link Client}, or a fake of it in a test. */
export interface Enqueuer {
  enqueue<P, R>(kind: Kind<P, R>, payload: P, options?: EnqueueOptions): Promise<Enqueued<R>>;
  enqueue(kind: string, payload: unknown, options?: EnqueueOptions): Promise<Enqueued>;
  enqueueMany(jobs: readonly NewJob[], options?: CallOptions & { idempotency_key?: string }): Promise<Receipt[]>;
}

/**
 * A client of the API of tickr. Make one for the whole program: it keeps connections open.
 *
 * Every call but a nudge is repeated after a failed connection and after 408, 429, 502, 503 and 504, with pauses, for at most
 * `timeoutMs`. Then it throws an `ApiError` with the problem of the last answer, or an `UnavailableError`.
 */
export class Client implements Enqueuer {
  readonly #transport: Transport;
  readonly #timeoutMs: number;
  readonly #traceparent: string | undefined;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
    this.#timeoutMs = options.timeoutMs ?? 30_000;
    this.#traceparent = options.traceparent;
  }

  /** Enqueue a job. It is durable in MySQL when the promise resolves. */
  enqueue<P, R>(kind: Kind<P, R>, payload: P, options?: EnqueueOptions): Promise<Enqueued<R>>;
  enqueue(kind: string, payload: unknown, options?: EnqueueOptions): Promise<Enqueued>;
  async enqueue(kind: Kind<never> | string, payload: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    return this.#enqueue(jobOf(kind, payload, jobOptions(options)), options, this.#traceparent);
  }

  /**
   * Enqueue up to 1,000 jobs in one request, all or none. The receipts are in the order of the jobs.
   *
   * A job is what `kind.job(payload, options)` returns, or `{ kind, payload, ...options }`.
   */
  async enqueueMany(
    jobs: readonly NewJob[],
    options: CallOptions & { idempotency_key?: string } = {},
  ): Promise<Receipt[]> {
    return this.#enqueueMany(jobs, options, this.#traceparent);
  }

  /** @internal */
  get transport(): Transport {
    return this.#transport;
  }

  /** Return a client over the same connections whose jobs continue this trace. */
  continuing(traceparent: string | undefined): Enqueuer {
    const enqueue = (kind: Kind<never> | string, payload: unknown, options: EnqueueOptions = {}) =>
      this.#enqueue(jobOf(kind, payload, jobOptions(options)), options, traceparent ?? this.#traceparent);
    return {
      enqueue: enqueue as Enqueuer['enqueue'],
      enqueueMany: (jobs, options = {}) => this.#enqueueMany(jobs, options, traceparent ?? this.#traceparent),
    };
  }

  /**
   * Return the job with its attempts.
   *
   * @throws ApiError with the code `not_found` when there is no such job.
   */
  async get(id: string, options: CallOptions = {}): Promise<JobView | ForeignJobView> {
    const answer = await this.#call('GET', `/v1/jobs/${encodeURIComponent(id)}`, options);
    return parse(answer.text) as JobView | ForeignJobView;
  }

  /**
   * Cancel a job. Returns `cancelled` when no attempt of it starts any more, and `stopping` when its handler was
   * asked to stop. With `unless: 'executing'` a job that runs goes on.
   *
   * @throws ApiError with the code `wrong_state` when the job has ended, or runs and was to be left alone.
   */
  async cancel(id: string, options: CallOptions & { unless?: 'executing' } = {}): Promise<'cancelled' | 'stopping'> {
    const query = options.unless === undefined ? '' : `?unless=${options.unless}`;
    const path = `/v1/jobs/${encodeURIComponent(id)}/cancel${query}`;
    const answer = await this.#call('POST', path, { ...options, idempotencyKey: randomUUID() });
    return answer.status === 202 ? 'stopping' : 'cancelled';
  }

  /**
   * Wait until the job has ended, for at most `timeoutMs` (default: ten minutes). A job that failed or was cancelled
   * is no error here: see `state`.
   *
   * @throws WaitTimeoutError when the time is over. ApiError with the code `not_found` when there is no such job.
   */
  wait<R>(job: Enqueued<R>, options?: CallOptions & { timeoutMs?: number }): Promise<Ended<R>>;
  wait(job: string, options?: CallOptions & { timeoutMs?: number }): Promise<Ended>;
  async wait(job: string | Enqueued, options: CallOptions & { timeoutMs?: number } = {}): Promise<Ended> {
    const id = typeof job === 'string' ? job : job.id;
    const { timeoutMs = 600_000, signal } = options;
    const end = performance.now() + timeoutMs;
    for (;;) {
      const left = end - performance.now();
      const wait = Math.round(Math.min(Math.max(left, 0), RESULT_WAIT_MS));
      const call = { method: 'GET', path: `/v1/jobs/${encodeURIComponent(id)}/result?wait=${wait}ms` };
      const answer = await this.#transport.call(call, Math.max(left, 0) + 10_000, signal, wait + 10_000);
      if (answer.status === 200) return parse(answer.text) as Ended;
      if (performance.now() >= end) throw new WaitTimeoutError(id, timeoutMs);
    }
  }

  /**
   * Ask a tickr process to move the rows of the outbox at once. Call it after the COMMIT to start jobs within
   * milliseconds. Without it they start about a tenth of a second later, so an error may be ignored. It is tried
   * once, for a second, so that it holds up no request while tickr is down.
   */
  async nudge(options: CallOptions = {}): Promise<void> {
    await this.#transport.tryOnce({ method: 'POST', path: '/v1/outbox/nudge' }, NUDGE_MS, options.signal);
  }

  /** Close the connections that are kept open. The client can still be used. */
  close(): void {
    this.#transport.close();
  }

  async #enqueue(job: NewJob, options: EnqueueOptions, traceparent: string | undefined): Promise<Enqueued> {
    const { signal, idempotency_key: idempotencyKey = randomUUID() } = options;
    const body = stringify(bodyOf(job));
    const call = { signal, body, idempotencyKey, traceparent, reads: (text: string) => hasId(read(text)) };
    const answer = await this.#call('POST', '/v1/jobs', call);
    const seen = parse(answer.text) as JobView | ForeignJobView;
    const warnings = 'warnings' in seen && Array.isArray(seen.warnings) ? seen.warnings : [];
    return { id: seen.id, state: seen.state, existing: answer.status === 200, warnings, job: seen };
  }

  async #enqueueMany(
    jobs: readonly NewJob[],
    options: CallOptions & { idempotency_key?: string },
    traceparent: string | undefined,
  ): Promise<Receipt[]> {
    if (jobs.length === 0) return [];
    const { signal, idempotency_key: idempotencyKey = randomUUID() } = options;
    const body = stringify({ jobs: jobs.map(bodyOf) });
    const reads = (text: string) => {
      const receipts = (read(text) as { jobs?: unknown } | null | undefined)?.jobs;
      return Array.isArray(receipts) && receipts.length === jobs.length && receipts.every(hasId);
    };
    const answer = await this.#call('POST', '/v1/jobs/batch', { signal, body, idempotencyKey, traceparent, reads });
    return (parse(answer.text) as { jobs: Receipt[] }).jobs;
  }

  #call(
    method: string,
    path: string,
    options: {
      signal?: AbortSignal | undefined;
      body?: string;
      idempotencyKey?: string;
      traceparent?: string | undefined;
      reads?: (text: string) => boolean;
    },
  ) {
    const { signal, ...call } = options;
    return this.#transport.call({ method, path, ...call }, this.#timeoutMs, signal);
  }
}

/** Read JSON. A text that is none counts as nothing. */
function read(text: string): unknown {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** Say whether a value is what tickr says of a job. */
function hasId(value: unknown): boolean {
  const id = (value as { id?: unknown } | null | undefined)?.id;
  return typeof id === 'string' && id !== '';
}

/** Take the fields of the call out of the options. */
function jobOptions(options: EnqueueOptions): JobOptions {
  const { signal, idempotency_key, ...job } = options;
  void signal;
  void idempotency_key;
  return job;
}
