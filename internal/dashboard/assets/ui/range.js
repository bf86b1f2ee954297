// The choice of the range of time.

import { html } from '../core/dom.js';
import { spans } from '../core/range.js';
import { Drop } from './drop.js';
import { momentText, rangeText } from './histogram.js';

const DAY = 86400000;

/** A moment as a field of the browser has it, in local time. */
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 19);
const read = (text) => {
  const at = text ? Date.parse(text) : Number.NaN;
  return Number.isNaN(at) ? null : at;
};

/** A range as the end of a sentence: `in the last hour`; empty for all time. */
export function rangeName({ span, from, to }) {
  const known = spans.find(([one]) => one === span);
  if (span) return `in the ${known ? known[1].toLowerCase() : `last ${span}`}`;
  if (from === null && to === null) return '';
  if (from === null) return `before ${momentText(to)}`;
  return to === null ? `since ${momentText(from)}` : `in the range ${rangeText(from, to)}`;
}

/**
 * `range` is that of the address, `shown` the one of the last survey: `{from, to}` in ms. `on` takes a new one.
 * `offered` are the ranges that end now.
 */
export function RangeChoice({ range, shown, own, on, offered = spans }) {
  if (own) return html`<span class="soft nowrap">Range: from the filter</span>`;
  const custom = range.from !== null || range.to !== null;
  const known = offered.some(([span]) => span === range.span);
  const now = Date.now();
  const from = range.from ?? shown?.from ?? now - DAY;
  const to = range.to ?? shown?.to ?? now;
  const choose = (value) => on(value === 'custom' ? { from, to } : { span: value });
  return html`<div class="row tight">
    <label>
      <span class="hidden-visually">Range of time</span>
      <select value=${custom ? 'custom' : range.span} onChange=${(event) => choose(event.target.value)}>
        ${offered.map(([span, name]) => html`<option key=${span} value=${span}>${name}</option>`)}
        ${!known && range.span && html`<option value=${range.span}>Last ${range.span}</option>`}
        <option value="custom">${custom ? rangeText(from, to) : 'Custom range…'}</option>
      </select>
    </label>
    ${
      custom &&
      html`
        <${Drop} label="Edit" small end>
            <label class="field">
              From (your local time)
              <input
                type="datetime-local"
                step="1"
                value=${local(from)}
                onChange=${(event) => on({ from: read(event.target.value), to: range.to })}
              />
            </label>
            <label class="field">
              To; empty for now
              <input
                type="datetime-local"
                step="1"
                value=${range.to === null ? '' : local(range.to)}
                onChange=${(event) => on({ from: range.from ?? from, to: read(event.target.value) })}
              />
            </label>
        </${Drop}>
        <button
          type="button"
          class="small"
          onClick=${() => {
            const half = (to - from) / 2;
            on({ from: from - half, to: to + half >= now ? null : to + half });
          }}
        >
          Zoom out
        </button>
      `
    }
  </div>`;
}
