// How late the jobs of each queue started: a row for each queue, a column for each step of time.

import { seg, url } from '../core/api.js';
import { html, useMemo } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { toRange } from '../core/range.js';
import { useWords } from '../core/route.js';
import { Panel, Segment, Skeleton, Trouble } from './base.js';
import { spans, useQueueHistory, useSpan } from './history.js';
import { MarkList, useMarks } from './marks.js';
import { Sheet, sheetHeight } from './sheet.js';

const percentiles = [
  ['p99', 'p99'],
  ['p50', 'p50'],
];
/** Upper bounds of the colours in ms, each with its words. The last colour has no bound. */
const levels = [
  [100, 'below 100 ms'],
  [1000, '0.1 – 1 s'],
  [10000, '1 – 10 s'],
  [60000, '10 – 60 s'],
  [600000, '1 – 10 min'],
  [Infinity, '10 min and more'],
];
const legend = [...levels.map(([, words], i) => [`heat-${i}`, words]), ['', 'no start']];
/** The queues that have no history of their own, together. No queue has this name. */
const OTHER = '_other';

/** A lateness in words, and from a second on also to the millisecond. */
const exact = (ms) => (ms < 1000 ? span(ms) : `${span(ms)} (${count(Math.round(ms))} ms)`);

/**
 * The Explorer with the jobs that may have started in a step. Its range is that of acceptance, so it begins as much
 * before the step as jobs were late.
 */
function jobsOf(queue, at, step, late) {
  const from = at - Math.ceil(late / step) * step;
  return url('/jobs', { q: queue === OTHER ? null : `queue:${queue}`, ...toRange({ from, to: at + step }) });
}

/** The queues in which jobs started, the latest starts first. */
function sheetOf({ queues, at_ms: columns, step_ms: step }, percentile) {
  const rows = queues
    .map((queue) => {
      const [p50, p99] = [queue.lateness_p50_ms, queue.lateness_p99_ms];
      const values = percentile === 'p50' ? p50 : p99;
      const cells = values.map(
        (ms, i) =>
          ms !== null && {
            is: `heat-${levels.findIndex(([bound]) => ms < bound)}`,
            text: `p99 ${exact(p99[i])} · p50 ${exact(p50[i])} late`,
            href: jobsOf(queue.queue, columns[i], step, p99[i]),
          },
      );
      const own = queue.queue !== OTHER;
      return {
        name: own ? queue.queue : 'other queues',
        href: own && `/queues/${seg(queue.queue)}`,
        cells,
        worst: Math.max(-1, ...values.map((ms) => ms ?? -1)),
      };
    })
    .filter(({ worst }) => worst >= 0)
    .sort((one, other) => other.worst - one.worst || one.name.localeCompare(other.name));
  return { columns, step, rows };
}

/**
 * `five` is the history of the last five minutes, which the screen reads anyway. `rows` is the number of queues.
 */
export function HeatMap({ five, rows, first = '1h' }) {
  const [query, change] = useWords();
  const [over, choose] = useSpan(first);
  const own = useQueueHistory(over === '5m' ? null : over);
  const { data, error, missing, reload } = over === '5m' ? five : own;
  const { marks, more } = useMarks(over);
  const percentile = query.get('percentile') === 'p50' ? 'p50' : 'p99';
  const sheet = useMemo(() => data && sheetOf(data, percentile), [data, percentile]);
  if (missing) return null;
  const side = html`<div class="row tight">
    <${Segment}
      label="Percentile"
      of=${percentiles}
      is=${percentile}
      on=${(word) => change({ percentile: word === 'p99' ? null : word })}
    />
    <${Segment} label="Span" of=${spans} is=${over} on=${choose} />
  </div>`;
  const silent = sheet ? data.queues.length - sheet.rows.length : 0;
  return html`<${Panel} title="Lateness by queue" side=${side}>
    <${Trouble} error=${error} retry=${reload} />
    ${!data && !error && html`<div style=${{ minHeight: sheetHeight(rows) }}><${Skeleton} /></div>`}
    ${sheet?.rows.length === 0 && html`<p class="faint">No job started in this time.</p>`}
    ${
      sheet?.rows.length > 0 &&
      html`<${Sheet}
        key=${over}
        of=${sheet}
        label=${`${percentile} of the lateness by queue and time`}
        noun="Queue"
        marks=${marks}
        legend=${legend}
      >
        Enter or a click opens its jobs.
      </${Sheet}>`
    }
    ${
      (silent > 0 || data?.more) &&
      html`<p class="faint">
        ${silent > 0 && `${plural(silent, 'queue')} started no job in this time. `}
        ${data.more && 'Only the hundred busiest queues are shown.'}
      </p>`
    }
    <${MarkList} marks=${marks} more=${more} />
  </${Panel}>`;
}
