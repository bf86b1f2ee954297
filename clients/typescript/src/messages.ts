// What the worker and its thread tell each other.

import type { ConnectOptions } from './http.js';
import type { VerdictBody } from './verdicts.js';

/** The data with which the thread starts. */
export interface LinkSettings extends ConnectOptions {
  name: string;
  kinds: string[];
  queues: string[] | undefined;
  slots: number;
  leaseMs: number | undefined;
  waitMs: number;
  host: string;
  pid: number;
  version: string | undefined;
  /** API key of the client of the handlers, which stands for follow-up jobs. */
  enqueueToken: string | undefined;
  /** A counter that the worker raises while its event loop runs. */
  pulse: SharedArrayBuffer;
}

/** From the worker to its thread. */
export type ToLink =
  | { type: 'report'; token: string; percent?: number | undefined; note?: string | undefined; checkpoint?: string }
  /** Ask for `saved` once the server has the newest checkpoint of the attempt. */
  | { type: 'save'; token: string; request: number }
  | { type: 'verdict'; token: string; verdict: VerdictBody; log: string | undefined }
  /** The handler of a lost attempt has ended. */
  | { type: 'ended'; token: string }
  /** Fetch no more. */
  | { type: 'stop' }
  /** Send the verdicts that wait, for at most `withinMs`, and end the registration. */
  | { type: 'leave'; withinMs: number };

/** From the thread to the worker. */
export type FromLink =
  | { type: 'registered'; id: string; again: boolean }
  /** `answer` is the text of the answer, and `tokens` are those of it that are new. */
  | { type: 'jobs'; answer: string; tokens: string[] }
  | { type: 'cancel'; token: string }
  | { type: 'lost'; token: string }
  /** No heartbeat renewed the lease of the attempt in time. The worker holds it until the server says otherwise. */
  | { type: 'expired'; token: string }
  /** With `refused`: the server does not take the checkpoint, and why. */
  | { type: 'saved'; request: number; refused: string | undefined }
  /** The server does not take a report of the handler. `text` is for its log and for the operator. */
  | { type: 'unreported'; token: string; text: string }
  | { type: 'settled'; token: string; result: string; state: string | undefined }
  | { type: 'note'; level: 'info' | 'warn' | 'error'; text: string }
  /** The worker cannot register: see `problem`. */
  | { type: 'refused'; status: number; problem: Record<string, unknown> }
  | { type: 'left' };
