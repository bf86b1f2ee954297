// What happened in slots of time, where the server keeps it.

import { url } from '../core/api.js';
import { cls, html, useMemo, useState } from '../core/dom.js';
import { rate, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { Panel, Segment, Trouble } from './base.js';
import { Chart, ChartToCome } from './chart.js';
import { MarkList, useMarks } from './marks.js';

export const spans = [
  ['5m', '5 min'],
  ['1h', '1 h'],
  ['24h', '24 h'],
];

/** A history, as long as the server has a route for it. */
function useRoute(path, every) {
  const [missing, miss] = useState(false);
  const history = useQuery(missing ? null : path, { every });
  if (history.error?.status === 404 && !missing) miss(true);
  return { ...history, missing };
}

const pace = (over) => (over === '5m' ? 5000 : 30000);

/** The history of one queue, or of all that happens. */
export const useHistory = (over, queue) => useRoute(url('/v1/history', { span: over, queue }), pace(over));

/** The histories of all queues; nothing is read without a span. */
export const useQueueHistory = (over) => useRoute(over && url('/v1/history/queues', { span: over }), pace(over));

/** The columns of each queue, by its name; null while nothing is known. */
export function useByQueue({ data }) {
  return useMemo(
    () => data && new Map(data.queues.map((queue) => [queue.queue, { ...queue, at_ms: data.at_ms }])),
    [data],
  );
}

/** Lines of the points of a history. */
export const linesOf = (points) => ({
  flow: [
    { name: 'enqueued /s', values: points.accepted, colour: 1, fill: true },
    { name: 'completed /s', values: points.completed, colour: 2 },
    { name: 'failed attempts /s', values: points.failed, colour: 4 },
  ],
  late: [
    { name: 'p50', values: points.lateness_p50_ms, colour: 1 },
    { name: 'p99', values: points.lateness_p99_ms, colour: 3 },
  ],
  run: points.run_p50_ms && [
    { name: 'p50', values: points.run_p50_ms, colour: 1 },
    { name: 'p99', values: points.run_p99_ms, colour: 3 },
  ],
});

/** The span of the address if charts have it, or else `first`; and how to choose another one. */
export function useSpan(first) {
  const [query, change] = useWords();
  const asked = query.get('span');
  const over = spans.some(([span]) => span === asked) ? asked : first;
  return [over, (span) => change({ span, from: null, to: null })];
}

/** Charts of one queue, or of all that happens, over the span of the address. */
export function HistoryCharts({ queue, first = '1h' }) {
  const [over, choose] = useSpan(first);
  const history = useHistory(over, queue);
  const { marks, more } = useMarks(over, queue);
  const points = history.data?.points;
  const lines = useMemo(() => points && linesOf(points), [points]);
  if (history.missing) return null;
  const chart = (label, series, format) =>
    lines
      ? html`<${Chart} label=${label} x=${points.at_ms} series=${series} format=${format} marks=${marks} />`
      : history.error
        ? html`<${Trouble} error=${history.error} retry=${history.reload} />`
        : html`<${ChartToCome} />`;
  // Workers of other programs measure their own run time and do not tell it.
  const runs = queue && lines?.run?.some(({ values }) => values.some((value) => value !== null));
  return html`<div class=${cls('grid', runs && 'three')}>
    <${Panel}
      title="Jobs per second"
      side=${html`<div class="row tight">
        <a class="soft" href=${url('/incident', { span: over, queue })}>Incident page</a>
        <${Segment} label="Span" of=${spans} is=${over} on=${choose} />
      </div>`}
    >
      ${chart('Jobs per second', lines?.flow, rate)}
    </${Panel}>
    <${Panel} title="Lateness" side=${html`<span class="faint">start after due</span>`}>
      ${chart('Lateness', lines?.late, span)}
    </${Panel}>
    ${
      runs &&
      html`<${Panel} title="Run time" side=${html`<span class="faint">of handlers</span>`}>
        ${chart('Run time', lines.run, span)}
      </${Panel}>`
    }
  </div>
  <${MarkList} marks=${marks} more=${more} />`;
}
