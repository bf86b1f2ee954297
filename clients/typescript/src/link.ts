// The protocol of docs/WORKERS.md. It runs in a thread of its own, so that no handler can stop the heartbeats.

import { AttemptLog, MAX_LOG_BYTES } from './attempt_log.js';
import { type Answer, type Call, isPassing, LONGEST_WAIT_MS, pause, pauseAfter, problemOf, Transport } from './http.js';
import { bytesOf, stringify } from './json.js';
import type { FromLink, LinkSettings, ToLink } from './messages.js';
import { uuidv7 } from './outbox.js';
import { leaseClock } from './timers.js';
import type { VerdictBody } from './verdicts.js';

const MAX_JOBS = 500;
const MAX_VERDICTS = 500;
/** `body_limit` of a server is 256 KiB unless an operator changed it. A larger single verdict is tried all the same. */
const BODY_BYTES = 200 * 1_024;
/** Shortest time between two heartbeats that only bring news of handlers. */
const NEWS_MS = 500;
/** Shortest time between two heartbeats with a report that the server could not store, because its row is locked. */
const UNSAVED_MS = 1_000;
/** Pauses between two tries of a verdict whose row is locked. */
const LOCKED_MS = { first: 500, longest: 5_000 };
/** Longest pause of a heartbeat that failed: meanwhile every lease grows old. */
const BEAT_PAUSE_MS = 1_000;
/** Time for which the first registration is repeated after 422: a declaration is known everywhere after two seconds. */
const DECLARED_WITHIN_MS = 5_000;
/** The worker counts as blocked when its event loop has not run for this long. */
const BLOCKED_MS = 1_500;
const LOOK_MS = 250;
/** Part of a lease after which an attempt is stopped if no heartbeat renewed it: another worker may start its job. */
const LEASE_PART = 0.9;
/** Tokens whose attempts have ended, kept so that a late copy of an answer starts none of them again. */
const REMEMBERED = 20_000;

/** An attempt whose verdict is not answered. */
interface Held {
  percent: number | undefined;
  note: string | undefined;
  checkpoint: string | undefined;
  /** Raised with each report, and what the server has of it. */
  version: number;
  sent: number;
  checkpointVersion: number;
  /** The last checkpoint that the server refused, and why. */
  refused: { version: number; why: string } | undefined;
  hasVerdict: boolean;
  cancelled: boolean;
  /** From when its lease holds, by the clock of leases: when the last answered heartbeat that listed it was sent. */
  renewedAt: number;
  /** Its handler was stopped, because no heartbeat renewed the lease in time. */
  expired: boolean;
  /** Lines for its log that came after its verdict. */
  lateLog: AttemptLog;
}

/** What the handler of an attempt has said since the last heartbeat. */
interface Report {
  token: string;
  version: number;
  /** Version of the checkpoint in it. */
  checkpointVersion: number | undefined;
  json: string;
}

interface Pending {
  token: string;
  json: string;
  log: string | undefined;
  verdict: VerdictBody;
  /** Pause before it is sent again while another session locks the row of its job. */
  lockedMs?: number;
}

/** A place to wait for news. */
class Bell {
  #ring: (() => void) | undefined;
  #rung = false;

  ring(): void {
    this.#rung = true;
    this.#ring?.();
  }

  /** Wait until the bell rings, at most this long. A ring before the call counts. */
  async wait(ms: number): Promise<void> {
    if (!this.#rung && ms > 0) {
      let timer: NodeJS.Timeout | undefined;
      await new Promise<void>((resolve) => {
        this.#ring = resolve;
        if (Number.isFinite(ms)) timer = setTimeout(resolve, ms);
      });
      clearTimeout(timer);
      this.#ring = undefined;
    }
    this.#rung = false;
  }
}

export class Link {
  readonly #settings: LinkSettings;
  readonly #tell: (message: FromLink) => void;
  readonly #transport: Transport;
  readonly #held = new Map<string, Held>();
  /** Tokens of attempts that take a slot: those that are held, and lost ones whose handlers have not ended. */
  readonly #busy = new Set<string>();
  readonly #seen = new Set<string>();
  readonly #verdicts: Pending[] = [];
  readonly #slotsBell = new Bell();
  readonly #beatBell = new Bell();
  readonly #verdictsBell = new Bell();
  readonly #settledBell = new Bell();
  readonly #stopFetching = new AbortController();
  readonly #gone = new AbortController();
  #saves: { token: string; version: number; done: (refused: string | undefined) => void }[] = [];
  #id = '';
  #beatMs = 20_000;
  #leaseMs = 60_000;
  /** When the last answered heartbeat or registration was sent, by the clock of leases. */
  #renewedAt = leaseClock();
  #lastBeat = 0;
  /** Until when a report waits that the server could not store. */
  #unsavedUntil = 0;
  #drained = false;
  #registering: Promise<void> | undefined;
  #fetching: AbortController | undefined;
  #troubles = new Map<string, number>();
  /** Until when the server at an address asked not to get a kind of call. */
  #notBefore = new Map<string, number>();
  #pulseSeen = -1;
  #pulseAt = performance.now();

  constructor(settings: LinkSettings, tell: (message: FromLink) => void) {
    this.#settings = settings;
    this.#tell = tell;
    this.#transport = new Transport(settings);
  }

  /** Register, and begin to fetch and to beat. */
  async start(): Promise<void> {
    if (!(await this.#registerFirst())) return;
    const look = setInterval(() => this.#look(), LOOK_MS);
    this.#gone.signal.addEventListener('abort', () => clearInterval(look));
    void this.#fetchLoop();
    void this.#beatLoop();
    void this.#finishLoop();
  }

  receive(message: ToLink): void {
    switch (message.type) {
      case 'report': {
        const held = this.#held.get(message.token);
        if (held === undefined) return;
        if (message.percent !== undefined) held.percent = message.percent;
        if (message.note !== undefined) held.note = message.note;
        held.version += 1;
        if (message.checkpoint !== undefined) {
          held.checkpoint = message.checkpoint;
          held.checkpointVersion = held.version;
        }
        this.#beatBell.ring();
        return;
      }
      case 'save':
        void this.#checkpointSent(message.token).then((refused) =>
          this.#tell({ type: 'saved', request: message.request, refused }),
        );
        return;
      case 'verdict':
        void this.#accept(message.token, message.verdict, message.log);
        return;
      case 'ended':
        this.#busy.delete(message.token);
        this.#slotsBell.ring();
        return;
      case 'stop':
        this.#stopFetching.abort(new Error('the worker stops'));
        this.#fetching?.abort(new Error('the worker stops'));
        this.#slotsBell.ring();
        return;
      case 'leave':
        void this.#leave(message.withinMs);
        return;
    }
  }

  // Registration.

  async #registerFirst(): Promise<boolean> {
    let end: number | undefined;
    for (let failures = 0; ; failures += 1) {
      const sent = leaseClock();
      const stop = this.#stopFetching.signal;
      const answer = await this.#try(this.#registration(), 10_000, 'register', stop, readRegistered);
      if (stop.aborted) return false;
      if (answer?.status === 201) {
        this.#registered(answer, sent, false);
        return true;
      }
      const status = answer?.status ?? 0;
      const isOurs = status >= 400 && status < 500 && !isPassing(status);
      // A kind that was declared a moment ago may not be known to this process yet. The server may come long after this
      // program, so the time runs from its first such answer.
      if (status === 422) end ??= performance.now() + DECLARED_WITHIN_MS;
      if (isOurs && !(status === 422 && performance.now() < (end ?? 0))) {
        const problem = problemOf(answer as Answer);
        const { code, title, detail, errors } = problem;
        this.#tell({ type: 'refused', status, problem: { code, title, detail, errors } });
        return false;
      }
      await this.#pause('register', failures, answer, stop);
    }
  }

  /** Register again, unless that has happened since the worker had this id. */
  #registerAgain(formerId: string): Promise<void> {
    if (formerId !== this.#id) return Promise.resolve();
    this.#registering ??= this.#untilRegistered().finally(() => {
      this.#registering = undefined;
    });
    return this.#registering;
  }

  async #untilRegistered(): Promise<void> {
    for (let failures = 0; !this.#gone.signal.aborted; failures += 1) {
      const sent = leaseClock();
      const answer = await this.#try(this.#registration(), 10_000, 'register', this.#gone.signal, readRegistered);
      if (answer?.status === 201) {
        this.#registered(answer, sent, true);
        return;
      }
      await this.#pause('register', failures, answer, this.#gone.signal);
    }
  }

  #registration(): Call {
    const { name, kinds, queues, slots, leaseMs, host, pid, version } = this.#settings;
    const body = JSON.stringify({ name, kinds, queues, slots, lease_ms: leaseMs, host, pid, version });
    return { method: 'POST', path: '/v1/workers', body };
  }

  #registered(answer: Answer, sent: number, again: boolean): void {
    const told = readRegistered(answer.text);
    if (told === undefined) return;
    const { id, beat_ms, lease_ms } = told;
    this.#id = id;
    this.#beatMs = beat_ms;
    this.#leaseMs = lease_ms ?? this.#leaseMs;
    this.#renewedAt = sent;
    this.#lastBeat = performance.now();
    this.#tell({ type: 'registered', id, again });
    // The server does not know yet what a worker that registers again holds.
    if (again) this.#lastBeat = -Infinity;
    this.#beatBell.ring();
  }

  // Fetch.

  async #fetchLoop(): Promise<void> {
    const stop = this.#stopFetching.signal;
    while (!stop.aborted) {
      const slots = Math.min(this.#settings.slots - this.#busy.size, MAX_JOBS);
      if (slots < 1 || this.#isBlocked()) {
        await this.#slotsBell.wait(slots < 1 ? Infinity : LOOK_MS);
        continue;
      }
      if (this.#drained) {
        await this.#slotsBell.wait(this.#beatMs);
        if (stop.aborted) return;
      }
      this.#fetching = new AbortController();
      await this.#fetch(slots, this.#fetching.signal);
      this.#fetching = undefined;
    }
  }

  async #fetch(slots: number, signal: AbortSignal): Promise<void> {
    const { waitMs } = this.#settings;
    const fetchId = uuidv7();
    const body = JSON.stringify({ slots, wait_ms: waitMs, holding: [...this.#held.keys()], fetch_id: fetchId });
    const first = leaseClock();
    for (let failures = 0; !signal.aborted; failures += 1) {
      const id = this.#id;
      // The same body again, to any process, gets the same jobs and nothing new.
      const call = { method: 'POST', path: this.#path(id, '/fetch'), body };
      const sent = leaseClock();
      const answer = await this.#try(call, waitMs + 10_000, 'fetch', signal);
      if (signal.aborted) return;
      if (answer?.status === 200) {
        const fetched = readFetched(answer.text);
        if (fetched !== undefined) {
          // After a quarter of the lease on its way, the answer counts as lost. The next request lists none of its
          // jobs.
          const now = leaseClock();
          const way = now - sent - fetched.tookMs;
          const count = fetched.tokens.length;
          // A repeated answer may have jobs that were claimed a quarter of the lease before.
          const ageMs = Math.max(way, 0) + (failures > 0 ? this.#leaseMs / 4 : 0);
          const since = Math.max(Number.isFinite(way) ? now - ageMs : this.#renewedAt, first);
          if (way < this.#beatMs * 0.75) this.#deliver(answer.text, fetched.tokens, since);
          else if (count > 0) this.#note('warn', `an answer with ${count} jobs came late and counts as lost`);
          this.#drain(fetched.drain);
          return;
        }
      }
      if (answer?.status === 404) {
        await this.#registerAgain(id);
        return;
      }
      await this.#pause('fetch', failures, answer, signal);
    }
  }

  /** Hand the new jobs of an answer to the worker. Their leases hold from `since`. */
  #deliver(answer: string, tokens: string[], since: number): void {
    const fresh: string[] = [];
    for (const token of tokens) {
      if (this.#seen.has(token)) continue;
      this.#remember(token);
      fresh.push(token);
      this.#busy.add(token);
      this.#held.set(token, {
        percent: undefined,
        note: undefined,
        checkpoint: undefined,
        version: 0,
        sent: 0,
        checkpointVersion: 0,
        refused: undefined,
        hasVerdict: false,
        cancelled: false,
        renewedAt: since,
        expired: false,
        lateLog: new AttemptLog(),
      });
    }
    if (fresh.length > 0) this.#tell({ type: 'jobs', answer, tokens: fresh });
  }

  #remember(token: string): void {
    this.#seen.add(token);
    if (this.#seen.size <= REMEMBERED) return;
    for (const old of this.#seen) {
      if (this.#busy.has(old)) continue;
      this.#seen.delete(old);
      return;
    }
  }

  #drain(drained: boolean): void {
    if (drained === this.#drained) return;
    this.#drained = drained;
    this.#note('info', drained ? 'an operator drains this worker: it gets no jobs' : 'this worker gets jobs again');
    if (!drained) this.#slotsBell.ring();
  }

  /** Give jobs that are on their way back to the server when the worker is blocked, so that others can execute them. */
  #look(): void {
    if (this.#isBlocked()) this.#fetching?.abort(new Error('the event loop of the worker is blocked'));
    this.#expire();
  }

  /**
   * Stop the attempts whose leases no heartbeat renewed in time: another worker may start their jobs. They stay in
   * `holding`, so that the next heartbeat that is answered learns whether the server took them away.
   */
  #expire(): void {
    const now = leaseClock();
    let count = 0;
    for (const [token, held] of this.#held) {
      if (held.hasVerdict || held.expired || now - held.renewedAt < this.#leaseMs * LEASE_PART) continue;
      held.expired = true;
      count += 1;
      this.#tell({ type: 'expired', token });
    }
    if (count > 0) this.#note('error', `no heartbeat was answered for nearly a lease: ${count} handlers are stopped`);
  }

  #isBlocked(): boolean {
    const count = Atomics.load(new Int32Array(this.#settings.pulse), 0);
    const now = performance.now();
    if (count !== this.#pulseSeen) {
      this.#pulseSeen = count;
      this.#pulseAt = now;
    }
    return now - this.#pulseAt > BLOCKED_MS;
  }

  // Beats.

  async #beatLoop(): Promise<void> {
    const gone = this.#gone.signal;
    for (let failures = 0; !gone.aborted;) {
      const since = performance.now() - this.#lastBeat;
      const news = [...this.#held.values()].some((held) => held.version > held.sent);
      const urgent = this.#saves.length > 0;
      const early = urgent ? 0 : news ? NEWS_MS - since : Infinity;
      const rest = Math.min(this.#beatMs - since, Math.max(early, this.#unsavedUntil - performance.now()));
      if (failures === 0 && rest > 0) {
        await this.#beatBell.wait(rest);
        continue;
      }
      const started = performance.now();
      const isSent = await this.#beat();
      if (isSent) {
        this.#lastBeat = started;
        failures = 0;
      } else if (!gone.aborted) {
        failures += 1;
        await this.#pause('beat', failures - 1, undefined, gone, BEAT_PAUSE_MS);
      }
    }
  }

  /** Return what handlers have said and the server does not have yet. */
  #news(): Report[] {
    const news: Report[] = [];
    for (const [token, held] of this.#held) {
      if (held.version <= held.sent) continue;
      const fields = [`"token":${JSON.stringify(token)}`];
      if (held.percent !== undefined) fields.push(`"percent":${held.percent}`);
      if (held.note !== undefined) fields.push(`"note":${JSON.stringify(held.note)}`);
      const hasCheckpoint = held.checkpointVersion > held.sent;
      if (hasCheckpoint) fields.push(`"checkpoint":${held.checkpoint}`);
      const checkpointVersion = hasCheckpoint ? held.checkpointVersion : undefined;
      news.push({ token, version: held.version, checkpointVersion, json: `{${fields.join(',')}}` });
    }
    return news;
  }

  /**
   * Send what the worker holds. Each request lists every token, because the server takes an attempt that is not listed
   * for one that did not arrive. What handlers have said goes in as many requests as its size needs. Returns false if
   * one of them failed.
   */
  async #beat(): Promise<boolean> {
    const news = this.#news();
    let most = Infinity;
    // A worker that holds nothing beats as well: its own lease is to be renewed.
    do {
      const tokens = [...this.#held.keys()];
      const bare = tokens.map((token) => JSON.stringify({ token }));
      const part = takeWithin(news, most, BODY_BYTES - Buffer.byteLength(bare.join(',')));
      const said = new Map(part.map(({ token, json }) => [token, json]));
      const answer = await this.#beatOf(
        tokens,
        tokens.map((token, place) => said.get(token) ?? (bare[place] as string)),
      );
      if (answer === undefined) return false;
      if (typeof answer === 'string' && part.length > 1) {
        // A proxy may take less than the server, or one of the reports is wrong. Fewer go in one request.
        most = Math.floor(part.length / 2);
        news.unshift(...part);
        continue;
      }
      if (typeof answer === 'string') {
        if (typeof (await this.#beatOf(tokens, bare)) !== 'object') return false;
        const why = `${answer}; progress and checkpoint are left out`;
        for (const report of part) this.#unreported(report, 'report', why);
      } else this.#leftOut(part, answer.refused ?? []);
      // What could not be stored for a locked row goes with a later heartbeat again.
      const unsaved = new Set<string>(typeof answer === 'object' ? answer.unsaved : undefined);
      if (unsaved.size > 0) this.#unsavedUntil = performance.now() + UNSAVED_MS;
      for (const { token, version } of part) {
        const held = this.#held.get(token);
        if (held !== undefined && !unsaved.has(token)) held.sent = Math.max(held.sent, version);
      }
      this.#answerSaves();
    } while (news.length > 0);
    return true;
  }

  /** The server has answered a heartbeat with these tokens that was sent at this time. */
  #renewed(tokens: string[], sent: number): void {
    this.#renewedAt = sent;
    for (const token of tokens) {
      const held = this.#held.get(token);
      if (held !== undefined) held.renewedAt = sent;
    }
  }

  /** Tell the handlers of the reports which the server left out. */
  #leftOut(reports: Report[], refused: RefusedReport[]): void {
    for (const { token, field, detail } of refused) {
      const report = reports.find((one) => one.token === token);
      if (report !== undefined) this.#unreported(report, field, detail);
    }
  }

  /** Write to the log of the attempt that the server refused its report. A checkpoint in it counts as not saved. */
  #unreported(report: Report, field: string, detail: string): void {
    const held = this.#held.get(report.token);
    const why = `the server refuses the ${field} of a handler: ${detail}`;
    this.#tell({ type: 'unreported', token: report.token, text: why });
    if (held === undefined) return;
    if (held.hasVerdict) held.lateLog.add('error', why);
    const hasCheckpoint = field === 'checkpoint' || field === 'report';
    if (hasCheckpoint && report.checkpointVersion !== undefined) {
      held.refused = { version: report.checkpointVersion, why };
    }
  }

  /**
   * Send one heartbeat that lists these tokens; `holding` is their JSON. Returns a text that says why when the server
   * refuses what the heartbeat says.
   */
  async #beatOf(tokens: string[], holding: string[]): Promise<Beaten | string | undefined> {
    const id = this.#id;
    const sent = leaseClock();
    const body = `{"holding":[${holding.join(',')}]}`;
    const tryMs = Math.min(Math.max(this.#beatMs, 1_000), 5_000);
    const answer = await this.#try(
      { method: 'POST', path: this.#path(id, '/beat'), body },
      tryMs,
      'beat',
      this.#gone.signal,
      readBeaten,
    );
    if (answer === undefined) return undefined;
    if (answer.status === 404) {
      await this.#registerAgain(id);
      return undefined;
    }
    if (answer.status === 400 || answer.status === 413 || answer.status === 422) return problemOf(answer).message;
    const told = answer.status === 200 ? readBeaten(answer.text) : undefined;
    if (told === undefined) return undefined;
    this.#renewed(tokens, sent);
    for (const token of told.cancel) {
      const held = this.#held.get(token);
      if (held === undefined || held.cancelled) continue;
      held.cancelled = true;
      this.#tell({ type: 'cancel', token });
    }
    for (const token of told.lost) {
      // An attempt that was finished meanwhile is not held any more either. The answer to its verdict decides.
      if (this.#held.get(token)?.hasVerdict !== false) continue;
      this.#held.delete(token);
      this.#tell({ type: 'lost', token });
    }
    this.#answerSaves();
    this.#drain(told.drain === true);
    return told;
  }

  /**
   * Wait until the server has the newest checkpoint of an attempt, or until the worker does not hold it any more.
   * Returns why the server refuses this checkpoint, if it does.
   */
  #checkpointSent(token: string): Promise<string | undefined> {
    const held = this.#held.get(token);
    if (held === undefined) return Promise.resolve(undefined);
    if (held.checkpointVersion <= held.sent) return Promise.resolve(refusalOf(held, held.checkpointVersion));
    return new Promise((done) => {
      this.#saves.push({ token, version: held.checkpointVersion, done });
      this.#beatBell.ring();
    });
  }

  #answerSaves(): void {
    this.#saves = this.#saves.filter(({ token, version, done }) => {
      const held = this.#held.get(token);
      if (held !== undefined && held.sent < version) return true;
      done(refusalOf(held, version));
      return false;
    });
  }

  // Verdicts.

  async #accept(token: string, verdict: VerdictBody, log: string | undefined): Promise<void> {
    const held = this.#held.get(token);
    if (held !== undefined) {
      held.hasVerdict = true;
      // A completed job has no checkpoint. Any other one begins its next attempt with it.
      if (verdict.verdict !== 'succeeded') await this.#checkpointSent(token);
      const whole = joined(log, held.lateLog.text());
      this.#verdicts.push({ token, verdict, log: whole, json: verdictJson(token, verdict, whole) });
      this.#verdictsBell.ring();
    } else {
      this.#busy.delete(token);
      this.#slotsBell.ring();
    }
  }

  async #finishLoop(): Promise<void> {
    while (!this.#gone.signal.aborted) {
      if (this.#verdicts.length === 0) {
        this.#settledBell.ring();
        await this.#verdictsBell.wait(Infinity);
        continue;
      }
      await this.#finish(takeWithin(this.#verdicts, MAX_VERDICTS));
    }
  }

  /** Send verdicts until they are answered. */
  async #finish(verdicts: Pending[]): Promise<void> {
    const body = `{"verdicts":[${verdicts.map(({ json }) => json).join(',')}]}`;
    // The API key of the worker may enqueue nothing, so that of its client goes with follow-up jobs.
    const hasFollowUps = verdicts.some(({ verdict }) => verdict.follow_ups !== undefined);
    const enqueueToken = hasFollowUps ? this.#settings.enqueueToken : undefined;
    for (let failures = 0; !this.#gone.signal.aborted; failures += 1) {
      const id = this.#id;
      const call = { method: 'POST', path: this.#path(id, '/finish'), body, enqueueToken };
      const answer = await this.#try(call, 10_000, 'finish', this.#gone.signal);
      const results = answer?.status === 200 ? readResults(answer.text, verdicts) : undefined;
      if (results !== undefined) {
        for (const { token, result, state } of results) {
          if (result !== 'refused' && result !== 'locked') this.#settled(token, result, state);
        }
        for (const [place, { result, errors }] of results.entries()) {
          if (result === 'locked') this.#putOff(verdicts[place] as Pending);
          const wrong = (errors ?? []).map(({ field, detail }) => `${field} ${detail}`.trim()).join('; ');
          if (result === 'refused') await this.#mend(verdicts[place] as Pending, wrong);
        }
        return;
      }
      if (answer?.status === 400 || answer?.status === 413 || answer?.status === 422) {
        await this.#refused(verdicts, answer);
        return;
      }
      if (answer?.status === 404) await this.#registerAgain(id);
      await this.#pause('finish', failures, answer, this.#gone.signal);
    }
  }

  /** Send a verdict again later: another session locks the row of its job. The others do not wait for it. */
  #putOff(pending: Pending): void {
    const ms = pending.lockedMs ?? LOCKED_MS.first;
    void pause(ms, this.#gone.signal).then(() => {
      this.#verdicts.push({ ...pending, lockedMs: Math.min(ms * 2, LOCKED_MS.longest) });
      this.#verdictsBell.ring();
    });
  }

  /** One wrong or large verdict makes the server refuse all of a request. Find it, and report its attempt as failed. */
  async #refused(verdicts: Pending[], answer: Answer): Promise<void> {
    if (verdicts.length > 1) {
      const half = Math.ceil(verdicts.length / 2);
      await this.#finish(verdicts.slice(0, half));
      await this.#finish(verdicts.slice(half));
      return;
    }
    await this.#mend(verdicts[0] as Pending, problemOf(answer).message);
  }

  /** Replace a verdict that the server refuses by one that says so. */
  async #mend(pending: Pending, problem: string): Promise<void> {
    this.#note('error', `the server refuses a verdict: ${problem}`);
    // The log goes first, because it is the least of what is lost.
    if (pending.log !== undefined) {
      const { token, verdict } = pending;
      await this.#finish([{ token, verdict, log: undefined, json: verdictJson(token, verdict, undefined) }]);
      return;
    }
    const error = `the server refuses the verdict ${pending.verdict.verdict}: ${problem}`.slice(0, 1_000);
    if (pending.verdict.error?.startsWith('the server refuses the verdict')) {
      this.#settled(pending.token, 'refused', undefined);
      return;
    }
    const verdict: VerdictBody = { verdict: 'failed', error };
    await this.#finish([
      { token: pending.token, verdict, log: undefined, json: verdictJson(pending.token, verdict, undefined) },
    ]);
  }

  #settled(token: string, result: string, state: string | undefined): void {
    this.#held.delete(token);
    this.#busy.delete(token);
    this.#answerSaves();
    this.#tell({ type: 'settled', token, result, state });
    this.#slotsBell.ring();
  }

  // The end.

  async #leave(withinMs: number): Promise<void> {
    const end = performance.now() + withinMs;
    const isOver = () => performance.now() >= end;
    while ([...this.#held.values()].some((held) => held.hasVerdict) && !isOver()) {
      await this.#settledBell.wait(Math.min(end - performance.now(), 20));
    }
    for (let failures = 0; this.#id !== ''; failures += 1) {
      const call = { method: 'DELETE', path: this.#path(this.#id, '') };
      const answer = await this.#try(call, Math.min(Math.max(end - performance.now(), 500), 5_000), 'leave');
      if (answer !== undefined && (answer.status < 300 || answer.status === 404)) break;
      if (isOver()) {
        this.#note('warn', 'the registration of this worker could not be ended: it ends with its lease');
        break;
      }
      await this.#pause('leave', failures, answer, undefined, 1_000);
    }
    this.#gone.abort(new Error('the worker has left'));
    for (const bell of [this.#beatBell, this.#verdictsBell, this.#slotsBell]) bell.ring();
    this.#transport.close();
    this.#tell({ type: 'left' });
  }

  // Calls.

  #path(id: string, below: string): string {
    return `/v1/workers/${encodeURIComponent(id)}${below}`;
  }

  /**
   * Send a call once. Returns nothing when no whole answer came, or a success that `read` does not know. After a
   * failure the next call goes elsewhere.
   */
  async #try(
    call: Call,
    timeoutMs: number,
    what: string,
    signal?: AbortSignal,
    read?: (text: string) => unknown,
  ): Promise<Answer | undefined> {
    const place = this.#transport.current;
    try {
      const answer = await this.#transport.once(place, call, timeoutMs, signal);
      if (answer.status >= 200 && answer.status < 300) {
        // A proxy may answer with a success of its own.
        if (read !== undefined && read(answer.text) === undefined) {
          throw new Error('the answer is not the JSON of tickr');
        }
        if (this.#troubles.delete(what)) this.#note('info', `${what}: the server answers again`);
      } else {
        if (answer.status !== 404) this.#trouble(what, problemOf(answer).message);
        if (answer.retryAfterMs !== undefined) {
          const until = performance.now() + Math.min(answer.retryAfterMs, LONGEST_WAIT_MS);
          this.#notBefore.set(`${what} ${place}`, until);
        }
        if (isPassing(answer.status) || answer.status >= 500) this.#transport.failed(place);
      }
      return answer;
    } catch (error) {
      if (signal?.aborted) return undefined;
      this.#trouble(what, (error as Error).message);
      this.#transport.failed(place);
      return undefined;
    }
  }

  /** Tell the operator of the first failure, and then once a minute. */
  #trouble(what: string, why: string): void {
    const now = performance.now();
    const last = this.#troubles.get(what);
    if (last !== undefined && now - last < 60_000) return;
    this.#troubles.set(what, now);
    this.#note('warn', `${what}: ${why}; the worker tries again`);
  }

  /**
   * Pause after a failure: once every address has failed, and for as long as the server at the next address asked
   * for. A heartbeat does not wait that long.
   */
  async #pause(
    what: string,
    failures: number,
    answer: Answer | undefined,
    signal: AbortSignal | undefined,
    longestMs?: number,
  ): Promise<void> {
    const addresses = this.#transport.addresses;
    const until = this.#notBefore.get(`${what} ${this.#transport.current}`) ?? 0;
    const askedMs = what === 'beat' ? 0 : until - performance.now();
    const isElsewhere = (failures + 1) % addresses !== 0 && (answer === undefined || isPassing(answer.status));
    const growingMs = isElsewhere ? 0 : pauseAfter(Math.floor(failures / addresses), longestMs);
    const ms = Math.max(growingMs, askedMs);
    if (ms <= 0) return;
    await pause(ms, signal);
  }

  #note(level: 'info' | 'warn' | 'error', text: string): void {
    this.#tell({ type: 'note', level, text });
  }
}

function readFetched(text: string): { tokens: string[]; drain: boolean; tookMs: number } | undefined {
  try {
    const read = JSON.parse(text) as { jobs: { token: string }[]; drain: boolean; took_ms?: number };
    return { tokens: read.jobs.map(({ token }) => token), drain: read.drain, tookMs: read.took_ms ?? Infinity };
  } catch {
    return undefined;
  }
}

/** The answer to a registration. */
interface Registered {
  id: string;
  beat_ms: number;
  lease_ms?: number;
}

function readRegistered(text: string): Registered | undefined {
  const read = readObject<Registered>(text);
  return typeof read.id === 'string' && read.id !== '' && typeof read.beat_ms === 'number'
    ? (read as Registered)
    : undefined;
}

/** The answer to a heartbeat. */
interface Beaten {
  cancel: string[];
  lost: string[];
  drain?: boolean;
  refused?: RefusedReport[];
  unsaved?: string[];
}

function readBeaten(text: string): Beaten | undefined {
  const read = readObject<Beaten>(text);
  return Array.isArray(read.cancel) && Array.isArray(read.lost) ? (read as Beaten) : undefined;
}

/** Read a JSON object. Any other text counts as one without fields. */
function readObject<T>(text: string): Partial<T> {
  try {
    return (JSON.parse(text) ?? {}) as Partial<T>;
  } catch {
    return {};
  }
}

/** A report that the server left out. `field` is `percent`, `note` or `checkpoint`. */
interface RefusedReport {
  token: string;
  field: string;
  detail: string;
}

/** The answer to one verdict. */
interface VerdictResult {
  token: string;
  result: string;
  state?: string;
  errors?: { field: string; detail: string }[];
}

function readResults(text: string, verdicts: Pending[]) {
  try {
    const { results } = JSON.parse(text) as { results: VerdictResult[] };
    if (results.length !== verdicts.length) return undefined;
    return verdicts.map(({ token }, place) => ({ ...results[place], token }) as VerdictResult);
  } catch {
    return undefined;
  }
}

/** Return why the server refused this checkpoint of an attempt, or the one that replaced it before it was sent. */
function refusalOf(held: Held | undefined, version: number): string | undefined {
  const refused = held?.refused;
  return refused !== undefined && refused.version >= version ? refused.why : undefined;
}

/** Add late lines to the log of an attempt, if the server takes so many bytes. */
function joined(log: string | undefined, late: string | undefined): string | undefined {
  if (late === undefined) return log;
  const whole = (log ?? '') + late;
  return bytesOf(whole) <= MAX_LOG_BYTES ? whole : log;
}

function verdictJson(token: string, body: VerdictBody, log: string | undefined): string {
  const { result, follow_ups: followUps, ...fields } = body;
  const texts = [stringify({ token, ...fields, log }).slice(0, -1)];
  if (result !== undefined) texts.push(`"result":${result}`);
  if (followUps !== undefined) texts.push(`"follow_ups":[${followUps.join(',')}]`);
  return `${texts.join(',')}}`;
}

/** Take as many items off the front as one request may carry, and at least one. */
function takeWithin<T extends { json: string }>(items: T[], most: number, mostBytes = BODY_BYTES): T[] {
  let bytes = 0;
  let count = 0;
  for (const item of items) {
    bytes += Buffer.byteLength(item.json) + 1;
    if (count > 0 && (bytes > mostBytes || count >= most)) break;
    count += 1;
  }
  return items.splice(0, count);
}
