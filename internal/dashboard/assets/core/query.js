// What a screen shows of the server, and when it asks again.

import { call, get, isOut, skew } from './api.js';
import { useCallback, useEffect, useRef, useState } from './dom.js';
import { announce, listen } from './live.js';

/** The server asks a reader to come again so many times in a row before the screen says so. */
const PATIENCE = 5;
/** Longest wait before it asks again, in ms; up to as much again is random. */
const MAX_WAIT = 15000;
/** A reading that the server or MySQL was out for is repeated so much later, in ms; up to as much again is random. */
const OUT = 5000;
/** Readings that a page repeats by itself begin so far apart, in ms, however many of them want to. */
const APART = 900;

// Those that wait for their turn, the one that has waited longest first.
const line = new Set();
let turn = 0;
let last = 0;

function serve() {
  if (turn || line.size === 0) return;
  turn = setTimeout(
    () => {
      turn = 0;
      const [next] = line;
      if (next) {
        line.delete(next);
        last = Date.now();
        next();
      }
      serve();
    },
    Math.max(0, last + APART - Date.now()),
  );
}

/** Wait for a turn among the readings that repeat by themselves: for one that takes several requests. */
export const inLine = () =>
  new Promise((resolve) => {
    line.add(resolve);
    serve();
  });

/** Pages of a listing that is read as a whole. */
const MAX_PAGES = 10;

/**
 * A listing as a whole, up to two thousand entries, for what the API has no filter for. The query of `path` is not
 * sent: it tells such a reading from one of a page. `next_cursor` is that of the rest.
 * All pages but the first take turns with the other readings of this page, also with those of another listing.
 */
export async function readAll(path, signal) {
  const found = { data: [], unreadable: [], next_cursor: null };
  for (let page = 0; page < MAX_PAGES && (page === 0 || found.next_cursor); page += 1) {
    if (page > 0) await inLine();
    const next = await get(path.split('?')[0], { limit: 200, cursor: found.next_cursor }, signal);
    found.data.push(...next.data);
    found.unreadable.push(...(next.unreadable ?? []));
    found.next_cursor = next.next_cursor;
  }
  return found;
}

/**
 * Read `path` (null for nothing yet). Reads again:
 * - when something happened that `on` cares for: `true` for anything, a list of event types, or a test of an event; at
 *   most once in `pace` ms, and never before the last answer came;
 * - every `every` ms, while the page is seen.
 * All readings of a page that repeat by themselves take turns, so that it asks about once a second at most.
 * What was read stays until the next answer, also when that is an error.
 * A server with too many heavy reads answers 429. Then this asks again after a moment, and only a long row of such
 * answers is an error. It asks again also while the server or MySQL is out.
 */
export function useQuery(path, { on = null, every = 0, pace = 1000, read = null } = {}) {
  const [state, setState] = useState({ path: null, data: null, error: null, at: 0 });
  const [asked, ask] = useState(0);
  const busy = useRef({ flying: false, dirty: false, last: 0, timer: 0, refused: 0, again: 0 });
  const care = useRef(on);
  care.current = on;

  const reload = useCallback(() => ask((n) => n + 1), []);
  // What has been read meanwhile, by a click say, need not be read again.
  const inTurn = useCallback(() => {
    if (!document.hidden) reload();
  }, [reload]);

  useEffect(() => {
    line.delete(inTurn);
    if (!path) return undefined;
    const abort = new AbortController();
    const own = busy.current;
    own.flying = true;
    own.dirty = false;
    own.last = Date.now();
    // Also a reading that nothing else repeats comes back after an outage.
    const later = (wait) => {
      own.again = setTimeout(() => {
        if (document.hidden) return later(wait);
        line.add(inTurn);
        return serve();
      }, wait);
    };
    (read ? read(path, abort.signal) : call('GET', path, { signal: abort.signal }))
      .then(
        (data) => {
          // One that began before the screen was there is not stopped, and may come behind a newer one.
          const late = abort.signal.aborted;
          if (late) return;
          own.refused = 0;
          // Only the clock of the database says what time it is.
          if (data && typeof data.at === 'string') skew.set(Date.parse(data.at) - Date.now());
          setState({ path, data, error: null, at: Date.now() });
        },
        (error) => {
          if (abort.signal.aborted) return;
          const crowded = error.code === 'overloaded';
          own.refused = crowded ? own.refused + 1 : 0;
          // Ever later, and at a random moment: what was refused at the same time must not come at the same time again.
          const wait = Math.min(1000 * 2 ** (own.refused - 1), MAX_WAIT) * (1 + Math.random());
          if (crowded) own.again = setTimeout(reload, wait);
          else if (isOut(error)) later(OUT * (1 + Math.random()));
          if (crowded && own.refused < PATIENCE) return;
          setState((old) => ({ ...(old.path === path ? old : { data: null }), path, error, at: Date.now() }));
          if (error.status === 0 && path !== '/readyz') announce({ type: 'unreachable', data: '' });
        },
      )
      .finally(() => {
        if (abort.signal.aborted) return;
        own.flying = false;
        if (own.dirty) soon();
      });
    return () => {
      abort.abort();
      line.delete(inTurn);
      own.flying = false;
      clearTimeout(own.timer);
      clearTimeout(own.again);
      own.timer = 0;
    };
  }, [path, asked]);

  const soon = useCallback(() => {
    const own = busy.current;
    own.dirty = true;
    if (own.flying || own.timer) return;
    const wait = Math.max(0, own.last + pace - Date.now());
    own.timer = setTimeout(() => {
      own.timer = 0;
      line.add(inTurn);
      serve();
    }, wait);
  }, [pace, inTurn]);

  const hears = on !== null && on !== false;
  useEffect(() => {
    if (!path || !hears) return undefined;
    return listen((event) => {
      const cares = care.current;
      const meant =
        event.type === 'awake' ||
        event.type === 'gap' ||
        event.type === 'reset' ||
        event.type === 'operation' ||
        (cares === true && event.type !== 'unreachable') ||
        (Array.isArray(cares) ? cares.includes(event.type) : typeof cares === 'function' && cares(event));
      // The first `awake` comes with the first reading.
      if (meant && !(event.type === 'awake' && Date.now() - busy.current.last < 1000)) soon();
    });
  }, [path, hears, soon]);

  useEffect(() => {
    if (!path || !every) return undefined;
    const timer = setInterval(() => {
      if (document.hidden || busy.current.flying) return;
      line.add(inTurn);
      serve();
    }, every);
    const seen = () => !document.hidden && reload();
    document.addEventListener('visibilitychange', seen);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }, [path, every, reload, inTurn]);

  const own = state.path === path;
  return {
    data: own || samePlace(state.path, path) ? state.data : null,
    error: own ? state.error : null,
    loading: !own,
    reload,
  };
}

// Another page or filter of the same listing: the old rows stay until the new ones are there.
const samePlace = (one, other) => one && other && one.split('?')[0] === other.split('?')[0];
