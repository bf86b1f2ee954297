import { StoppedError } from './errors.js';
import { bytesOf, stringify, wellFormed } from './json.js';

/** Most bytes of a result, as JSON. */
export const MAX_RESULT_BYTES = 256 * 1_024;
const MAX_ERROR_CHARACTERS = 2_000;

/** How an attempt ended, as the API takes it. `result` and each of `follow_ups` are JSON text. */
export interface VerdictBody {
  verdict: 'succeeded' | 'failed' | 'rejected' | 'snoozed' | 'released';
  result?: string;
  error?: string;
  delay_ms?: number;
  /** The jobs that exist exactly if this success counts. */
  follow_ups?: string[];
}

/** A verdict other than success. A handler throws it, or returns it. */
export abstract class Verdict extends Error {
  /** @internal */
  abstract body(): VerdictBody;
}

/** The attempt failed, and another one may succeed. Any other error that a handler throws means the same. */
export class Failed extends Verdict {
  readonly delayMs: number | undefined;

  /** `delayMs` is the time until the next attempt, instead of the backoff. */
  constructor(message: string, options: ErrorOptions & { delayMs?: number } = {}) {
    super(message, options);
    this.name = 'Failed';
    this.delayMs = options.delayMs;
  }

  /** @internal */
  override body(): VerdictBody {
    const body: VerdictBody = { verdict: 'failed', error: errorText(this.message) };
    return this.delayMs === undefined ? body : { ...body, delay_ms: milliseconds(this.delayMs) };
  }
}

/** No attempt can succeed: the job fails for good. */
export class Rejected extends Verdict {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'Rejected';
  }

  /** @internal */
  override body(): VerdictBody {
    return { verdict: 'rejected', error: errorText(this.message) };
  }
}

/**
 * The job runs again after `delayMs`, and no attempt is used. After a hundred attempts of a job that used none, each
 * further snooze or release counts as failed and uses an attempt.
 */
export class Snoozed extends Verdict {
  readonly delayMs: number;

  constructor(delayMs: number, message: string) {
    super(message);
    this.name = 'Snoozed';
    this.delayMs = delayMs;
  }

  /** @internal */
  override body(): VerdictBody {
    return { verdict: 'snoozed', error: errorText(this.message), delay_ms: milliseconds(this.delayMs) };
  }
}

/** The worker gives the job back at once, and no attempt is used. */
export class Released extends Verdict {
  constructor(message = 'its worker gave it back') {
    super(message);
    this.name = 'Released';
  }

  /** @internal */
  override body(): VerdictBody {
    return { verdict: 'released', error: errorText(this.message) };
  }
}

/** A verdict that is written already. */
export class Written extends Verdict {
  readonly #body: VerdictBody;

  constructor(body: VerdictBody) {
    super(body.error);
    this.#body = body;
  }

  /** @internal */
  override body(): VerdictBody {
    return this.#body;
  }
}

/** Return the verdict for what a handler returned. */
export function verdictOfResult(returned: unknown): VerdictBody {
  if (returned instanceof Verdict) return returned.body();
  let result: string;
  try {
    result = stringify(returned);
  } catch (error) {
    return { verdict: 'failed', error: errorText(`the result cannot be written as JSON: ${messageOf(error)}`) };
  }
  const bytes = bytesOf(result);
  if (bytes > MAX_RESULT_BYTES) {
    return {
      verdict: 'failed',
      error: `the result has ${bytes} bytes, and at most ${MAX_RESULT_BYTES} are possible`,
    };
  }
  return { verdict: 'succeeded', result };
}

/** Return the verdict for what a handler threw. `stopped` is the reason for which the attempt was told to stop. */
export function verdictOfError(thrown: unknown, stopped: StoppedError | undefined): VerdictBody {
  if (thrown instanceof Verdict) return thrown.body();
  if (stopped !== undefined) {
    if (stopped.why === 'stopping') return new Released('its worker stopped and gave it back').body();
    // The server takes no verdict of an attempt that another worker has. Otherwise the outage uses no attempt.
    if (stopped.why === 'lost') return new Released('its worker could not renew its lease and gave it back').body();
    return { verdict: 'failed', error: errorText(stopped.message) };
  }
  return { verdict: 'failed', error: errorText(messageOf(thrown)) };
}

function messageOf(thrown: unknown): string {
  // The message of an error of the program may be code that throws.
  try {
    if (thrown instanceof Error) return thrown.message === '' ? thrown.name : `${thrown.name}: ${thrown.message}`;
    return String(thrown);
  } catch {
    return 'an error without a text';
  }
}

/** The server takes 1 to 2,000 characters, and not spaces alone. */
function errorText(text: string): string {
  const cut = wellFormed(text, MAX_ERROR_CHARACTERS);
  return cut.trim() === '' ? 'an error without a text' : cut;
}

function milliseconds(ms: number): number {
  return Number.isFinite(ms) ? Math.max(Math.ceil(ms), 0) : 0;
}
