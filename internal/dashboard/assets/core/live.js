// One stream of what happens in the cluster, for all parts of the page and for all tabs of the browser. It is open
// while a screen listens and the page is seen. Written over fetch: EventSource cannot send a key.
//
// A browser opens six connections to a server over HTTP/1.1. So of the tabs with the same API key one reads the stream,
// the one that has the lock, and tells the others over a channel. Where the browser has no locks (they need HTTPS or
// localhost), each tab reads a stream of its own. So does a tab that hears nothing, until it hears something again.
import { keyMark, send } from './api.js';
import { observable } from './observable.js';

/** `off`, `connecting`, `live`, `paused`. */
export const live = observable('off');

const listeners = new Set();
let current = null;
let lastId = null;
let failures = 0;
let timer = 0;
/** The server sends a comment each 15 s. A stream that is silent for longer is dead, in ms. */
const SILENCE = 40000;
/** A tab that reads a stream of its own looks so often whether the tabs share one again, in ms. */
const AGAIN = 60000;
const canShare = Boolean(navigator.locks) && typeof BroadcastChannel === 'function';
let shares = canShare;
/** When this tab gave up hearing the others. */
let parted = 0;
/** Tabs with the same API key meet under this name. */
const meeting = () => `tickr.events.${keyMark()}`;

/** This tab has not heard the stream since it began anew. */
let absent = false;
/** False while the listeners are told that a tab came back which hears only what comes next. */
let whole = true;

/**
 * The stream goes on behind an event, so none is missed when it is away for a moment. That holds for a tab that reads
 * it: one that comes back and hears another tab is not told what that one heard meanwhile.
 */
export const hasPlace = () => lastId !== null && whole;

const wanted = () => listeners.size > 0 && !document.hidden;

function refresh() {
  clearTimeout(timer);
  if (!wanted()) {
    // A screen that replaces another comes back in a moment; the stream need not be opened anew for it.
    timer = setTimeout(
      () => {
        if (wanted()) return;
        current?.abort();
        current = null;
        live.set(document.hidden && listeners.size > 0 ? 'paused' : 'off');
      },
      document.hidden ? 0 : 500,
    );
  } else if (!current) {
    begin();
  }
}

document.addEventListener('visibilitychange', () => {
  if (!document.hidden) {
    failures = 0;
    announce({ type: 'awake' });
  }
  refresh();
});

/** Tell every listener of an event. The page itself tells them of `operation`, which the stream does not have. */
export function announce(event) {
  for (const listener of [...listeners]) listener(event);
}

function hear(event) {
  if (event.id) lastId = event.id;
  if (event.type === 'reset') lastId = null;
  announce(event);
}

function isLive() {
  failures = 0;
  if (live.get() === 'live') return;
  live.set('live');
  // What happened in between is not told again.
  announce({ type: 'awake' });
  whole = true;
}

/** A watch that aborts when nothing was heard for a while; `alive` starts it anew. */
function watch(abort) {
  let silence = 0;
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => abort.abort(), SILENCE);
  };
  abort.signal.addEventListener('abort', () => clearTimeout(silence));
  return alive;
}

async function begin() {
  const mine = new AbortController();
  current = mine;
  absent = true;
  live.set('connecting');
  await (shares ? share(mine) : canShare ? readApart(mine) : read(mine, () => {})).catch(() => {});
  mine.abort();
  if (current !== mine) return;
  current = null;
  failures += 1;
  live.set('connecting');
  clearTimeout(timer);
  timer = setTimeout(refresh, Math.min(15000, 500 * 2 ** Math.min(failures, 5)) * (0.75 + Math.random() / 2));
}

/** Read the stream for all tabs, or hear what the tab says that does. */
async function share(mine) {
  const name = meeting();
  const channel = new BroadcastChannel(name);
  const silent = new AbortController();
  const alive = watch(silent);
  let leads = false;
  silent.signal.addEventListener('abort', () => {
    if (leads || mine.signal.aborted) return;
    shares = false;
    parted = Date.now();
    mine.abort();
  });
  channel.onmessage = ({ data }) => {
    if (leads) {
      if (data.asks && live.get() === 'live') channel.postMessage({});
      return;
    }
    // Tabs that ask say nothing of the one that leads.
    if (data.asks) return;
    alive();
    if (data.lost) live.set('connecting');
    else {
      if (absent) whole = false;
      absent = false;
      isLive();
      if (data.event) hear(data.event);
    }
  };
  try {
    alive();
    channel.postMessage({ asks: true });
    await navigator.locks.request(name, { signal: mine.signal }, async () => {
      leads = true;
      // The tab that led may have gone without a word, and something may have happened since.
      live.set('connecting');
      try {
        await read(mine, (event) => channel.postMessage({ event }));
      } finally {
        channel.postMessage({ lost: true });
      }
    });
  } finally {
    silent.abort();
    channel.close();
  }
}

/**
 * Read a stream of its own while the tab that leads is silent. From time to time it asks. It shares again when a tab
 * answers whose stream is live, or when none leads. Until then its own stream goes on.
 */
async function readApart(mine) {
  const name = meeting();
  const channel = new BroadcastChannel(name);
  let timer = 0;
  const join = () => {
    if (mine.signal.aborted) return;
    shares = true;
    mine.abort();
  };
  const look = async () => {
    channel.onmessage = ({ data }) => data.asks || data.lost || join();
    channel.postMessage({ asks: true });
    const free = await navigator.locks.request(name, { ifAvailable: true }, (lock) => lock !== null).catch(() => false);
    if (free) join();
    else if (!mine.signal.aborted) timer = setTimeout(look, AGAIN);
  };
  timer = setTimeout(look, Math.max(0, parted + AGAIN - Date.now()));
  try {
    await read(mine, () => {});
  } finally {
    mine.abort();
    clearTimeout(timer);
    channel.close();
  }
}

/** Read the stream until it ends. `tell` hears of every sign of life, and of its event if it has one. */
async function read(mine, tell) {
  const alive = watch(mine);
  alive();
  const headers = { accept: 'text/event-stream' };
  if (lastId) headers['last-event-id'] = lastId;
  const response = await send('GET', '/v1/events', { headers, signal: mine.signal, stream: true });
  if (!response.ok || !response.body) throw new Error(`the stream answered ${response.status}`);
  absent = false;
  isLive();
  tell();
  const each = (event) => {
    hear(event);
    tell(event);
  };
  await follow(response.body.pipeThrough(new TextDecoderStream()), each, () => {
    alive();
    tell();
  });
}

/**
 * Read server-sent events of a stream of text: `{id, type, data}`, with the data as text. `alive` hears of every piece,
 * also of comments.
 */
export async function follow(stream, on, alive = () => {}) {
  const reader = stream.getReader();
  let rest = '';
  let event = { id: null, type: 'message', data: '' };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (let line of lines) {
      if (line.endsWith('\r')) line = line.slice(0, -1);
      if (line === '') {
        if (event.data || event.type !== 'message') on(event);
        event = { id: null, type: 'message', data: '' };
        continue;
      }
      if (line[0] === ':') continue;
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') event.type = text;
      else if (field === 'data') event.data += event.data ? `\n${text}` : text;
      else if (field === 'id') event.id = text;
    }
  }
}

/** Hear every event: `{type, data}`, with the data as text. `awake` comes when the stream begins (anew). */
export function listen(listener) {
  listeners.add(listener);
  refresh();
  return () => {
    listeners.delete(listener);
    refresh();
  };
}
