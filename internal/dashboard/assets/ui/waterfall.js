// Where the time of a job went: each wait with its cause, each attempt, each backoff, drawn to one scale.

import { now } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { span, utc } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Panel, Skeleton, Trouble, useNow } from './base.js';

/** Segments that are drawn at first: the last ones. A job with many attempts has more. */
const SHOWN = 60;

const groups = {
  not_due: 'waiting',
  parents: 'held',
  order_key: 'held',
  limit: 'held',
  queue_paused: 'paused',
  worker: 'worker',
  running: 'executing',
  backoff: 'retrying',
  snoozed: 'retrying',
  ended: 'cancelled',
};

const names = {
  not_due: 'not due yet',
  parents: 'waiting for parents',
  order_key: 'behind its order key',
  limit: 'waiting at a limit',
  queue_paused: 'in a paused queue',
  worker: 'waiting for a worker',
  running: 'running',
  backoff: 'backing off',
  snoozed: 'snoozed',
  ended: 'ended',
};

/** The causes by their sums, the greatest first: `backing off 2 m · running 3 s`. */
const totals = ({ total_ms: sums }) =>
  Object.entries(sums)
    .filter(([, ms]) => ms > 0)
    .sort(([, a], [, b]) => b - a)
    .map(([cause, ms]) => `${names[cause] ?? cause} ${span(ms)}`)
    .join(' · ');

function Bar({ from, to, start, whole, group }) {
  const left = Math.min(99.7, (100 * (from - start)) / whole);
  const width = Math.max(0.3, Math.min(100 - left, (100 * (to - from)) / whole));
  return html`<span class="track" aria-hidden="true">
    <i class=${group} style=${{ left: `${left}%`, width: `${width}%` }}></i>
  </span>`;
}

function Row({ segment, start, whole, at }) {
  const from = Date.parse(segment.from);
  const to = segment.to ? Date.parse(segment.to) : at;
  const length = segment.to ? segment.ms : Math.max(0, to - from);
  const text = segment.text.charAt(0).toUpperCase() + segment.text.slice(1);
  return html`<li class=${cls(!segment.to && 'open')} data-cause=${segment.cause}>
    <span class="cause">
      ${
        segment.cause === 'running'
          ? html`<a href=${`#attempt-${segment.attempt}`}>${text}</a>`
          : html`<span class="wrap">${text}</span>`
      }
      ${
        segment.derived &&
        html`<span class="faint" title="Follows from other records of tickr; the others were recorded with the job">
          ${' '}≈<span class="hidden-visually"> derived</span>
        </span>`
      }
    </span>
    <${Bar} from=${from} to=${to} start=${start} whole=${whole} group=${groups[segment.cause]} />
    <span class="num right" title=${`${utc(from)}${segment.to ? ` to ${utc(to)}` : ''}`}>
      ${span(length)}${!segment.to && html`<span class="soft"> so far</span>`}
    </span>
  </li>`;
}

/** About how high the timeline of a job with so many attempts is. */
const heightOf = (attempts) => `${Math.min(SHOWN, 1 + 2 * attempts) * 1.8 + 2}rem`;

/**
 * The timeline of a job. `open` says that it has not ended, `mine` which events tell of it. Before it comes, the number
 * of `attempts` tells about how much room it needs.
 */
export function Waterfall({ path, open, mine, attempts }) {
  useNow();
  const found = useQuery(`${path}/timeline`, { on: mine, every: open ? 5000 : 0, pace: 500 });
  const it = found.data;
  if (!it)
    return found.error?.status === 404
      ? null
      : html`<${Panel} title="Where its time went">
          ${
            found.error
              ? html`<${Trouble} error=${found.error} retry=${found.reload} />`
              : html`<div style=${{ minHeight: heightOf(attempts) }}><${Skeleton} /></div>`
          }
        </${Panel}>`;
  if (it.segments.length === 0) return null;
  const start = Date.parse(it.from);
  const at = open ? now() : Date.parse(it.to);
  const whole = Math.max(1, at - start);
  const left = it.segments.length - SHOWN;
  return html`
    <${Panel} title="Where its time went" side=${html`<span class="soft num">${span(whole)} in all</span>`}>
      <p class="num" data-totals>${totals(it)}</p>
      ${left > 0 && html`<p class="soft">The last ${SHOWN} of ${it.segments.length} segments are drawn.</p>`}
      <ol class="waterfall">
        ${it.segments
          .slice(-SHOWN)
          .map(
            (segment) => html`<${Row} key=${segment.from} segment=${segment} start=${start} whole=${whole} at=${at} />`,
          )}
      </ol>
    </${Panel}>
  `;
}
