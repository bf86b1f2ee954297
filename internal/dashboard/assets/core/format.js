// Figures and times as people read them.

const units = [
  [86400000, 'd'],
  [3600000, 'h'],
  [60000, 'm'],
  [1000, 's'],
];

/** A length of time in one or two units: `840 ms`, `4.2 s`, `3 m 20 s`, `2 d 4 h`. */
export function span(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return '–';
  const size = Math.abs(ms);
  if (size < 1) return size === 0 ? '0 ms' : `${ms.toFixed(2)} ms`;
  if (size < 1000) return `${size < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (size < 10000) return `${(ms / 1000).toFixed(1)} s`;
  const sign = ms < 0 ? '−' : '';
  for (let i = 0; i < units.length; i += 1) {
    const [length, unit] = units[i];
    if (size < length) continue;
    const whole = Math.floor(size / length);
    const next = units[i + 1];
    const rest = next ? Math.floor((size % length) / next[0]) : 0;
    return `${sign}${whole} ${unit}${rest && whole < 10 ? ` ${rest} ${next[1]}` : ''}`;
  }
  return `${Math.round(ms)} ms`;
}

/** The backoff of a job or a schedule: a curve or a table of delays. What it lacks is the kind's. */
export function backoff({ base_ms, factor, cap_ms, delays_ms }) {
  if (delays_ms) {
    const shown = delays_ms.slice(0, 8).map(span).join(', ');
    const rest = delays_ms.length > 8 ? ` and ${delays_ms.length - 8} more delays` : '';
    return `after ${shown}${rest}; the last delay repeats`;
  }
  const parts = [
    base_ms && span(base_ms),
    factor && `× ${factor} from one delay to the next`,
    cap_ms && `at most ${span(cap_ms)}`,
  ];
  return parts.filter(Boolean).join(', ') || 'as the kind has it';
}

/** How far a moment is from now: `12 s ago`, `in 4 m`. */
export function ago(at, now) {
  const ms = now - at;
  if (Math.abs(ms) < 1500) return 'now';
  const text = coarse(Math.abs(ms));
  return ms > 0 ? `${text} ago` : `in ${text}`;
}

function coarse(ms) {
  for (const [length, unit] of units) {
    if (ms >= length) return `${Math.floor(ms / length)} ${unit}`;
  }
  return '1 s';
}

const two = (n) => String(n).padStart(2, '0');
const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** A moment in local time to the second: `07:56:02`, or `28 Nov 07:56:02` of another day. */
export function clock(ms, now) {
  const [at, today] = [new Date(ms), new Date(now)];
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(':');
  const day = `${at.getDate()} ${months[at.getMonth()]}`;
  if (at.getFullYear() !== today.getFullYear()) return `${day} ${at.getFullYear()} ${time}`;
  return at.toDateString() === today.toDateString() ? time : `${day} ${time}`;
}

/** A moment in UTC to the millisecond. */
export const utc = (at) => new Date(at).toISOString().replace('T', ' ').replace('Z', ' UTC');

const whole = new Intl.NumberFormat('en-US');
/** A count: `1,204`, with a plus when there may be more. */
export const count = (n, capped = false) =>
  n === null || n === undefined ? '–' : whole.format(n) + (capped ? '+' : '');

/** A count in little room: `1.2k`, `3.4M`. */
export function brief(n, capped = false) {
  if (n === null || n === undefined) return '–';
  const plus = capped ? '+' : '';
  if (Math.abs(n) < 10000) return whole.format(n) + plus;
  for (const [size, unit] of [
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ]) {
    if (Math.abs(n) >= size) return `${(n / size).toFixed(n / size < 100 ? 1 : 0)}${unit}${plus}`;
  }
  return String(n);
}

/** A figure per second. */
export const rate = (n) =>
  n === null || n === undefined
    ? '–'
    : n >= 100
      ? whole.format(Math.round(n))
      : n >= 10
        ? n.toFixed(1)
        : n === 0
          ? '0'
          : n.toFixed(2);

/** `1 job`, `2 jobs`. */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** The end of a UUIDv7, which differs where the beginning does not. */
export const shortId = (id) => (id ? `…${id.slice(-8)}` : '');

/**
 * Who did something, in a sentence: the API key, with the person for whom it acts. Where the API is open there is only
 * the person whom the caller names.
 */
export const whoOf = (by) => /^anyone \((.+)\)$/.exec(by)?.[1] ?? by.replace(/^key:/, '');
