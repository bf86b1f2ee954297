// How many jobs were accepted when, by their state now. A range that is marked with the mouse or the arrow keys narrows
// what the screen shows.

import { cls, html, useRef, useState } from '../core/dom.js';
import { brief, count } from '../core/format.js';

/** States from the bottom of a bar to its top. Failures stand on the line, where they are compared easily. */
export const stacked = ['failed', 'retrying', 'executing', 'waiting', 'cancelled', 'completed'];
/** Height of the drawing. A unit is about a pixel. */
const HIGH = 100;
/** The least height of a part that is not empty. */
const LEAST = 2;
const DAY = 86400000;

const two = (n) => String(n).padStart(2, '0');
const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const dayOf = (at) => `${at.getDate()} ${months[at.getMonth()]}`;
const clockOf = (at, seconds) =>
  `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ''}`;

/** A moment in local time. */
export const momentText = (ms) => `${dayOf(new Date(ms))} ${clockOf(new Date(ms), false)}`;

/** A range in local time, with the day only where it is needed. */
export function rangeText(from, to) {
  const [begin, end] = [new Date(from), new Date(to)];
  const seconds = to - from < 120000;
  const other = dayOf(begin) !== dayOf(end);
  if (to - from >= 3 * DAY) return `${dayOf(begin)} – ${dayOf(end)}`;
  return `${dayOf(begin)} ${clockOf(begin, seconds)} – ${other ? `${dayOf(end)} ` : ''}${clockOf(end, seconds)}`;
}

const total = (bar) => Object.values(bar.states).reduce((sum, jobs) => sum + jobs, 0);

/** A number of a survey: an estimate says that it is one. */
export const counted = (jobs, exact) => `${exact ? '' : '≈ '}${count(jobs)}`;

/** Parts of a bar, from the bottom: `{state, y, height}`. */
function partsOf(bar, most) {
  const parts = [];
  let y = HIGH;
  for (const state of stacked) {
    const jobs = bar.states[state] ?? 0;
    if (!jobs) continue;
    const height = Math.max(LEAST, (jobs / most) * (HIGH - 2));
    y -= height;
    parts.push({ state, y: Math.max(0, y), height });
  }
  return parts;
}

/** Positions of at most `many` labels of the time axis, at the beginnings of bars. At its end a label has no room. */
function ticksOf(bars, many) {
  const every = Math.max(1, Math.ceil(bars.length / many));
  return bars.map((bar, i) => ({ bar, i })).filter(({ i }) => i % every === 0 && i < 0.94 * bars.length);
}

/** `on` is called with `{from, to}` in ms; `to` is null for a range that ends now. */
export function Histogram({ survey, open, stale, on }) {
  const [at, setAt] = useState(null);
  const [marked, mark] = useState(null);
  const [keyed, key] = useState(false);
  const box = useRef(null);
  // A survey that comes while a range is being marked would move the bars under the mouse.
  const shown = useRef(survey);
  if (!marked) shown.current = survey;
  const { bars, step_ms: step, to } = shown.current;
  const most = Math.max(1, ...bars.map(total));
  const last = bars.length - 1;
  const begin = (i) => Date.parse(bars[i].from);
  const end = (i) => (i === last ? Date.parse(to) : begin(i) + step);
  const placeOf = (event) => {
    const { left, width } = box.current.getBoundingClientRect();
    return Math.max(0, Math.min(last, Math.floor(((event.clientX - left) / width) * bars.length)));
  };
  const span = marked && { first: Math.min(...marked), end: Math.max(...marked) };
  const clear = () => mark(null);
  const narrow = ({ first, end: final }) => {
    clear();
    setAt(null);
    on({ from: begin(first), to: final === last && open ? null : end(final) });
  };
  const move = (event) => {
    const step_to = { ArrowLeft: -1, ArrowRight: 1, Home: -bars.length, End: bars.length }[event.key];
    if (step_to) {
      event.preventDefault();
      key(true);
      const next = Math.max(0, Math.min(last, (at ?? (step_to < 0 ? last + 1 : -1)) + step_to));
      setAt(next);
      mark(event.shiftKey ? [marked ? marked[0] : (at ?? next), next] : null);
    } else if (event.key === 'Enter' && at !== null) {
      event.preventDefault();
      narrow(span ?? { first: at, end: at });
    } else if (event.key === 'Escape' && (marked || at !== null)) {
      event.stopPropagation();
      clear();
      setAt(null);
    }
  };
  const said = span
    ? { from: begin(span.first), to: end(span.end), bars: bars.slice(span.first, span.end + 1) }
    : at !== null && at <= last && { from: begin(at), to: end(at), bars: [bars[at]] };
  return html`<figure class=${cls('histogram', stale && 'old')}>
    <div class="most faint num" aria-hidden="true">${bars.length > 0 && brief(most)}</div>
    <div
      ref=${box}
      class="bars"
      tabindex="0"
      role="group"
      aria-label="Jobs by time of acceptance and state"
      aria-describedby="histogram-keys"
      onPointerDown=${(event) => {
        if (event.button !== 0 || !bars.length) return;
        event.currentTarget.setPointerCapture(event.pointerId);
        key(false);
        mark([placeOf(event), placeOf(event)]);
      }}
      onPointerMove=${(event) => {
        if (!bars.length) return;
        setAt(placeOf(event));
        if (marked && event.currentTarget.hasPointerCapture(event.pointerId)) mark([marked[0], placeOf(event)]);
      }}
      onPointerUp=${() => span && narrow(span)}
      onPointerCancel=${clear}
      onPointerLeave=${() => !marked && setAt(null)}
      onKeyDown=${move}
      onBlur=${() => {
        clear();
        setAt(null);
      }}
    >
      <svg viewBox=${`0 0 ${Math.max(1, bars.length)} ${HIGH}`} preserveAspectRatio="none" aria-hidden="true">
        ${bars.map(
          (bar, i) => html`<g key=${bar.from} class=${cls(!bar.exact && 'guess', i === at && 'at')}>
            ${
              bar.looked
                ? partsOf(bar, most).map(
                    ({ state, y, height }) =>
                      html`<rect key=${state} class=${state} x=${i + 0.07} y=${y} width="0.86" height=${height} />`,
                  )
                : html`<rect class="unknown" x=${i} y="0" width="1" height=${HIGH} />`
            }
          </g>`,
        )}
        ${span && html`<rect class="mark" x=${span.first} y="0" width=${span.end - span.first + 1} height=${HIGH} />`}
      </svg>
      <div class="ticks faint num" aria-hidden="true">
        ${ticksOf(bars, 6).map(
          ({ bar, i }, n) =>
            html`<span key=${i} class=${cls(n % 2 === 1 && 'second')} style=${{ left: `${(100 * i) / bars.length}%` }}>
              ${step >= DAY / 4 ? dayOf(new Date(bar.from)) : clockOf(new Date(bar.from), step < 60000)}
            </span>`,
        )}
      </div>
    </div>
    <figcaption class="row apart soft">
      <span aria-live=${keyed ? 'polite' : 'off'}>
        ${
          said
            ? html`<b class="num">${rangeText(said.from, said.to)}</b> ${saidOf(said.bars)}`
            : html`<span id="histogram-keys" class="faint">
              Drag over the bars to narrow the range, or use the arrow keys, Shift and Enter.
            </span>`
        }
      </span>
    </figcaption>
  </figure>`;
}

function saidOf(bars) {
  if (!bars.some((bar) => bar.looked)) return 'not looked at: narrow the range';
  const exact = bars.every((bar) => bar.exact);
  const sums = stacked.map((state) => [state, bars.reduce((sum, bar) => sum + (bar.states[state] ?? 0), 0)]);
  const parts = sums.filter(([, jobs]) => jobs > 0).map(([state, jobs]) => `${counted(jobs, exact)} ${state}`);
  return parts.join(' · ') || 'no jobs';
}
