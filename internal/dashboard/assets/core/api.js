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

/** Whether the caller may do this: `read`, `enqueue` or `admin`. */
export function may(need, who = me.get()) {
  const scope = who?.scope;
  return scope === 'admin' || scope === need;
}

export async function whoAmI() {
  try {
    me.set(await call('GET', '/v1/whoami'));
  } catch (problem) {
    if (problem.status !== 401) throw problem;
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

/** The response to a request, whatever it is. Only a server that cannot be reached throws. */
export async function send(method, path, { body, headers = {}, signal } = {}) {
  const all = { ...headers };
  if (key) all.authorization = `Bearer ${key}`;
  if (body !== undefined) all['content-type'] = 'application/json';
  const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, { method, headers: all, body: text, signal, credentials: 'omit', cache: 'no-store' });
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new Problem(0, { detail: 'the server does not answer; it may be restarting' });
  }
  if (response.status === 401) me.set({ unknown: true });
  return response;
}

async function read(response, method) {
  const text = await response.text();
  let body;
  try {
    body = text ? parseAnswer(text) : null;
  } catch {
    body = { detail: text.slice(0, 300) };
  }
  // Of a reading it need not be said that nothing was changed.
  if (body?.code === 'store_unavailable' && method === 'GET') body.detail = 'MySQL does not answer';
  if (!response.ok) throw new Problem(response.status, body || {});
  return body;
}

/** The body of the answer. Throws a `Problem` for anything but success. */
export const call = async (method, path, options) => read(await send(method, path, options), method);

/** The body with the ETag, for a change that must not overwrite another caller's. */
export async function callTagged(method, path, options) {
  const response = await send(method, path, options);
  return { body: await read(response, method), tag: response.headers.get('etag') };
}

/** The body as text, of an answer that is not JSON. Throws as `call` does. */
export async function readText(path, signal) {
  const response = await send('GET', path, { signal });
  return response.ok ? response.text() : read(response, 'GET');
}

export const get = (path, query, signal) => call('GET', url(path, query), { signal });
export const post = (path, body) => call('POST', path, { body });
/** One segment of a path. */
export const seg = encodeURIComponent;
