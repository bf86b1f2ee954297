import http from 'node:http';
import https from 'node:https';

import { ApiError, UnavailableError } from './errors.js';
import { parse } from './json.js';
import { after } from './timers.js';

const DEFAULT_URL = 'http://127.0.0.1:7070';
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
/** Longest wait that a server may ask of a call. */
export const LONGEST_WAIT_MS = 60_000;
/** Longest time of one try of a call. Another try, perhaps at another address, follows it. */
const TRY_MS = 10_000;
/** A server closes an idle connection after a minute or more. */
const IDLE_CONNECTION_MS = 20_000;

/** Where the servers are, and the right to call them. */
export interface ConnectOptions {
  /** Address of a tickr process, or several, separated by commas. Default: `TICKR_URL`, or `http://127.0.0.1:7070`. */
  url?: string;
  /** API key. Default: `TICKR_TOKEN`; without either, calls have none. */
  token?: string;
}

/** An answer with its body. */
export interface Answer {
  status: number;
  text: string;
  /** Time that the server asks the client to wait, in milliseconds. */
  retryAfterMs: number | undefined;
}

/** A call of the API. */
export interface Call {
  method: string;
  path: string;
  body?: string | undefined;
  idempotencyKey?: string | undefined;
  traceparent?: string | undefined;
  /** API key beside that of the transport, which may enqueue the follow-up jobs of a call. */
  enqueueToken?: string | undefined;
  /** Reads the body of a success, and says whether it comes from tickr. Without it, every success counts. */
  reads?: ((text: string) => boolean) | undefined;
}

/** Statuses after which the same call may succeed. */
export function isPassing(status: number): boolean {
  return status === 408 || status === 429 || status === 502 || status === 503 || status === 504;
}

/** Return the pause after this many failures in a row: growing, at most five seconds, and varied by a fifth. */
export function pauseAfter(failures: number, longestMs = LONGEST_PAUSE_MS): number {
  const ms = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(failures, 10), longestMs);
  return ms * (0.8 + Math.random() * 0.2);
}

/**
 * The addresses of a call that is repeated, and the pauses between its tries.
 *
 * The pauses grow. With several addresses a pause follows when all of them have failed, and the next one is tried at
 * once before. An address that named a time with `Retry-After` gets no try before that time, also when another one has
 * failed since. If another one named none, the pause is over at that time.
 */
export class Turns {
  /** By place: when the address may be tried again. */
  readonly #notBefore: number[];
  /** The places that have failed since the last pause. */
  readonly #failed = new Set<number>();
  #pauses = 0;

  constructor(addresses: number) {
    this.#notBefore = new Array<number>(addresses).fill(0);
  }

  /** Return the place of the address for the next try. Other calls use the one at `current`. */
  place(current: number): number {
    const now = performance.now();
    const rank = (place: number) => {
      const left = (this.#notBefore[place] as number) - now;
      return left > 0 ? 1 + left : this.#failed.has(place) ? 1 : 0;
    };
    const order = this.#notBefore.map((_, step) => (current + step) % this.#notBefore.length);
    // A timer may fire a moment too early. Then no address is free, and the one that is free first is called.
    return order.reduce((best, place) => (rank(place) < rank(best) ? place : best));
  }

  /** Return the milliseconds until the next try, after one at this place that failed. Its address asked for a pause. */
  next(place: number, askedMs: number): number {
    const now = performance.now();
    this.#failed.add(place);
    this.#notBefore[place] = now + askedMs;
    if (this.#notBefore.some((notBefore, other) => !this.#failed.has(other) && notBefore <= now)) return 0;
    this.#failed.clear();
    // A proxy may ask for no pause at all.
    const grown = pauseAfter(this.#pauses++);
    const named = this.#notBefore.map((notBefore) => notBefore - now).filter((ms) => ms > 0);
    const all = named.length === this.#notBefore.length;
    return all ? Math.max(grown, Math.min(...named)) : Math.min(grown, ...named);
  }
}

/** The addresses of a cluster, with connections that are kept open. */
export class Transport {
  readonly #addresses: URL[];
  // A field that others can inspect would show the token, and so would the sockets of an agent.
  readonly #token: string | undefined;
  readonly #agent: http.Agent;
  readonly #secureAgent: https.Agent;
  #current = 0;

  constructor(options: ConnectOptions) {
    const url = options.url ?? (process.env['TICKR_URL'] || DEFAULT_URL);
    this.#addresses = url
      .split(',')
      .map((part) => part.trim())
      .filter((part) => part !== '')
      .map(address);
    if (this.#addresses.length === 0) throw new TypeError('the URL of tickr is empty');
    const token = options.token ?? process.env['TICKR_TOKEN'];
    if (token && !/^[!-~]+$/.test(token))
      throw new TypeError('the token of tickr has a character that no header can have');
    this.#token = token || undefined;
    const kept = { keepAlive: true, timeout: IDLE_CONNECTION_MS };
    this.#agent = new http.Agent(kept);
    this.#secureAgent = new https.Agent(kept);
  }

  get addresses(): number {
    return this.#addresses.length;
  }

  /** Return the addresses as text. */
  get urls(): string[] {
    return this.#addresses.map(({ origin, pathname }) => origin + pathname.replace(/\/$/, ''));
  }

  /** Return the API key. */
  get token(): string | undefined {
    return this.#token;
  }

  /** Return the place of the address to call now. */
  get current(): number {
    return this.#current;
  }

  /** Say that a call to the address at this place failed, so that the next call goes to another one. */
  failed(place: number): void {
    if (place === this.#current) this.#current = (place + 1) % this.#addresses.length;
  }

  /** Close the connections that are kept. */
  close(): void {
    this.#agent.destroy();
    this.#secureAgent.destroy();
  }

  /** Send one call to the address at this place. Fails if no whole answer comes within the time. */
  once(place: number, call: Call, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const base = this.#addresses[place] as URL;
    const secure = base.protocol === 'https:';
    const headers: http.OutgoingHttpHeaders = { accept: 'application/json' };
    if (call.body !== undefined) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = Buffer.byteLength(call.body);
    }
    if (this.#token !== undefined) headers.authorization = `Bearer ${this.#token}`;
    if (call.idempotencyKey !== undefined) headers['idempotency-key'] = call.idempotencyKey;
    if (call.traceparent !== undefined) headers['traceparent'] = call.traceparent;
    if (call.enqueueToken !== undefined) headers['tickr-enqueue-authorization'] = `Bearer ${call.enqueueToken}`;
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason as Error);
        return;
      }
      const request = (secure ? https : http).request({
        agent: secure ? this.#secureAgent : this.#agent,
        protocol: base.protocol,
        hostname: base.hostname.replace(/^\[|\]$/g, ''),
        port: base.port || (secure ? 443 : 80),
        path: base.pathname.replace(/\/$/, '') + call.path,
        method: call.method,
        headers,
      });
      const timer = setTimeout(() => request.destroy(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
      const stop = () => request.destroy(signal?.reason as Error);
      signal?.addEventListener('abort', stop, { once: true });
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', stop);
      };
      const fail = (error: Error) => {
        end();
        reject(signal?.aborted ? (signal.reason as Error) : error);
      };
      request.on('error', fail);
      request.on('response', (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', fail);
        response.on('close', () => {
          if (response.complete) return;
          fail(new Error('the connection ended within the answer'));
        });
        response.on('end', () => {
          if (!response.complete) return;
          end();
          const text = Buffer.concat(chunks).toString('utf8');
          const retryAfterMs = retryAfter(response.headers['retry-after']);
          resolve({ status: response.statusCode ?? 0, text, retryAfterMs });
        });
      });
      request.end(call.body);
    });
  }

  /**
   * Send a call once. After a failure the next call goes to another address.
   *
   * @throws ApiError for an answer that is no success. UnavailableError when there was no answer within the time.
   */
  async tryOnce(call: Call, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const place = this.#current;
    let answer: Answer;
    try {
      answer = await this.once(place, call, timeoutMs, signal);
    } catch (error) {
      if (signal?.aborted) throw error;
      this.failed(place);
      throw new UnavailableError(`${call.method} ${call.path}: ${(error as Error).message}`, { cause: error });
    }
    if (answer.status >= 200 && answer.status < 300) return answer;
    if (isPassing(answer.status)) this.failed(place);
    throw problemOf(answer);
  }

  /**
   * Send a call until a server answers it, for at most `timeoutMs`. After a failure the next address is tried, as
   * {@link Turns} says. A success that `reads` of the call does not know is a failure of its address.
   *
   * @throws ApiError for an answer that is no success. UnavailableError when no server answered. TypeError when no
   * header can have the idempotency key or the trace.
   */
  async call(call: Call, timeoutMs: number, signal?: AbortSignal, tryMs = TRY_MS): Promise<Answer> {
    checkHeaders(call);
    const end = performance.now() + timeoutMs;
    const turns = new Turns(this.#addresses.length);
    let problem: ApiError | undefined;
    for (;;) {
      const place = turns.place(this.#current);
      let askedMs = 0;
      const left = Math.max(end - performance.now(), 1);
      let failure: Error;
      try {
        const answer = await this.once(place, call, Math.min(tryMs, left), signal);
        if (answer.status >= 200 && answer.status < 300) {
          if (call.reads === undefined || call.reads(answer.text)) return answer;
          // A proxy may answer with a success of its own.
          failure = new Error('the answer does not come from tickr');
        } else {
          const error = problemOf(answer);
          if (!isPassing(answer.status) && error.code !== 'idempotency_in_progress') throw error;
          failure = problem = error;
          askedMs = Math.min(answer.retryAfterMs ?? 0, LONGEST_WAIT_MS);
        }
      } catch (error) {
        if (error instanceof ApiError || signal?.aborted) throw error;
        failure = error as Error;
      }
      this.failed(place);
      const ms = turns.next(place, askedMs);
      if (performance.now() + ms >= end) {
        // The last answer says more than a try that was cut off by the end of the time.
        if (problem !== undefined) throw problem;
        const what = `${call.method} ${call.path}: no answer of tickr within ${timeoutMs} ms`;
        throw new UnavailableError(`${what}: ${failure.message}`, { cause: failure });
      }
      if (ms > 0) await pause(ms, signal);
      signal?.throwIfAborted();
    }
  }
}

/** Refuse what no header can have, because no repetition of the call could send it. */
function checkHeaders({ idempotencyKey, traceparent }: Call): void {
  if (idempotencyKey !== undefined && !/^[!-~]{1,255}$/.test(idempotencyKey)) {
    throw new TypeError('an idempotency key has 1 to 255 visible ASCII characters');
  }
  if (traceparent !== undefined && !/^[ -~]*$/.test(traceparent)) {
    throw new TypeError('the traceparent has a character that no header can have');
  }
}

/** Wait for this many milliseconds, or until the signal fires. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      endWait();
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const endWait = after(ms, end);
    signal?.addEventListener('abort', end, { once: true });
  });
}

/** Read the problem document of an answer. */
export function problemOf(answer: Answer): ApiError {
  let document: unknown;
  try {
    document = parse(answer.text);
  } catch {
    document = undefined;
  }
  const isObject = typeof document === 'object' && document !== null;
  return new ApiError(answer.status, isObject ? (document as Record<string, unknown>) : {});
}

function address(text: string): URL {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError('the URL of tickr is no URL: it is like http://127.0.0.1:7070');
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new TypeError(`the URL of tickr begins with http:// or https://, not with ${url.protocol}`);
  }
  // It would end in messages about the address.
  if (url.username || url.password) throw new TypeError('the URL of tickr has a password: give the API key as token');
  return url;
}

function retryAfter(header: string | undefined): number | undefined {
  if (header === undefined) return undefined;
  const ms = /^\d+$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - Date.now();
  return Number.isFinite(ms) ? Math.max(ms, 0) : undefined;
}
