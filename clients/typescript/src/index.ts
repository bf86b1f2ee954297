export type * from './api.js';
export type { LogLevel } from './attempt_log.js';
export {
  Client,
  type CallOptions,
  type ClientOptions,
  type Ended,
  type Enqueued,
  type EnqueueOptions,
  type Enqueuer,
} from './client.js';
export type { AttemptJob, Context } from './context.js';
export {
  ApiError,
  type FieldError,
  StoppedError,
  type StopCause,
  UnavailableError,
  WaitTimeoutError,
} from './errors.js';
export type { ConnectOptions } from './http.js';
export { ExactNumber, parse, stringify } from './json.js';
export { inThread } from './in_thread.js';
export { kind, type Kind } from './kind.js';
export {
  enqueueWithin,
  type OutboxConnection,
  type OutboxOptions,
  outboxRow,
  type OutboxRow,
  uuidv7,
} from './outbox.js';
export type { Handler } from './run.js';
export { Failed, Rejected, Released, Snoozed, Verdict } from './verdicts.js';
export { type Logger, type RunOptions, Worker, type WorkerOptions } from './worker.js';
