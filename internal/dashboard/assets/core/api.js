// The public API, and who this browser is to it.
import { parseAnswer } from './exact.js';
import { observable } from './observable.js';

const KEY = 'tickr.key';

/** What the API says about a request that it refuses; RFC 9457. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || 'unreachable';
    this.body = body;
    /** `[{pointer, detail}]` */
    this.errors = body.errors || [];
  }
}

const kept = (area) => {
  try {
    return area().getItem(KEY);
  } catch {
    return null;
  }
};
let key = kept(() => sessionStorage) || kept(() => localStorage);

/** Who we are: `{actor, scope}`, or `{unknown: true}` until a key is given, or null before the first answer. */
export const me = observable(null);
/** The server's clock less ours, in milliseconds. */
export const skew = observable(0);

export const now = () => Date.now() + skew.get();

/** A text that tells this API key from others, and does not give it away. */
export function keyMark() {
  let sum = 0x811c9dc5;
  for (const letter of key ?? '') sum = Math.imul(sum ^ letter.charCodeAt(0), 0x01000193) >>> 0;
  return sum.toString(36);
}

/** Whether the caller may do this: `read`, `enqueue` or `admin`. */
export function may(need, who = me.get()) {
  const scope = who?.scope;
  return scope === 'admin' || scope === need;
}

/** Text that no other request has had. */
export const draw = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

/** This browser was let in without an API key before. */
const OPEN = 'tickr.open';

function keepOpen(open) {
  try {
    if (open) localStorage.setItem(OPEN, '1');
    else localStorage.removeItem(OPEN);
  } catch {
    /* the next visit takes a moment longer */
  }
}

const wasOpen = () => {
  try {
    return localStorage.getItem(OPEN) !== null;
  } catch {
    return false;
  }
};

// Readings that began before a screen asked for them, by path.
const early = new Map();

/**
 * Begin readings that a screen asks for as soon as the server has said who we are. Without a key, and unless it did
 * without one before, it would refuse them.
 */
export function readAhead(paths) {
  if (!key && !wasOpen()) return;
  for (const path of paths) {
    // One that no screen has taken may be from before an outage.
    early.delete(path);
    const reading = call('GET', path);
    early.set(path, reading);
    // One that failed is made again by the screen.
    reading.catch(() => early.get(path) === reading && early.delete(path));
  }
}

/** Is there no answer because the server, or MySQL behind it, is out? Then a reading is repeated until there is one. */
export const isOut = (problem) => problem.status === 0 || problem.status === 503;

export async function whoAmI() {
  try {
    me.set(await call('GET', '/v1/whoami'));
    if (!key) keepOpen(true);
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    keepOpen(false);
  }
}

/** Use this key from now on. Throws the problem, and forgets the key, if it is not a good one. */
export async function signIn(candidate, keep) {
  key = candidate.trim();
  try {
    me.set(await call('GET', '/v1/whoami'));
  } catch (problem) {
    key = null;
    throw problem;
  }
  const areas = [() => localStorage, () => sessionStorage];
  const [chosen, other] = keep ? areas : areas.reverse();
  // A page that is loaded later would take the key that was kept before.
  forget(other);
  try {
    chosen().setItem(KEY, key);
  } catch {
    /* it lasts as long as the page, then */
  }
}

function forget(area) {
  try {
    area().removeItem(KEY);
  } catch {
    /* nothing was kept */
  }
}

function leave() {
  key = null;
  forget(() => sessionStorage);
  me.set({ unknown: true });
}

/** Tabs tell each other here which API key was signed out. */
const farewell = typeof BroadcastChannel === 'function' ? new BroadcastChannel('tickr.signed-out') : null;
if (farewell) farewell.onmessage = ({ data }) => key && data === keyMark() && leave();

/** Forget the API key, in all tabs of this browser that use it. */
export function signOut() {
  if (key) farewell?.postMessage(keyMark());
  forget(() => localStorage);
  leave();
}

/** A path with a query; what is null, undefined or '' is left out. */
export function url(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') words.append(name, value);
  }
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

/** Longest time that an answer takes, in ms. A change takes longer: it waits for locks, and must not be sent twice. */
const LONGEST = { reading: 15000, change: 60000 };
const SILENT = 'the server does not answer; it may be restarting';
const UNSURE = 'the server did not answer; the change may have been made or not';
/** A proxy answers so in place of a server that is gone. */
const FOREIGN = 'the server does not answer; a proxy or another program answers in its place';

/** What a request throws that has no answer: that of the caller's own signal, or a `Problem` of status 0. */
const unreached = (cause, reads, signal) =>
  signal?.aborted ? cause : new Problem(0, { detail: reads ? SILENT : UNSURE });

/** Does a request change nothing? A dry run is a POST that only `reads`. */
const isReading = (method, { reads = method === 'GET' } = {}) => reads;

/**
 * The response to a request, whatever it is. Only a server that cannot be reached, or that takes too long, throws. A
 * stream has no longest time.
 */
export async function send(method, path, options = {}) {
  const { body, headers = {}, signal, stream = false } = options;
  const reads = isReading(method, options);
  const used = key;
  const all = { ...headers };
  if (key) all.authorization = `Bearer ${key}`;
  if (body !== undefined) all['content-type'] = 'application/json';
  const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
  const longest = stream ? null : AbortSignal.timeout(reads ? LONGEST.reading : LONGEST.change);
  const signals = [signal, longest].filter(Boolean);
  const request = { method, headers: all, body: text, credentials: 'omit', cache: 'no-store' };
  let response;
  try {
    response = await fetch(path, { ...request, signal: AbortSignal.any(signals) });
  } catch (cause) {
    throw unreached(cause, reads, signal);
  }
  // A late answer to a key that was signed out says nothing of the present one.
  if (response.status === 401 && used === key) me.set({ unknown: true });
  return response;
}

/** The body of a response as it is. The longest time of the request holds for the body as well. */
export async function textOf(response, signal, reads = true) {
  try {
    return await response.text();
  } catch (cause) {
    throw unreached(cause, reads, signal);
  }
}

async function read(response, signal, reads = true) {
  const text = await textOf(response, signal, reads);
  let body = null;
  let json = true;
  try {
    body = text ? parseAnswer(text) : null;
  } catch {
    json = false;
  }
  // Every error of tickr has a code. A proxy that refuses a change has not passed it on.
  if (!json || (response.status >= 500 && !body?.code)) {
    const refused = response.status >= 400 && response.status < 500;
    throw new Problem(0, { detail: reads || refused ? FOREIGN : UNSURE });
  }
  // Of a reading it need not be said that nothing was changed.
  if (body?.code === 'store_unavailable' && reads) body.detail = 'MySQL does not answer';
  if (!response.ok) throw new Problem(response.status, body || {});
  return body;
}

/**
 * The state of the runner as `/readyz` tells it. A runner without MySQL answers 503 with the same body.
 */
export async function readiness(path, signal) {
  const response = await send('GET', path, { signal });
  const state = await response.json().catch(() => null);
  if (typeof state?.mysql !== 'boolean') throw new Problem(0, { detail: FOREIGN });
  return state;
}

/** The body of the answer. Throws a `Problem` for anything but success. */
export async function call(method, path, options) {
  const begun = method === 'GET' ? early.get(path) : null;
  early.delete(path);
  return begun ?? read(await send(method, path, options), options?.signal, isReading(method, options));
}

/** The body with the ETag, for a change that must not overwrite another caller's. */
export async function callTagged(method, path, options) {
  const response = await send(method, path, options);
  return { body: await read(response, options?.signal, isReading(method, options)), tag: response.headers.get('etag') };
}

/** The body as text, of an answer that is not JSON. Throws as `call` does. */
export async function readText(path, signal) {
  const response = await send('GET', path, { signal });
  return response.ok ? textOf(response, signal) : read(response, signal);
}

/** The body as a file. It has no longest time: a report may be large. Throws as `call` does. */
export async function readFile(path) {
  const response = await send('GET', path, { stream: true });
  return response.ok ? response.blob() : read(response);
}

export const get = (path, query, signal) => call('GET', url(path, query), { signal });

export const post = (path, body) => call('POST', path, { body });

/** What a change would do, which changes nothing. */
export const dryRun = (path, body, signal) => call('POST', path, { body, signal, reads: true });

/**
 * A `post` for one intention of the user. The same request again, because the answer to the first was lost, has its
 * idempotency key, so it is carried out once. Another request has another key: the server refuses a key with another
 * body.
 */
export function postOnce() {
  let last = null;
  let idempotencyKey = '';
  return (path, body) => {
    const request = `${path} ${JSON.stringify(body)}`;
    if (request !== last) [last, idempotencyKey] = [request, draw()];
    return call('POST', path, { body, headers: { 'idempotency-key': idempotencyKey } });
  };
}
/** One segment of a path. */
export const seg = encodeURIComponent;
