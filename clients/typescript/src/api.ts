// The fields of the HTTP API have the names of the API here too, so docs/API.md is also the reference of these types.

export type JobState = 'waiting' | 'executing' | 'retrying' | 'completed' | 'failed' | 'cancelled';

/** Backoff between attempts: either growing delays, or a table of delays. Times are milliseconds. */
export type Retry =
  | { base_ms?: number; factor?: number; cap_ms?: number; jitter?: number; delays_ms?: never }
  | { delays_ms: number[]; jitter?: number; base_ms?: never; factor?: never; cap_ms?: never };

/** W3C Trace Context that the attempts continue. */
export interface Trace {
  traceparent: string;
  tracestate?: string;
}

/**
 * The options of a job, by their names in `POST /v1/jobs`. Those that are not set have the defaults of the kind.
 * Names that end with `_ms` are milliseconds.
 */
export interface JobOptions {
  /** Queue. Default: that of the kind, or `default`. */
  queue?: string;
  /** Due time. Not together with `delay_ms`. At most 366 days ahead. */
  execute_at?: Date | string;
  /** Time until the job is due. Not together with `execute_at`. */
  delay_ms?: number;
  /** Time from which on no attempt starts. Not together with `expires_in_ms`. */
  expires_at?: Date | string;
  expires_in_ms?: number;
  /** 1 to 100. */
  max_attempts?: number;
  /** Time limit of one attempt, at most 24 hours. */
  timeout_ms?: number;
  /** 0 (first) to 9 (last). Default: 5. */
  priority?: number;
  /** At most one unfinished job of the kind has this key. */
  unique_key?: string;
  /** Fields of the payload that make the unique key, as JSON pointers. Instead of `unique_key`. */
  unique_fields?: string[];
  /** What happens when an unfinished job has the unique key. Default: `return`. */
  on_conflict?: 'return' | 'reject' | 'replace' | 'postpone';
  max_wait_ms?: number;
  unique_until?: 'end' | 'start';
  unique_for_ms?: number;
  /** Jobs with the same order key run one at a time, in the order in which they were accepted. */
  order_key?: string;
  on_failure?: 'block' | 'skip';
  /** Limits by key count the jobs with the same limit key. */
  limit_key?: string;
  /** Ids of parents. In {@link Client.enqueueMany} also positions of earlier jobs of the call, from 0. */
  after?: (string | number)[];
  on_parent_failure?: 'cancel' | 'run' | 'hold';
  /** Id of the batch that counts the job. */
  batch?: string;
  retry?: Retry;
  /** At most ten. */
  tags?: string[];
  trace?: Trace;
}

/** The options of a job that follows a success. Times count from the success. */
export interface FollowUpOptions extends Pick<
  JobOptions,
  | 'queue'
  | 'execute_at'
  | 'delay_ms'
  | 'expires_in_ms'
  | 'max_attempts'
  | 'timeout_ms'
  | 'priority'
  | 'order_key'
  | 'on_failure'
  | 'limit_key'
  | 'retry'
  | 'tags'
> {
  /** True adds it to the batch of the job that ends. Without a batch it changes nothing. */
  in_batch?: boolean;
}

/** A job that follows a success: what a verdict takes in `follow_ups`. */
export interface FollowUp extends FollowUpOptions {
  kind: string;
  payload: unknown;
}

/** A job to enqueue: what `POST /v1/jobs` takes. */
export interface NewJob extends JobOptions {
  kind: string;
  payload: unknown;
}

/** One execution of a job. */
export interface AttemptView {
  number: number;
  runner: string;
  verdict?: string | null;
  error?: string | null;
  /** Null when the job expired: nothing was executed then. */
  started_at?: string | null;
  finished_at?: string | null;
  log_bytes?: number | null;
  late_note?: string | null;
}

/** A job as the API shows it. docs/API.md and `/docs` of a server describe all fields. */
export interface JobView {
  id: string;
  state: JobState;
  kind: string;
  queue: string;
  priority: number;
  attempt: number;
  max_attempts: number;
  created_at: string;
  execute_at: string;
  started_at?: string | null;
  finished_at?: string | null;
  payload?: unknown;
  result?: unknown;
  last_error?: string | null;
  tags?: string[];
  warnings?: string[];
  progress?: { percent: number; note?: string | null } | null;
  checkpoint?: { content: unknown; saved_at: string } | null;
  attempts?: AttemptView[] | null;
  [field: string]: unknown;
}

/** The job of another producer: a key with the scope `enqueue` sees no more of it. */
export interface ForeignJobView {
  id: string;
  state: JobState;
  foreign: true;
}

/** What the server says of one of many jobs. */
export interface Receipt {
  id: string;
  execute_at?: string | null;
  /** True when an earlier job has the unique key, and nothing was written. */
  existing?: boolean;
}
