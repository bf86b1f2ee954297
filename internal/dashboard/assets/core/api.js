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
  try {
    (keep ? localStorage : sessionStorage).setItem(KEY, key);
  } catch {
    /* it lasts as long as the page, then */
  }
}

export function signOut() {
  key = null;
  for (const area of [() => sessionStorage, () => localStorage]) {
    try {
      area().removeItem(KEY);
    } catch {
      /* nothing was kept */
    }
  }
  me.set({ unknown: true });
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
const LONGEST = { GET: 15000, change: 60000 };
const SILENT = 'the server does not answer; it may be restarting';
const UNSURE = 'the server did not answer in time; look whether the change was made before you repeat it';
/** A proxy answers so in place of a server that is gone. */
const FOREIGN = 'the server does not answer; a proxy or another program answers in its place';

/** What a request throws that has no answer: that of the caller's own signal, or a `Problem` of status 0. */
const unreached = (cause, method, signal) => {
  if (signal?.aborted) return cause;
  const late = cause?.name === 'TimeoutError' && method !== 'GET';
  return new Problem(0, { detail: late ? UNSURE : SILENT });
};

/**
 * The response to a request, whatever it is. Only a server that cannot be reached, or that takes too long, throws. A
 * stream has no longest time.
 */
export async function send(method, path, { body, headers = {}, signal, stream = false } = {}) {
  const all = { ...headers };
  if (key) all.authorization = `Bearer ${key}`;
  if (body !== undefined) all['content-type'] = 'application/json';
  const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
  const longest = stream ? null : AbortSignal.timeout(LONGEST[method] ?? LONGEST.change);
  const signals = [signal, longest].filter(Boolean);
  const options = { method, headers: all, body: text, credentials: 'omit', cache: 'no-store' };
  let response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.any(signals) });
  } catch (cause) {
    throw unreached(cause, method, signal);
  }
  if (response.status === 401) me.set({ unknown: true });
  return response;
}

/** The body of a response as it is. The longest time of the request holds for the body as well. */
export async function textOf(response, method, signal) {
  try {
    return await response.text();
  } catch (cause) {
    throw unreached(cause, method, signal);
  }
}

async function read(response, method, signal) {
  const text = await textOf(response, method, signal);
  let body = null;
  let json = true;
  try {
    body = text ? parseAnswer(text) : null;
  } catch {
    json = false;
  }
  // Every error of tickr has a code.
  if (!json || (response.status >= 500 && !body?.code)) throw new Problem(0, { detail: FOREIGN });
  // Of a reading it need not be said that nothing was changed.
  if (body?.code === 'store_unavailable' && method === 'GET') body.detail = 'MySQL does not answer';
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
  return begun ?? read(await send(method, path, options), method, options?.signal);
}

/** The body with the ETag, for a change that must not overwrite another caller's. */
export async function callTagged(method, path, options) {
  const response = await send(method, path, options);
  return { body: await read(response, method, options?.signal), tag: response.headers.get('etag') };
}

/** The body as text, of an answer that is not JSON. Throws as `call` does. */
export async function readText(path, signal) {
  const response = await send('GET', path, { signal });
  return response.ok ? textOf(response, 'GET', signal) : read(response, 'GET', signal);
}

/** The body as a file. It has no longest time: a report may be large. Throws as `call` does. */
export async function readFile(path) {
  const response = await send('GET', path, { stream: true });
  return response.ok ? response.blob() : read(response, 'GET');
}

export const get = (path, query, signal) => call('GET', url(path, query), { signal });

export const post = (path, body) => call('POST', path, { body });
/** One segment of a path. */
export const seg = encodeURIComponent;
