// The range of time that the screens show, as the address has it: `span=24h`, or `from` and `to`. Links hand it on.

import { wordOf } from './words.js';

/** Ranges that end now. */
export const spans = [
  ['', 'All time'],
  ['15m', 'Last 15 min'],
  ['1h', 'Last hour'],
  ['24h', 'Last 24 hours'],
  ['7d', 'Last 7 days'],
  ['30d', 'Last 30 days'],
];

/** Words of the address that are the range. */
export const words = ['span', 'from', 'to'];

// `from` of /enqueue is the id of a job, so not every text is a moment.
const moment = (text) => {
  const at = /^\d{4}-\d\d-\d\d/.test(text ?? '') ? Date.parse(text) : Number.NaN;
  return Number.isNaN(at) ? null : at;
};

const ofRange = (query, word) => query.has(word) && (word === 'span' || moment(query.get(word)) !== null);

/** The range as an address has it, for another address. */
export const rangeIn = (query) =>
  Object.fromEntries(words.map((word) => [word, ofRange(query, word) ? query.get(word) : null]));

/** The range of an address: `{span, from, to}`; moments in ms, each null where it is open. */
export function rangeOf(query) {
  const span = query.get('span') ?? '';
  if (/^\d{1,4}[smhdw]$/.test(span)) return { span, from: null, to: null };
  return { span: '', from: moment(query.get('from')), to: moment(query.get('to')) };
}

/** Changes of an address that set a range. */
export const toRange = ({ span = '', from = null, to = null }) => ({
  span: span || null,
  from: from === null ? null : new Date(from).toISOString(),
  to: to === null ? null : new Date(to).toISOString(),
});

/**
 * A filter that is narrowed to the range. A filter that has a word on the time of acceptance has a range of its own. A
 * span stays a span, so that a listing and its later pages have the same filter.
 */
export function within(q, { span, from, to }) {
  if (wordOf(q, 'created')) return q;
  const at = (ms) => new Date(ms).toISOString();
  const word = span
    ? `created:<${span}`
    : from !== null && to !== null
      ? `created:${at(from)}..${at(to)}`
      : from !== null
        ? `created:>${at(from)}`
        : to !== null
          ? `created:<${at(to)}`
          : '';
  return [q, word].filter(Boolean).join(' ');
}

/**
 * A link to another screen, with the range of the place where it stands unless it has one of its own. A link with a
 * filter stands beside a number, and leads to the jobs that were counted, whatever their age is.
 */
export function handOn(target, query) {
  const { searchParams: own } = target;
  if (own.has('q') || words.some((word) => own.has(word))) return target;
  for (const word of words) if (ofRange(query, word)) own.set(word, query.get(word));
  return target;
}
