// The choice of the range of time.

import { html, useEffect, useState } from '../core/dom.js';
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
 * The fields of a range: `{from, to}` in ms, `to` null for now. What is typed counts once it is applied: a field of the
 * browser tells of a change after each part of its moment, and each would be another range.
 */
function Fields({ from, to, range, on }) {
  const shown = { from: local(from), to: to === null ? '' : local(to) };
  const [text, setText] = useState(shown);
  const [wrong, say] = useState(null);
  const back = () => {
    setText(shown);
    say(null);
  };
  useEffect(back, [range.from, range.to]);
  const field = (name, label) => html`<label class="field">
    ${label}
    <input
      name=${name}
      type="datetime-local"
      step="1"
      value=${text[name]}
      onInput=${(event) => {
        const { value } = event.target;
        setText((old) => ({ ...old, [name]: value }));
        say(null);
      }}
    />
  </label>`;
  const apply = (event) => {
    event.preventDefault();
    // A moment that is typed in part has no text, and an empty end means now.
    if (event.target.elements.to.validity.badInput) return say('To is not a whole moment.');
    // The field has no milliseconds. A moment that was not changed keeps its own.
    const next = {
      from: text.from === shown.from ? from : read(text.from),
      to: text.to === shown.to ? to : read(text.to),
    };
    if (next.from === null) return say('From is missing, or is not a whole moment.');
    if (next.from >= (next.to ?? Date.now()))
      return say(next.to ? 'From must be before To.' : 'From must be in the past.');
    say(null);
    event.target.closest('details').open = false;
    return on(next);
  };
  return html`<form class="stack tight" novalidate onSubmit=${apply}>
    ${field('from', 'From (your local time)')} ${field('to', 'To; empty for now')}
    ${wrong && html`<div class="field"><span class="wrong" role="alert">${wrong}</span></div>`}
    <div class="row end"><button type="submit" class="small primary">Apply</button></div>
  </form>`;
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
          <${Fields} from=${from} to=${range.to} range=${range} on=${on} />
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
