import { hostname } from 'node:os';
import { basename, extname } from 'node:path';
import { Worker as Thread } from 'node:worker_threads';

import { Client } from './client.js';
import { Context, type AttemptJob, type Reports } from './context.js';
import { ApiError } from './errors.js';
import { type ConnectOptions, Transport } from './http.js';
import { parse } from './json.js';
import type { Kind } from './kind.js';
import type { FromLink, LinkSettings, ToLink } from './messages.js';
import { execute, type Handler } from './run.js';
import { after, waitable } from './timers.js';
import { Released, type VerdictBody, verdictOfError } from './verdicts.js';

const PULSE_MS = 200;
/** Time for which handlers that were told to stop may still save what they have. */
const LAST_WORDS_MS = 500;
/** Time for which the last verdicts are sent at the end. */
const LEAVE_MS = 5_000;

/** Where a worker writes what operators should know. `console` is one. */
export interface Logger {
  info(text: string): void;
  warn(text: string): void;
  error(text: string): void;
}

/** Settings of a {@link Worker}. */
export interface WorkerOptions extends ConnectOptions {
  /** Name of the program. The id of the worker begins with it. Default: the name of the script. */
  name?: string;
  /** Queues that it serves. Default: `default` and those of its kinds. */
  queues?: string[];
  /** Number of handlers that run at once, 1 to 1,000. Default: 10. */
  slots?: number;
  /**
   * Time without a heartbeat after which the jobs are taken away, in milliseconds, 10,000 to 3,600,000. Default:
   * 60,000. When nine tenths of it have passed since the last answered heartbeat, the worker stops its handlers.
   */
  leaseMs?: number;
  /** Longest wait of one request for jobs, in milliseconds, at most 60,000. Default: 30,000. */
  waitMs?: number;
  /** Time after SIGTERM in which running handlers may finish, in milliseconds; `Infinity` too. Default: 30,000. */
  graceMs?: number;
  /** Version of the program, for operators. */
  version?: string;
  /**
   * Client of the handlers, with an API key of the scope `enqueue`, which also stands for the jobs of
   * {@link Context.followUp}. Default: a client with the address and the token of the worker, which enqueues nothing if
   * that token has the scope `work`.
   */
  client?: Client;
  /** Default: `console`. Payloads, results and tokens are not written. */
  logger?: Logger;
}

/** Settings of {@link Worker.run}. */
export interface RunOptions {
  /** Stop on SIGTERM and SIGINT, and end the process at the second one. Default: true. */
  signals?: boolean;
  /** Stops the worker as SIGTERM does. */
  signal?: AbortSignal;
}

/** An attempt in this process. */
interface Attempt {
  token: string;
  context: Context;
  /** The worker does not hold it any more. */
  isLost: boolean;
  /** The thread has its verdict. */
  hasVerdict: boolean;
  deadline?: NodeJS.Timeout;
}

/**
 * A remote worker: executes jobs that it fetches over HTTP.
 *
 * The protocol runs in a thread of its own. A handler that blocks the event loop keeps its job, because the thread
 * renews the leases. It holds up the other handlers of this process all the same.
 */
export class Worker {
  readonly #options: WorkerOptions;
  readonly #handlers = new Map<string, Handler<never>>();
  readonly #attempts = new Map<string, Attempt>();
  readonly #saved = new Map<number, (refused: string | undefined) => void>();
  readonly #logger: Logger;
  #client: Client | undefined;
  #noFollowUps: string | undefined;
  #thread: Thread | undefined;
  #requests = 0;
  #stopping: Promise<void> | undefined;
  #idle: (() => void) | undefined;
  #left: (() => void) | undefined;
  #id: string | undefined;

  /** @throws RangeError when a number is not possible: the server would refuse it again and again. */
  constructor(options: WorkerOptions = {}) {
    within('slots', options.slots, 1, 1_000);
    within('leaseMs', options.leaseMs, 10_000, 3_600_000);
    within('waitMs', options.waitMs, 0, 60_000);
    if (options.graceMs !== undefined) waitable('graceMs', options.graceMs);
    this.#options = options;
    this.#logger = options.logger ?? console;
  }

  /** Execute jobs of a kind with this handler. Call it before {@link Worker.run}. Returns the worker. */
  handle<P, R>(kind: Kind<P, R>, handler: Handler<P, R>): this;
  handle<P = unknown, R = unknown>(kind: string, handler: Handler<P, R>): this;
  handle(kind: Kind<never> | string, handler: Handler<never>): this {
    const name = typeof kind === 'string' ? kind : kind.name;
    if (this.#handlers.has(name)) throw new TypeError(`the worker has a handler of ${name} already`);
    this.#handlers.set(name, handler);
    return this;
  }

  /** Return the id that the server gave to this worker, once it is registered. */
  get id(): string | undefined {
    return this.#id;
  }

  /**
   * Register, and execute jobs until the worker is stopped. Resolves when it has left: what it could not finish is
   * given back then. A handler that ignores its signal still runs, so a program ends with `process.exit()` after it.
   *
   * While no server answers, the worker tries again, also at the start.
   *
   * @throws ApiError when the server refuses to register it: a wrong key, or a kind that is not declared.
   */
  async run(options: RunOptions = {}): Promise<void> {
    if (this.#thread !== undefined) throw new Error('the worker runs already, or has run');
    if (this.#handlers.size === 0) throw new TypeError('the worker has no handler: call handle()');
    if (this.#stopping !== undefined) return;
    const { url, token } = this.#options;
    this.#client ??=
      this.#options.client ??
      new Client({ ...(url !== undefined && { url }), ...(token !== undefined && { token }) });
    this.#noFollowUps = noFollowUps(new Transport(this.#options).urls, this.#client.transport.urls);
    const pulse = new SharedArrayBuffer(4);
    const beats = new Int32Array(pulse);
    const thread = new Thread(new URL('./thread.js', import.meta.url), {
      name: 'tickr',
      workerData: this.#settings(pulse),
      // A debugger of the main thread, and loaders of the program, are no business of the thread.
      execArgv: [],
    });
    this.#thread = thread;
    const timer = setInterval(() => Atomics.add(beats, 0, 1), PULSE_MS);
    const stopOnSignal = options.signals === false ? undefined : this.#stopOnSignals();
    const stop = () => void this.stop();
    try {
      await new Promise<void>((resolve, reject) => {
        this.#left = resolve;
        thread.on('message', (message: FromLink) => this.#receive(message, reject));
        thread.on('error', reject);
        thread.on('exit', () => reject(new Error('the thread of the worker ended')));
        options.signal?.addEventListener('abort', stop, { once: true });
        if (options.signal?.aborted) stop();
      });
    } catch (error) {
      for (const attempt of this.#attempts.values()) attempt.context.stop('lost');
      throw error;
    } finally {
      options.signal?.removeEventListener('abort', stop);
      stopOnSignal?.();
      clearInterval(timer);
      thread.removeAllListeners('exit');
      await thread.terminate();
      if (this.#options.client === undefined) this.#client.close();
    }
  }

  /**
   * Fetch no more, give running handlers the grace to finish, give back the rest, and leave. Resolves when the
   * handlers have ended or were given up; {@link Worker.run} resolves a moment later.
   *
   * @throws RangeError when `graceMs` is negative or NaN.
   */
  async stop(graceMs = this.#options.graceMs ?? 30_000): Promise<void> {
    waitable('graceMs', graceMs);
    this.#stopping ??= this.#stop(graceMs);
    await this.#stopping;
  }

  async #stop(graceMs: number): Promise<void> {
    this.#logger.info(`tickr: the worker stops; ${this.#attempts.size} jobs run`);
    this.#post({ type: 'stop' });
    if (!(await this.#isIdleWithin(graceMs))) {
      for (const attempt of this.#attempts.values()) attempt.context.stop('stopping');
      await this.#isIdleWithin(LAST_WORDS_MS);
      for (const attempt of this.#attempts.values())
        this.#settle(attempt, new Released('its worker stopped and gave it back').body());
    }
    this.#post({ type: 'leave', withinMs: LEAVE_MS });
  }

  async #isIdleWithin(ms: number): Promise<boolean> {
    if (this.#attempts.size === 0) return true;
    let endWait: (() => void) | undefined;
    await new Promise<void>((resolve) => {
      this.#idle = resolve;
      endWait = after(ms, resolve);
    });
    endWait?.();
    this.#idle = undefined;
    return this.#attempts.size === 0;
  }

  #settings(pulse: SharedArrayBuffer): LinkSettings {
    const { name, queues, slots = 10, leaseMs, waitMs = 30_000, version, url, token } = this.#options;
    const script = process.argv[1] ?? 'node';
    return {
      ...(url !== undefined && { url }),
      ...(token !== undefined && { token }),
      name: (name ?? basename(script, extname(script))).slice(0, 64),
      kinds: [...this.#handlers.keys()],
      queues,
      slots,
      leaseMs,
      waitMs,
      host: hostname().slice(0, 255),
      pid: process.pid,
      version,
      enqueueToken: this.#client?.transport.token,
      pulse,
    };
  }

  #stopOnSignals(): () => void {
    const signals = { SIGTERM: 15, SIGINT: 2 } as const;
    const remove: (() => void)[] = [];
    for (const [name, number] of Object.entries(signals)) {
      const handler = () => {
        if (this.#stopping !== undefined) process.exit(128 + number);
        void this.stop();
      };
      process.on(name, handler);
      remove.push(() => process.off(name, handler));
    }
    return () => remove.forEach((one) => one());
  }

  #post(message: ToLink): void {
    this.#thread?.postMessage(message);
  }

  #receive(message: FromLink, fail: (error: Error) => void): void {
    switch (message.type) {
      case 'registered':
        this.#id = message.id;
        this.#logger.info(`tickr: the worker ${message.id} is registered${message.again ? ' again' : ''}`);
        return;
      case 'jobs':
        this.#begin(message.answer, message.tokens);
        return;
      case 'cancel':
        this.#attempts.get(message.token)?.context.stop('cancelled');
        return;
      case 'lost': {
        const attempt = this.#attempts.get(message.token);
        if (attempt === undefined) return;
        attempt.isLost = true;
        attempt.context.stop('lost');
        return;
      }
      case 'expired':
        // Its verdict is sent all the same: the server decides whether it comes too late.
        this.#attempts.get(message.token)?.context.stop('lost');
        return;
      case 'saved':
        this.#saved.get(message.request)?.(message.refused);
        this.#saved.delete(message.request);
        return;
      case 'unreported': {
        const attempt = this.#attempts.get(message.token);
        attempt?.context.logAt('error', '%s', message.text);
        this.#logger.error(`tickr: ${attempt === undefined ? '' : `job ${attempt.context.job.id}: `}${message.text}`);
        return;
      }
      case 'settled':
        if (message.result !== 'settled') {
          this.#logger.warn(`tickr: a verdict came too late or was not taken: ${message.result}`);
        }
        return;
      case 'note':
        this.#logger[message.level](`tickr: ${message.text}`);
        return;
      case 'refused':
        fail(new ApiError(message.status, message.problem));
        return;
      case 'left':
        this.#left?.();
        return;
    }
  }

  #begin(answer: string, tokens: string[]): void {
    const wanted = new Set(tokens);
    const { jobs } = parse(answer) as { jobs: (AttemptJob & { token: string; payload: unknown })[] };
    for (const fetched of jobs) {
      const { token, payload, ...job } = fetched;
      if (!wanted.delete(token)) continue;
      const client = (this.#client as Client).continuing(job.traceparent);
      const context = new Context(Object.freeze(job), this.#reports(token), client);
      const attempt: Attempt = { token, context, isLost: false, hasVerdict: false };
      this.#attempts.set(token, attempt);
      // Messages that wait come first: after a while without the event loop the attempt may be lost already.
      setImmediate(() => void this.#execute(attempt, payload));
    }
  }

  async #execute(attempt: Attempt, payload: unknown): Promise<void> {
    const { context } = attempt;
    const handler = this.#handlers.get(context.job.kind);
    let verdict: VerdictBody;
    if (this.#stopping !== undefined || handler === undefined) {
      verdict = new Released('its worker stops and gave it back').body();
    } else if (context.stopped !== undefined) {
      verdict = verdictOfError(context.stopped, context.stopped);
    } else {
      attempt.deadline = setTimeout(() => context.stop('deadline'), context.job.timeout_ms);
      // A handler that was given up keeps no process alive by it.
      attempt.deadline.unref();
      verdict = await execute(handler, payload, context);
      clearTimeout(attempt.deadline);
    }
    this.#settle(attempt, verdict);
    this.#attempts.delete(attempt.token);
    if (this.#attempts.size === 0) this.#idle?.();
  }

  #settle(attempt: Attempt, verdict: VerdictBody): void {
    if (attempt.hasVerdict) return;
    attempt.hasVerdict = true;
    const { token, context } = attempt;
    if (attempt.isLost) this.#post({ type: 'ended', token });
    else this.#post({ type: 'verdict', token, verdict, log: context.logText });
  }

  #reports(token: string): Reports {
    return {
      noFollowUps: this.#noFollowUps,
      progress: (percent, note) => this.#post({ type: 'report', token, percent, note }),
      checkpoint: (checkpoint) => this.#post({ type: 'report', token, checkpoint }),
      saved: () =>
        new Promise((resolve, reject) => {
          const request = this.#requests++;
          this.#saved.set(request, (refused) => (refused === undefined ? resolve() : reject(new Error(refused))));
          this.#post({ type: 'save', token, request });
        }),
    };
  }
}

/** Say why follow-up jobs are not possible: only addresses of the client may get its API key. */
function noFollowUps(server: string[], known: string[]): string | undefined {
  if (server.every((url) => known.includes(url))) return undefined;
  return (
    `jobs that follow are enqueued by the server of the worker (${server.join(', ')}), but its client has other ` +
    `addresses (${known.join(', ')}): give the worker a client with its own, or use context.client.enqueue`
  );
}

function within(name: string, value: number | undefined, least: number, most: number): void {
  if (value === undefined || (Number.isInteger(value) && value >= least && value <= most)) return;
  const [from, to] = [least, most].map((bound) => bound.toLocaleString('en'));
  throw new RangeError(`${name} must be a whole number from ${from} to ${to}`);
}
