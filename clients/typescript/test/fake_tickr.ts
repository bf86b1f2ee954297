// A small server of the worker protocol whose answers a test can lose, delay and replace.

import { randomBytes, randomUUID } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';

/** A call that the server got. */
export interface Call {
  method: string;
  path: string;
  /** The last part of the path: `jobs`, `workers`, `fetch`, `beat`, `finish`, or `leave`. */
  what: string;
  body: any;
  text: string;
  headers: http.IncomingHttpHeaders;
  at: number;
  /** The client closed the connection before the answer. */
  isGivenUp: boolean;
}

/** What happens to a call: its answer is lost (after it was carried out or before), or it gets another answer. */
export type Fate =
  'lost' | 'refused' | { status: number; body?: unknown; headers?: Record<string, string> } | undefined;

export interface FakeJob {
  kind: string;
  payload?: unknown;
  /** JSON text of the payload, instead of `payload`. */
  raw?: string;
  token?: string;
  timeout_ms?: number;
  checkpoint?: unknown;
}

export class FakeTickr {
  readonly calls: Call[] = [];
  /** Verdicts by token, the first one that was carried out. */
  readonly verdicts = new Map<string, any>();
  fate: (call: Call) => Fate = () => undefined;
  cancel = new Set<string>();
  lost = new Set<string>();
  /** Tokens of attempts whose rows another session locks. */
  locked = new Set<string>();
  /** The server takes no checkpoint, for this reason. */
  refusesCheckpoints: string | undefined;
  drain = false;
  leaseMs = 10_000;
  beatMs = 100;
  longestWaitMs = 2_000;
  /** What answers with jobs say of the time at the server. */
  tookMs: number | undefined;
  url = '';
  readonly #server: http.Server;
  readonly #jobs: (FakeJob & { id: string; token: string })[] = [];
  readonly #answers = new Map<string, string>();
  #waiters: (() => void)[] = [];
  #changed: (() => void)[] = [];
  readonly #newest = new Map<string, string>();
  #workers = new Set<string>();

  constructor() {
    this.#server = http.createServer((request, response) => void this.#serve(request, response));
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return this;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Offer a job. Returns its token. */
  add(job: FakeJob): string {
    const token = job.token ?? randomBytes(12).toString('base64url');
    this.#jobs.push({ ...job, id: randomUUID(), token });
    for (const wake of this.#waiters.splice(0)) wake();
    return token;
  }

  /** Forget all workers, as after the end of their leases. */
  forget(): void {
    this.#workers.clear();
    for (const wake of this.#waiters.splice(0)) wake();
  }

  of(what: string): Call[] {
    return this.calls.filter((call) => call.what === what);
  }

  /** Wait until the condition holds; look after each call. */
  async until(condition: () => boolean, what: string, ms = 8_000): Promise<void> {
    const end = performance.now() + ms;
    while (!condition()) {
      const left = end - performance.now();
      if (left <= 0) throw new Error(`not within ${ms} ms: ${what}`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(left, 50));
        this.#changed.push(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
  }

  async verdictOf(token: string): Promise<any> {
    await this.until(() => this.verdicts.has(token), `a verdict of ${token}`);
    return this.verdicts.get(token);
  }

  async #serve(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString('utf8');
    const path = request.url ?? '';
    const what = request.method === 'DELETE' ? 'leave' : (path.split('?')[0]?.split('/').pop() ?? '');
    const call: Call = {
      method: request.method ?? '',
      path,
      what,
      body: text === '' ? undefined : JSON.parse(text),
      text,
      headers: request.headers,
      at: performance.now(),
      isGivenUp: false,
    };
    response.on('close', () => {
      call.isGivenUp = !response.writableFinished;
      for (const wake of [...this.#changed.splice(0), ...this.#waiters.splice(0)]) wake();
    });
    this.calls.push(call);
    const fate = this.fate(call);
    if (fate === 'refused') {
      request.socket.destroy();
    } else if (typeof fate === 'object') {
      this.#write(response, fate.status, fate.body ?? {}, fate.headers);
    } else {
      const { status, body } = await this.#carryOut(call);
      if (fate === 'lost') request.socket.destroy();
      else if (typeof body === 'string') this.#write(response, status, body);
      else this.#write(response, status, body);
    }
    for (const wake of this.#changed.splice(0)) wake();
  }

  #write(response: http.ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): void {
    if (status === 204) {
      response.writeHead(status).end();
      return;
    }
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  }

  async #carryOut(call: Call): Promise<{ status: number; body?: unknown }> {
    const parts = call.path.split('/');
    const worker = decodeURIComponent(parts[3] ?? '');
    switch (call.what) {
      case 'workers': {
        const id = `fake-${randomBytes(3).toString('hex')}`;
        this.#workers.add(id);
        return { status: 201, body: { id, lease_ms: this.leaseMs, beat_ms: this.beatMs } };
      }
      case 'fetch':
        return this.#fetch(call, worker);
      case 'beat': {
        if (!this.#workers.has(worker)) return problem(404, 'not_found');
        const tokens: string[] = call.body.holding.map(({ token }: { token: string }) => token);
        const told = (set: Set<string>) => tokens.filter((token) => set.has(token));
        const answer = { cancel: told(this.cancel), lost: told(this.lost), drain: this.drain };
        const reported = call.body.holding.filter((held: object) => Object.keys(held).length > 1);
        const unsaved = tokens.filter(
          (token) => this.locked.has(token) && reported.some((held: { token: string }) => held.token === token),
        );
        const refused = call.body.holding
          .filter((held: object) => this.refusesCheckpoints !== undefined && 'checkpoint' in held)
          .map(({ token }: { token: string }) => ({ token, field: 'checkpoint', detail: this.refusesCheckpoints }));
        const words = { ...(unsaved.length > 0 && { unsaved }), ...(refused.length > 0 && { refused }) };
        return { status: 200, body: { ...answer, ...words } };
      }
      case 'finish': {
        const results = call.body.verdicts.map((verdict: { token: string }) => {
          if (this.locked.has(verdict.token)) return { token: verdict.token, result: 'locked' };
          if (!this.verdicts.has(verdict.token)) this.verdicts.set(verdict.token, verdict);
          return { token: verdict.token, result: 'settled', state: 'completed' };
        });
        return { status: 200, body: { results } };
      }
      case 'leave':
        return this.#workers.delete(worker) ? { status: 204 } : problem(404, 'not_found');
      default: {
        const jobs: unknown[] = call.body?.jobs ?? [];
        return {
          status: 201,
          body: { id: randomUUID(), state: 'waiting', jobs: jobs.map(() => ({ id: randomUUID(), existing: false })) },
        };
      }
    }
  }

  async #fetch(call: Call, worker: string): Promise<{ status: number; body?: unknown }> {
    const former = this.#answers.get(call.body.fetch_id);
    if (former !== undefined) return { status: 200, body: former };
    // A new request ends the one before it, which then gets no job.
    this.#newest.set(worker, call.body.fetch_id);
    for (const wake of this.#waiters.splice(0)) wake();
    const isNewest = () => this.#newest.get(worker) === call.body.fetch_id && !call.isGivenUp;
    const end = performance.now() + Math.min(call.body.wait_ms, this.longestWaitMs);
    while (
      this.#workers.has(worker) &&
      isNewest() &&
      (this.#jobs.length === 0 || this.drain) &&
      performance.now() < end
    ) {
      if (this.drain) return { status: 200, body: { jobs: [], drain: true } };
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.max(end - performance.now(), 0));
        this.#waiters.push(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
    if (!this.#workers.has(worker)) return problem(404, 'not_found');
    if (!isNewest()) return { status: 200, body: { jobs: [], drain: false } };
    const now = Date.now();
    const jobs = this.#jobs.splice(0, call.body.slots).map((job) => {
      const timeout_ms = job.timeout_ms ?? 60_000;
      const fields = {
        id: job.id,
        kind: job.kind,
        queue: 'test',
        attempt: 1,
        max_attempts: 5,
        token: job.token,
        started_at: new Date(now).toISOString(),
        deadline_at: new Date(now + timeout_ms).toISOString(),
        timeout_ms,
        checkpoint: job.checkpoint,
      };
      const payload = job.raw ?? JSON.stringify(job.payload ?? {});
      return `${JSON.stringify(fields).slice(0, -1)},"payload":${payload}}`;
    });
    const took = this.tookMs === undefined ? '' : `,"took_ms":${this.tookMs}`;
    const body = `{"jobs":[${jobs.join(',')}],"drain":false${took}}`;
    this.#answers.set(call.body.fetch_id, body);
    return { status: 200, body };
  }
}

export function problem(status: number, code: string, detail = 'no'): { status: number; body: unknown } {
  return { status, body: { type: `urn:tickr:problem:${code}`, title: code, status, code, detail } };
}
