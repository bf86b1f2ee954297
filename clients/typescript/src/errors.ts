import type { JobState } from './api.js';

/** One error in a request, with a JSON pointer into its body. */
export interface FieldError {
  pointer: string;
  detail: string;
}

/**
 * An answer of the server that is no success: a problem document (RFC 9457). docs/PROBLEMS.md has each `code` and its
 * remedy. An answer that is no problem document, for example of a proxy, has the code `unexpected_answer`.
 */
export class ApiError extends Error {
  /** Stable code for programs, such as `unknown_kind`. */
  readonly code: string;
  /** The code in words. */
  readonly title: string;
  /** Description of this occurrence, for people. */
  readonly detail: string;
  /** HTTP status. */
  readonly status: number;
  /** The single errors of the request. */
  readonly errors: readonly FieldError[];
  /** Id of the job in the way, with `unique_key_taken`. */
  readonly holder: string | undefined;
  /** State of the job, with `wrong_state` and `unique_key_taken`. */
  readonly current_state: JobState | undefined;

  constructor(status: number, document: Record<string, unknown>) {
    const text = (name: string, otherwise: string) =>
      typeof document[name] === 'string' ? (document[name] as string) : otherwise;
    const code = text('code', 'unexpected_answer');
    const detail = text('detail', `the server answered with HTTP status ${status}`);
    const errors = Array.isArray(document['errors']) ? (document['errors'] as FieldError[]) : [];
    const listed = errors.slice(0, 5).map(({ pointer, detail: why }) => `${pointer} ${why}`.trim());
    super(listed.length > 0 ? `${code}: ${detail}: ${listed.join('; ')}` : `${code}: ${detail}`);
    this.name = 'ApiError';
    this.code = code;
    this.title = text('title', `HTTP status ${status}`);
    this.detail = detail;
    this.status = status;
    this.errors = errors;
    this.holder = typeof document['holder'] === 'string' ? document['holder'] : undefined;
    this.current_state = document['current_state'] as JobState | undefined;
  }
}

/**
 * No server gave a usable answer within the time of the call. `cause` has the last failure. The call may have been
 * carried out: repeat it with the same `idempotency_key`.
 */
export class UnavailableError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'UnavailableError';
  }
}

/** The job did not end within the time that the caller waits. The job goes on. */
export class WaitTimeoutError extends Error {
  constructor(id: string, ms: number) {
    super(`job ${id} has not ended within ${ms} ms`);
    this.name = 'WaitTimeoutError';
  }
}

/** Why an attempt has to stop: see {@link StoppedError}. */
export type StopCause = 'cancelled' | 'deadline' | 'lost' | 'stopping';

const CAUSES: Record<StopCause, string> = {
  cancelled: 'the server asked the attempt to stop',
  deadline: 'the time limit of the attempt is over',
  lost: 'the worker may not hold the attempt any more',
  stopping: 'the worker stops',
};

/**
 * The attempt has to stop. It is the `reason` of the signal of a handler. A handler lets it through; the worker then
 * ends the attempt as it should be.
 */
export class StoppedError extends Error {
  /**
   * `cancelled`: the job was cancelled. `deadline`: its time is over. `lost`: another worker may have it, because the
   * server said so or because no heartbeat was answered until shortly before the end of the lease. `stopping`: this
   * worker stops, and gives the job back.
   */
  readonly why: StopCause;

  constructor(why: StopCause) {
    super(CAUSES[why]);
    this.name = 'StoppedError';
    this.why = why;
  }
}
