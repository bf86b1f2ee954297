// One stream of what happens in the cluster, for all parts of the page. It is open while a screen listens and the page
// is seen. Written over fetch: EventSource cannot send a key.
import { send } from './api.js';
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
    run();
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

async function run() {
  const mine = new AbortController();
  current = mine;
  live.set('connecting');
  let silence = 0;
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => mine.abort(), SILENCE);
  };
  try {
    alive();
    const headers = { accept: 'text/event-stream' };
    if (lastId) headers['last-event-id'] = lastId;
    const response = await send('GET', '/v1/events', { headers, signal: mine.signal, stream: true });
    if (!response.ok || !response.body) throw new Error(`the stream answered ${response.status}`);
    failures = 0;
    live.set('live');
    // What happened in between is not told again.
    announce({ type: 'awake' });
    const hear = (event) => {
      if (event.id) lastId = event.id;
      if (event.type === 'reset') lastId = null;
      announce(event);
    };
    await follow(response.body.pipeThrough(new TextDecoderStream()), hear, alive);
  } catch {
    /* it is opened again below */
  } finally {
    clearTimeout(silence);
  }
  if (current !== mine) return;
  current = null;
  failures += 1;
  live.set('connecting');
  clearTimeout(timer);
  timer = setTimeout(refresh, Math.min(15000, 500 * 2 ** Math.min(failures, 5)) * (0.75 + Math.random() / 2));
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
