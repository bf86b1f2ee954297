import type { FollowUpOptions, JobOptions, NewJob } from './api.js';
import { stringify } from './json.js';

declare const payloadType: unique symbol;
declare const resultType: unique symbol;

/** A kind of job with the types of its payload and of its result. Made by {@link kind}. */
export interface Kind<Payload, Result = unknown> {
  readonly name: string;
  /** Options of jobs of this kind that set none of their own. */
  readonly defaults: JobOptions;
  /** Return a job of this kind, for {@link Client.enqueueMany}. */
  job(payload: Payload, options?: JobOptions): NewJob;
  /** Only for the compiler. */
  readonly [payloadType]?: (payload: Payload) => void;
  readonly [resultType]?: () => Result;
}

/**
 * Name a kind, with the types of its payload and of its result. Producers and workers share the value:
 *
 * ```ts
 * export const sendMail = kind<{ to: string; text: string }, { accepted: boolean }>('mail.send');
 * ```
 *
 * `defaults` are options of the jobs that this program enqueues. An operator declares those of the kind.
 */
export function kind<Payload, Result = unknown>(name: string, defaults: JobOptions = {}): Kind<Payload, Result> {
  return Object.freeze({
    name,
    defaults: Object.freeze({ ...defaults }),
    job: (payload: Payload, options: JobOptions = {}) => ({ kind: name, payload, ...merged(defaults, options) }),
  });
}

/** Lay the options over the defaults. Of two fields that exclude each other, the one of the options stays. */
function merged(defaults: JobOptions, options: JobOptions): JobOptions {
  const kept: JobOptions = { ...defaults };
  const either: [keyof JobOptions, keyof JobOptions][] = [
    ['execute_at', 'delay_ms'],
    ['expires_at', 'expires_in_ms'],
    ['unique_key', 'unique_fields'],
  ];
  for (const [one, other] of either) {
    if (options[one] !== undefined) delete kept[other];
    if (options[other] !== undefined) delete kept[one];
  }
  // A program that has no value for an option may name it all the same, and wants the default then.
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return { ...kept, ...Object.fromEntries(given) };
}

/** Return the job that a call names by a kind or by its name. */
export function jobOf(kind: Kind<never> | string, payload: unknown, options: JobOptions): NewJob {
  return typeof kind === 'string' ? { kind, payload, ...options } : kind.job(payload as never, options);
}

const FOLLOW_UP_OPTIONS: Record<keyof FollowUpOptions, true> = {
  queue: true,
  execute_at: true,
  delay_ms: true,
  expires_in_ms: true,
  max_attempts: true,
  timeout_ms: true,
  priority: true,
  order_key: true,
  on_failure: true,
  limit_key: true,
  retry: true,
  tags: true,
  in_batch: true,
};

/**
 * Write a job that follows a success as JSON. The defaults of the kind count as well.
 *
 * @throws TypeError when an option is none of such a job, or the payload cannot be written as JSON.
 */
export function followUpJson(kind: Kind<never> | string, payload: unknown, options: FollowUpOptions): string {
  const job = jobOf(kind, payload, options as JobOptions);
  const { kind: name, payload: content, ...given } = job;
  void name;
  void content;
  for (const [option, value] of Object.entries(given)) {
    if (value === undefined || Object.hasOwn(FOLLOW_UP_OPTIONS, option)) continue;
    const possible = Object.keys(FOLLOW_UP_OPTIONS).join(', ');
    throw new TypeError(`${option} is no option of a job that follows a success; the options are ${possible}`);
  }
  return stringify(bodyOf(job));
}

/** Write a job as the API takes it. */
export function bodyOf(job: NewJob): Record<string, unknown> {
  const body: Record<string, unknown> = { ...job, payload: job.payload === undefined ? {} : job.payload };
  for (const time of ['execute_at', 'expires_at']) {
    if (body[time] instanceof Date) body[time] = (body[time] as Date).toISOString();
  }
  return body;
}
