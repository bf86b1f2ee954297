// Small parts that all screens use.

import { may, me, now } from '../core/api.js';
import { cls, html, legible, useEffect, useState } from '../core/dom.js';
import { ago, clock, utc } from '../core/format.js';
import { outage } from '../core/known.js';
import { observable, useObservable } from '../core/observable.js';

// One clock for all relative times of a page.
const beat = observable(0);
setInterval(() => {
  if (!document.hidden) beat.set((n) => n + 1);
}, 1000);

/** A moment, relative, with the exact UTC on hover. */
export function Time({ at }) {
  useObservable(beat);
  if (!at) return html`<span class="faint">–</span>`;
  const ms = typeof at === 'number' ? at : Date.parse(at);
  return html`<time class="nowrap num" datetime=${new Date(ms).toISOString()} title=${utc(ms)}>
    ${ago(ms, now())}
  </time>`;
}

/** A moment by the clock, in local time, with the day unless it is today; how long ago on hover. */
export function Clock({ at }) {
  useObservable(beat);
  const ms = Date.parse(at);
  return html`<time class="nowrap num" datetime=${new Date(ms).toISOString()} title=${`${utc(ms)}, ${ago(ms, now())}`}>
    ${clock(ms, now())}
  </time>`;
}

/** Drawn again each second with what time it is. */
export function useNow() {
  useObservable(beat);
  return now();
}

export const Badge = ({ is, children, title }) =>
  html`<span class=${cls('badge', is)} title=${title}>${children ?? String(is).replaceAll('_', ' ')}</span>`;

const paths = {
  overview: 'M4 13h4l2 5 4-12 2 7h4',
  jobs: 'M4 6h16M4 12h16M4 18h10',
  tail: 'M4 6h16M4 11h16M4 16h7M17 14v6m-3-3 3 3 3-3',
  batches: 'M12 4 4 8l8 4 8-4-8-4ZM4 12l8 4 8-4M4 16l8 4 8-4',
  'dead-letters': 'M12 4 3 20h18L12 4Zm0 6v4m0 3v.01',
  queues: 'M4 5h16v4H4zM4 12h11v3H4zM4 18h7v2H4z',
  limits: 'M4 17a8 8 0 1 1 16 0M12 17l4-6',
  'order-keys': 'M5 7h14M5 12h14M5 17h8M16 15l3 2-3 2',
  outbox: 'M4 13v6h16v-6M4 13h5l1 2h4l1-2h5M12 4v7M9 8l3 3 3-3',
  schedules: 'M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16Zm0 4v4l3 2',
  runners: 'M5 5h14v6H5zM5 13h14v6H5zM8 8h.01M8 16h.01',
  index:
    'M12 4c4 0 7 1.2 7 2.8S16 9.6 12 9.6 5 8.4 5 6.800 8 4 12 4Z' +
    'M5 7v10c0 1.600 3 3 7 3s7-1.400 7-3V7M5 12c0 1.600 3 3 7 3s7-1.400 7-3',
  operations: 'M4 8h10m4 0h2M4 16h2m4 0h10M16 6v4M8 14v4',
  audit: 'M7 4h10v16H7zM10 8h4m-4 4h4m-4 4h2',
  enqueue: 'M12 5v14M5 12h14',
  'api-keys': 'M14 10a4 4 0 1 0-3.700 4L13 11l2 2 2-2 3-3v-2h-3l-3.500 3.500',
  search: 'M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13ZM16 16l4 4',
  menu: 'M4 7h16M4 12h16M4 17h16',
  copy: 'M9 9h10v10H9zM5 15V5h10',
};
export const Icon = ({ of }) =>
  html`
    <svg
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width="1.8"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d=${paths[of]} />
    </svg>
  `;

/** Children that only those see who may do it. */
export function Allowed({ to = 'admin', children }) {
  const who = useObservable(me);
  return may(to, who) ? children : null;
}

export const useMay = (need = 'admin') => may(need, useObservable(me));

export function Copy({ text, label = 'Copy' }) {
  const [done, set] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => set(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      set(true);
    } catch {
      tell('The browser did not allow to copy; mark the text by hand', 'bad');
    }
  };
  return html`<button type="button" class="quiet small" onClick=${copy} aria-label=${label} title=${label}>
    ${done ? 'copied' : html`<${Icon} of="copy" />`}
  </button>`;
}

const toasts = observable([]);
let counter = 0;

/** A short message at the edge of the page. */
export function tell(text, kind = 'good', link = null) {
  counter += 1;
  const id = counter;
  toasts.set((all) => [...all.slice(-3), { id, text, kind, link }]);
  setTimeout(() => hush(id), kind === 'bad' ? 12000 : 6000);
}
const hush = (id) => toasts.set((all) => all.filter((toast) => toast.id !== id));

/** What the API refused, in a toast. */
export const tellProblem = (problem) =>
  tell(
    [problem.message, ...(problem.errors || []).slice(0, 3).map((e) => `${e.pointer} ${e.detail}`)].join(' · '),
    'bad',
  );

export function Toasts() {
  const all = useObservable(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${all.map(
      (toast) => html`<div key=${toast.id} class=${cls('toast', toast.kind)}>
        <span class="grow">${toast.text}${toast.link && html` <a href=${toast.link.href}>${toast.link.text}</a>`}</span>
        <button class="quiet small" type="button" aria-label="Dismiss" onClick=${() => hush(toast.id)}>✕</button>
      </div>`,
    )}
  </div>`;
}

/** A problem where the data would be, or `of` a "change" that was refused or has no answer. */
export function Trouble({ error, retry, of = 'reading' }) {
  const out = useObservable(outage);
  if (!error) return null;
  // The banner says it once for all readings.
  if (of === 'reading' && out !== null && (error.status === 0 || error.code === 'store_unavailable'))
    return html`<p class="faint">Not read yet: ${error.message}.</p>`;
  return html`<div class="note bad" role="alert">
    <b>${error.message}</b>
    ${
      error.errors?.length > 0 &&
      html`<ul>
        ${error.errors.map((e) => html`<li><code>${e.pointer}</code> ${e.detail}</li>`)}
      </ul>`
    }
    ${retry && html`<p><button type="button" class="small" onClick=${retry}>Try again</button></p>`}
  </div>`;
}

export const Skeleton = () =>
  html`<div class="skeleton" aria-busy="true" aria-label="Loading"><i></i><i></i><i></i></div>`;

export const Empty = ({ title, children }) => html`<div class="empty"><h3>${title}</h3>${children}</div>`;

/** The heading of a screen, with what can be done there. */
export const Head = ({ title, children, sub }) =>
  html`<div class="head">
    <div class="grow"><h1 tabindex="-1">${title}</h1>${sub && html`<p>${sub}</p>`}</div>
    ${children}
  </div>`;

export const Panel = ({ title, side, flush, children, id }) => html`<section class="panel" id=${id} aria-label=${title}>
  ${title && html`<header><h2>${title}</h2>${side}</header>`}
  <div class=${cls('body', flush && 'flush')}>${children}</div>
</section>`;

/**
 * One figure in a row of figures: its name above, a note below, and a link if it leads somewhere. One of two values is
 * `broad`.
 */
export const Figure = ({ name, value, title, note, to, bad, broad }) =>
  html`<${to ? 'a' : 'div'} class=${cls('figure', broad && 'broad')} href=${to}>
    <div class="name">${name}</div>
    <div class=${bad ? 'value bad' : 'value'} title=${title}>${value}</div>
    <div class="sub">${note}</div>
  </${to ? 'a' : 'div'}>`;

/** One of several, as buttons in a row. */
export const Segment = ({ of, is, on, label }) => html`<div class="segment" role="group" aria-label=${label}>
  ${of.map(
    ([value, text]) => html`
      <button type="button" key=${value} class="small" aria-pressed=${String(value === is)} onClick=${() => on(value)}>
        ${text}
      </button>
    `,
  )}
</div>`;

export const Field = ({ label, id, hint, wrong, children }) => html`<div class="field">
  <label for=${id}>${label}</label>
  ${children}
  ${hint && html`<span class="hint" id=${`${id}-hint`}>${hint}</span>`}
  ${wrong && html`<span class="wrong" role="alert">${wrong}</span>`}
</div>`;

/** A sentence of the server; the ids of jobs in it are links, written in full or in `brief`. */
export const WithJobs = ({ text, brief }) =>
  text
    .split(/([0-9a-f]{8}-[0-9a-f-]{27})/)
    .map((part, i) =>
      i % 2 ? html`<${JobLink} key=${i} id=${part}>${brief ? null : part}</${JobLink}>` : legible(part),
    );

/** `away` opens the job in another tab, from a dialog that stays. Opened so, the tab has the API key of this one. */
export const JobLink = ({ id, children, away }) =>
  id
    ? html`<a
      class=${cls('mono', !children && 'nowrap')}
      href=${`/jobs/${id}`}
      title=${id}
      target=${away ? '_blank' : undefined}
      rel=${away ? 'opener' : undefined}
    >
      ${children ?? `…${id.slice(-8)}`}
    </a>`
    : html`<span class="faint">–</span>`;
