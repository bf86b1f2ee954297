// Charts and sparklines by uPlot, in the colours of the theme.
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { observable, useObservable } from '../core/observable.js';
import { MarkLines } from './marks.js';

// Counts up when the theme changes: canvases know nothing of style sheets.
const painted = observable(0);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => painted.set((n) => n + 1));
new MutationObserver(() => painted.set((n) => n + 1)).observe(document.documentElement, {
  attributeFilter: ['data-theme'],
});

// A name of the palette stands for two colours, light and dark. Only a property of an element says which one is in
// force.
const colour = (name, percent = 100) => {
  const root = document.documentElement;
  root.style.outlineColor = `color-mix(in srgb, var(${name}) ${percent}%, transparent)`;
  const inForce = getComputedStyle(root).outlineColor;
  root.style.outlineColor = '';
  return inForce;
};
const remPx = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

/**
 * `x`: moments in ms; `series`: `[{name, values, colour: 1..4, fill?, bars?}]`, values with null for gaps; `format`
 * turns a value into text; `marks` are events as `useMarks` returns them. Without `axes` it is a sparkline.
 */
export function Chart({ x, series, format = String, axes = true, label, marks = null, key: _key }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const theme = useObservable(painted);
  const shape = `${theme}/${series.map((s) => `${s.name}${s.colour}${s.bars}`).join()}/${axes}`;
  const formatter = useRef(format);
  formatter.current = format;

  useEffect(() => {
    const element = box.current;
    const rem = remPx();
    const font = `${Math.round(rem * 0.8)}px ${getComputedStyle(document.body).fontFamily}`;
    const axis = {
      stroke: colour('--faint'),
      font,
      grid: { stroke: colour('--grid'), width: 1 },
      ticks: { show: false },
    };
    const options = {
      width: element.clientWidth || 100,
      height: element.clientHeight || 30,
      // The last time of the axis stands half behind the end of the plot.
      padding: axes ? [8, Math.round(rem * 1.6), 0, 0] : [2, 2, 2, 2],
      legend: { show: false },
      cursor: axes ? { y: false, drag: { x: false, y: false }, points: { size: 6 } } : { show: false },
      scales: {
        x: { time: true, ...(series.some((s) => s.bars) && { range: aside }) },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high > 0 ? high : 1) * 1.1] },
      },
      axes: axes
        ? [
            {
              ...axis,
              size: Math.round(rem * 1.8),
              // Room for a time with its seconds, where there is some.
              space: (_, _axis, _from, _to, wide) => Math.max(rem * 3.6, Math.min(rem * 5.5, wide / 5)),
              values: (_, all) => all.map(clock),
            },
            {
              ...axis,
              size: Math.round(rem * 4),
              ...(series.some((s) => s.bars) && { incrs: WHOLE }),
              values: (_, all) => all.map((v) => (v === null ? '' : formatter.current(v))),
            },
          ]
        : [{ show: false }, { show: false }],
      series: [
        {},
        ...series.map((s) => ({
          label: s.name,
          stroke: colour(`--chart-${s.colour}`),
          width: s.bars ? 0 : axes ? 2 : 1.5,
          fill: s.fill || s.bars ? colour(`--chart-${s.colour}`, s.bars ? 80 : 13) : undefined,
          paths: s.bars ? uPlot.paths.bars({ size: [0.8, 60] }) : undefined,
          // A value between two gaps has no line, so it is drawn as a point.
          points: { show: !s.bars, size: axes ? 5 : 3.5, filter: alone, fill: colour(`--chart-${s.colour}`) },
          spanGaps: false,
        })),
      ],
      hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
    };
    plot.current = new uPlot(options, data(x, series), element);
    const observer = new ResizeObserver(() =>
      plot.current?.setSize({ width: element.clientWidth, height: element.clientHeight }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(data(x, series));
  }, [x, series]);

  const shown = at !== null && at < x.length ? at : x.length - 1;
  // Of counts the last one says little. Their sum is shown until one is pointed at.
  const figureOf = (s) =>
    s.bars && axes && at === null
      ? `${format(s.values.reduce((sum, value) => sum + (value ?? 0), 0))} in all`
      : text(s.values[shown], format);
  const said = series.map((s) => `${s.name} ${figureOf(s)}`).join(', ');
  return html`<figure class="chart-box">
    <div ref=${box} class=${cls('chart', !axes && 'spark')} role="img" aria-label=${`${label}: ${said}`}></div>
    ${marks && html`<${MarkLines} marks=${marks} from=${x[0]} to=${x.at(-1)} />`}
    ${
      axes &&
      html`<figcaption class="legend">
        ${series.map(
          (s) => html`<span key=${s.name}>
            <i class=${`swatch-${s.colour}`}></i>${s.name} <b>${figureOf(s)}</b>
          </span>`,
        )}
        ${
          at !== null &&
          at < x.length &&
          html`<span class="faint" title="Your local time">${clock(x[at] / 1000)}</span>`
        }
      </figcaption>`
    }
  </figure>`;
}

const empty = (value) => value === null || value === undefined;
const alone = ({ data: all }, series) =>
  all[series].flatMap((value, i, values) => (!empty(value) && empty(values[i - 1]) && empty(values[i + 1]) ? [i] : []));
const two = (n) => String(n).padStart(2, '0');
const clock = (seconds) => {
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${at.getSeconds() ? `:${two(at.getSeconds())}` : ''}`;
};
/** Steps of an axis that counts. */
const WHOLE = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

// Bars stand astride their moments, so half of one needs room at each end.
const aside = ({ data: [x] }, low, high) => {
  const half = x?.length > 1 ? (x[1] - x[0]) / 2 : 0;
  return low === null ? [low, high] : [low - half, high + half];
};
const data = (x, series) => [x.map((ms) => ms / 1000), ...series.map((s) => s.values)];
const text = (value, format) => (value === null || value === undefined ? '–' : format(value));

/** The place of a chart whose values have not come, so that nothing below it moves when they do. */
export const ChartToCome = () =>
  html`<div class="chart-box" aria-busy="true" aria-label="Loading">
    <div class="chart"></div>
    <div class="legend">${'\u00a0'}</div>
  </div>`;

/** A line in a cell. */
export const Spark = ({ values, colour: number = 1, label, bars = false }) => {
  const x = values.map((_, i) => (i + 1) * 1000);
  return html`
    <${Chart}
      x=${x}
      axes=${false}
      label=${label}
      series=${[{ name: label, values, colour: number, fill: true, bars }]}
    />
  `;
};
