import { format } from 'node:util';

import type { FollowUpOptions } from './api.js';
import { AttemptLog, type LogLevel } from './attempt_log.js';
import type { Enqueuer } from './client.js';
import { StoppedError, type StopCause } from './errors.js';
import { bytesOf, levelsOf, stringify, wellFormed } from './json.js';
import { followUpJson, type Kind } from './kind.js';
import { after, waitable } from './timers.js';

const MAX_CHECKPOINT_BYTES = 64 * 1_024;
const MAX_CHECKPOINT_LEVELS = 64;
const MAX_FOLLOW_UPS = 1_000;
const MAX_NOTE_CHARACTERS = 120;
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;

/** The attempt that a handler executes. The fields have their names in docs/WORKERS.md. */
export interface AttemptJob {
  /** Id of the job, the same in each of its attempts. */
  readonly id: string;
  readonly kind: string;
  readonly queue: string;
  /** Attempts used, this one included. */
  readonly attempt: number;
  readonly max_attempts: number;
  readonly started_at: string;
  /** End of the time limit, by the clock of the database. */
  readonly deadline_at: string;
  readonly timeout_ms: number;
  /** JSON that an earlier attempt saved. */
  readonly checkpoint?: unknown;
  readonly traceparent?: string;
  readonly tags?: readonly string[];
}

/** Where the reports of a handler go: the worker, or the record of a test. */
export interface Reports {
  progress(percent: number | undefined, note: string | undefined): void;
  /** `json` is the text of the checkpoint. */
  checkpoint(json: string): void;
  /** Resolves when the server has the newest checkpoint, and rejects when the server refuses it. */
  saved(): Promise<void>;
  /** Why the server of the worker cannot take follow-up jobs with the API key of the client, if that is so. */
  noFollowUps?: string | undefined;
  /** Takes the lines of the log instead of the context. */
  log?(level: LogLevel, text: string): void;
}

/** What a handler gets beside the payload. */
export class Context {
  /** The attempt. */
  readonly job: AttemptJob;
  /**
   * Fires when the attempt has to stop: its job was cancelled, its time is over, the worker may not hold it any
   * more, or the worker stops. `reason` is a {@link StoppedError}. Give it to `fetch`, timers and drivers.
   */
  readonly signal: AbortSignal;
  /** Enqueues jobs that continue the trace of this one. Its key needs the scope `enqueue`. */
  readonly client: Enqueuer;
  readonly #controller: AbortController;
  readonly #reports: Reports;
  readonly #log = new AttemptLog();
  readonly #followUps: string[] = [];

  /** @internal */
  constructor(job: AttemptJob, reports: Reports, client: Enqueuer) {
    this.job = job;
    this.#controller = new AbortController();
    this.signal = this.#controller.signal;
    this.#reports = reports;
    this.client = client;
  }

  /** Show the progress with the job: percent from 0 to 100, and a note of at most 120 characters. */
  progress(percent: number, note?: string): void {
    const sound = Number.isFinite(percent) ? Math.min(Math.max(percent, 0), 100) : 0;
    const text = note?.replace(CONTROL, ' ');
    this.#reports.progress(sound, text === undefined ? undefined : wellFormed(text, MAX_NOTE_CHARACTERS));
  }

  /**
   * Save a JSON value with which the next attempt begins, at most 64 KiB and 64 levels. It replaces the last one. The
   * worker sends the newest one within a second, and at the latest before the verdict.
   *
   * @throws RangeError when it is larger or deeper.
   */
  saveCheckpoint(value: unknown): void {
    const json = stringify(value);
    const bytes = bytesOf(json);
    if (bytes > MAX_CHECKPOINT_BYTES) {
      throw new RangeError(`the checkpoint has ${bytes} bytes, and at most ${MAX_CHECKPOINT_BYTES} are possible`);
    }
    const levels = levelsOf(json);
    if (levels > MAX_CHECKPOINT_LEVELS) {
      throw new RangeError(`the checkpoint has ${levels} levels, and at most ${MAX_CHECKPOINT_LEVELS} are possible`);
    }
    this.#reports.checkpoint(json);
  }

  /**
   * Wait until the server has the newest checkpoint. Call it before a step that must not be repeated.
   *
   * @throws StoppedError when the attempt has to stop meanwhile. Error when the server refuses the checkpoint.
   */
  async checkpointSaved(): Promise<void> {
    this.signal.throwIfAborted();
    await this.#unlessStopped((resolve, reject) => {
      this.#reports.saved().then(resolve, reject);
    });
  }

  /**
   * Enqueue a job with the success of this attempt: the server stores both, or neither. The job continues the trace.
   *
   * An attempt that does not succeed enqueues none of its jobs, so its next attempt repeats none. The client of the
   * worker needs an API key with the scope `enqueue`, which is sent to the addresses of the worker.
   *
   * @throws TypeError when an option is none of {@link FollowUpOptions}, or the payload cannot be written as JSON.
   * RangeError after 1,000 jobs. Error when the client does not have the addresses of the worker.
   */
  followUp<P, R>(kind: Kind<P, R>, payload: P, options?: FollowUpOptions): void;
  followUp(kind: string, payload?: unknown, options?: FollowUpOptions): void;
  followUp(kind: Kind<never> | string, payload?: unknown, options: FollowUpOptions = {}): void {
    // This method is not called `then`: `await` takes an object with such a method for a promise.
    if (this.#reports.noFollowUps !== undefined) throw new Error(this.#reports.noFollowUps);
    this.addFollowUp(followUpJson(kind, payload, options));
  }

  /**
   * Add a line to the log of the attempt. The newest 16 KiB are stored with the verdict. Takes what `console.log`
   * takes.
   */
  log(...values: unknown[]): void {
    this.logAt('info', ...values);
  }

  /** Add a line with this level to the log of the attempt. */
  logAt(level: LogLevel, ...values: unknown[]): void {
    if (this.#reports.log) this.#reports.log(level, format(...values));
    else this.#log.add(level, format(...values));
  }

  /**
   * Wait for this many milliseconds. `Infinity` waits until the attempt has to stop.
   *
   * @throws StoppedError as soon as the attempt has to stop. RangeError when the number is negative or NaN.
   */
  async sleep(ms: number): Promise<void> {
    this.signal.throwIfAborted();
    waitable('the time of a sleep', ms);
    let end: (() => void) | undefined;
    try {
      await this.#unlessStopped((resolve) => {
        end = after(ms, resolve);
      });
    } finally {
      end?.();
    }
  }

  /** Throw a {@link StoppedError} if the attempt has to stop. Long computations call it between steps. */
  throwIfStopped(): void {
    this.signal.throwIfAborted();
  }

  /** @internal */
  addFollowUp(json: string): void {
    if (this.#followUps.length >= MAX_FOLLOW_UPS) {
      throw new RangeError('at most 1,000 jobs follow one: let one of them enqueue the rest');
    }
    this.#followUps.push(json);
  }

  /** @internal */
  get followUps(): readonly string[] {
    return this.#followUps;
  }

  /** @internal */
  get noFollowUps(): string | undefined {
    return this.#reports.noFollowUps;
  }

  /** @internal */
  stop(why: StopCause): void {
    if (!this.signal.aborted) this.#controller.abort(new StoppedError(why));
  }

  /** @internal */
  get stopped(): StoppedError | undefined {
    return this.signal.aborted ? (this.signal.reason as StoppedError) : undefined;
  }

  /** @internal */
  get logText(): string | undefined {
    return this.#log.text();
  }

  #unlessStopped(start: (resolve: () => void, reject: (error: Error) => void) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const stop = () => reject(this.signal.reason as Error);
      this.signal.addEventListener('abort', stop, { once: true });
      const end = (how: () => void) => {
        this.signal.removeEventListener('abort', stop);
        how();
      };
      start(
        () => end(resolve),
        (error) => end(() => reject(error)),
      );
    });
  }
}
