// The events of the stream as the tail shows them: what one says, which of them a filter wants, and how many are kept.

import { split, valuesOf } from './words.js';

/** Types of events that the stream has, as docs/EVENTS.md lists them. */
export const types = [
  'accepted',
  'started',
  'settled',
  'deferred',
  'lease_lost',
  'cancel_requested',
  'cancelled',
  'rescheduled',
  'reaped',
  'rebuilt',
  'index_health',
  'queue_changed',
  'queue_paused',
  'queue_resumed',
  'schedule_put',
  'schedule_paused',
  'schedule_resumed',
  'schedule_deleted',
  'schedule_ticked',
  'runner_stopping',
];
export const failures = ['failed', 'rejected', 'timed_out', 'panicked', 'lost', 'expired'];
export const verdicts = ['succeeded', ...failures, 'cancelled', 'interrupted', 'snoozed'];
const states = ['waiting', 'executing', 'retrying', 'completed', 'failed', 'cancelled'];

/** States of a job after events that do not name one. */
const stateAfter = {
  accepted: 'waiting',
  started: 'executing',
  deferred: 'executing',
  cancel_requested: 'executing',
  cancelled: 'cancelled',
};

/** Places where events are missing, or may be. They match every filter: what is missing may have matched. */
const gaps = ['gap', 'reset', 'away', 'closed', 'thinned'];
export const isGap = (event) => gaps.includes(event.type);

/** An event of the stream, or null for one that cannot be read. */
export function readEvent({ type, data }) {
  let it;
  try {
    it = JSON.parse(data);
  } catch {
    return null;
  }
  const at = Date.parse(it?.at);
  // Only gaps have no time.
  if (!it || (Number.isNaN(at) && !gaps.includes(type))) return null;
  const event = { ...it, type, at, state: it.state ?? stateAfter[type] ?? null };
  event.bad = type === 'lease_lost' || type === 'reaped' || failures.includes(it.verdict);
  return event;
}

const same = (of) => (event, value) => of(event) === value;
/** The words that events have, as a test of one value, and the values that are possible if they are known. */
const fields = {
  event: { test: same((event) => event.type), values: types },
  verdict: { test: same((event) => event.verdict), values: verdicts },
  state: { test: same((event) => event.state), values: states },
  kind: { test: same((event) => event.kind) },
  queue: { test: same((event) => event.queue) },
  schedule: { test: same((event) => event.schedule) },
  id: { test: (event, value) => event.job === value.toLowerCase() },
  // As in the filter of jobs, the beginning of an id is enough.
  runner: { test: (event, value) => event.runner?.startsWith(value) ?? false },
};

/** Words of the filter with what they mean, for the completion of the filter bar, and values of some of them. */
export const words = [
  ['event:', 'what happened'],
  ['state:', 'the state of the job afterwards'],
  ['verdict:', 'how the attempt ended'],
  ['kind:', 'what the job does'],
  ['queue:', 'its queue, or the queue that was changed'],
  ['schedule:', 'the schedule that ticked or was changed'],
  ['runner:', 'the runner that says it'],
  ['id:', 'one job'],
];
export const values = { event: types, verdict: verdicts };

/** All that an event says, for a plain word; also without the underscores of words like `timed_out`. */
function textOf(event) {
  const { type, job, kind, queue, schedule, runner, verdict, state, cause, health } = event;
  const text = [type, job, kind, queue, schedule, runner, verdict, state, cause, health].filter(Boolean).join(' ');
  return `${text} ${text.replaceAll('_', ' ')}`.toLowerCase();
}

/** One word of a filter: `{test}`, or `{wrong}` with what is wrong about it. */
function wordTest(plain) {
  const field = /^([^"|:]+):/.exec(plain)?.[1] ?? (plain.startsWith('payload.') ? 'payload' : '');
  const wanted = valuesOf(field ? plain.slice(field.length + 1) : plain);
  if (wanted.length === 0) return { wrong: field ? `${field}: has no value` : 'A minus has no word' };
  if (!field) {
    const texts = wanted.map((value) => value.toLowerCase());
    return { test: (event) => texts.some((text) => textOf(event).includes(text)) };
  }
  const known = Object.hasOwn(fields, field) ? fields[field] : null;
  if (!known) return { wrong: `Events do not say ${field}` };
  const strange = known.values ? wanted.filter((value) => !known.values.includes(value)) : [];
  if (strange.length > 0) return { wrong: `${field}:${strange[0]} is none of ${known.values.join(', ')}` };
  return { test: (event) => wanted.some((value) => known.test(event, value)) };
}

/**
 * A filter in the words of the filter of jobs, as far as events have them: `test`, `wrong` with what is wrong about
 * words, and `rest`, the filter without these words.
 */
export function filterOf(text) {
  const tests = [];
  const wrong = [];
  const rest = [];
  if (text.replace(/"(?:\\.|[^"\\])*"/g, '').includes('"')) wrong.push('A quote has no end');
  for (const word of split(text)) {
    const not = word.startsWith('-');
    const one = wordTest(not ? word.slice(1) : word);
    if (one.wrong) wrong.push(one.wrong);
    else {
      tests.push(not ? (event) => !one.test(event) : one.test);
      rest.push(word);
    }
  }
  return { test: (event) => isGap(event) || tests.every((test) => test(event)), wrong, rest: rest.join(' ') };
}

/** Rows that are kept. */
export const KEPT = 500;
/** Events that are kept whatever the filter is, for another filter. */
const RECENT = 2000;
/** Rows that one drawing adds at most. The others are counted. */
const PER_DRAWING = 50;
/** Events that wait for the next drawing at most. */
const WAITING = 2000;

/** What is shown first when there is no room for all: failures, and what is not about one job. */
const matters = (event) => event.bad || !event.job;

/** At most so many of the events, in their order. */
function pick(events, most) {
  if (events.length <= most) return events;
  const first = events.filter(matters).slice(-most);
  const others = events.filter((event) => !matters(event));
  const chosen = new Set([...first, ...others.slice(others.length - (most - first.length))]);
  return events.filter((event) => chosen.has(event));
}

/**
 * Keeps the newest events that a filter wants, in bounded memory. `rows` has them, the newest first. Each has a number
 * (`seq`) and how many events matched up to it (`nth`). `matched` is the count so far.
 */
export function keeper() {
  let recent = [];
  let waiting = [];
  let seq = 0;
  let since = 0;
  let wants = () => true;
  let second = { from: 0, all: 0, shown: 0 };
  const own = {
    rows: [],
    matched: 0,
    /** Another number for each filter, and after `clear`: rows of another part are not the same list. */
    part: 0,
    /** The newest event, whether the filter wants it or not. */
    last: null,
    /** How many events a second match, and how many of them are shown. */
    pace: { all: 0, shown: 0 },
    /** Says whether the filter wants the event. */
    add(event) {
      seq += 1;
      event.seq = seq;
      own.last = event;
      recent.push(event);
      if (recent.length >= 2 * RECENT) recent = recent.slice(-RECENT);
      if (!wants(event)) return false;
      if (!isGap(event)) {
        own.matched += 1;
        since += 1;
      }
      event.nth = own.matched;
      waiting.push(event);
      if (waiting.length >= WAITING) waiting = pick(waiting, PER_DRAWING);
      return true;
    },
    /** Take what has come since the last time into `rows`, at most `PER_DRAWING` of it. */
    take(now) {
      const taken = pick(waiting, PER_DRAWING);
      const shown = taken.filter((event) => !isGap(event)).length;
      if (taken.length > 0) {
        const added = [...taken].reverse();
        if (shown < since)
          added.push({ type: 'thinned', count: since - shown, seq: taken[0].seq - 0.5, nth: taken[0].nth - 1 });
        own.rows = [...added, ...own.rows].slice(0, KEPT);
      }
      const passed = now - second.from;
      if (passed >= 1000) {
        const each = passed < 3000 ? 1000 / passed : 0;
        own.pace = { all: Math.round(second.all * each), shown: Math.round(second.shown * each) };
        second = { from: now, all: 0, shown: 0 };
      }
      second.all += since;
      second.shown += shown;
      waiting = [];
      since = 0;
    },
    /** Take another filter. Recent events that it wants are there at once. */
    want(test) {
      wants = test;
      waiting = [];
      since = 0;
      own.part += 1;
      own.matched = 0;
      own.rows = [];
      for (const event of recent) {
        if (!test(event)) continue;
        if (!isGap(event)) own.matched += 1;
        event.nth = own.matched;
        own.rows.push(event);
      }
      own.rows = own.rows.slice(-KEPT).reverse();
    },
    /** The figures of this second are not told yet. */
    isCounting: () => second.all > 0,
    clear() {
      recent = [];
      own.last = null;
      own.want(wants);
    },
  };
  return own;
}
