// The values that the jobs of a filter have, with their numbers. A click adds one to the filter, takes it away, or
// leaves its jobs out.

import { cls, html, useRef } from '../core/dom.js';
import { termsOf } from '../core/words.js';
import { counted } from './histogram.js';

const names = {
  state: 'State',
  kind: 'Kind',
  queue: 'Queue',
  group: 'Cause',
  tag: 'Tag',
  attempt: 'Attempts used',
  runner: 'Runner',
  schedule: 'Schedule',
  host: 'Host',
  unique_key: 'Unique key',
  order: 'Order key',
  limit: 'Limit key',
};
/** Fields whose values are seldom what one looks for first: folded at the beginning. */
const folded = ['runner', 'attempt', 'schedule', 'host', 'unique_key', 'order', 'limit'];
/** Values of a field before the others are unfolded. */
const FIRST = 6;

/**
 * Values of a field with what the filter says of them. A value that the filter rules out has no number any more, but
 * must be there to be let in again; so must the others beside one that is wanted.
 */
function valuesOf(field, facet, q, before) {
  const { wanted, unwanted } = termsOf(q, field);
  const values = new Map((facet?.values ?? []).map((one) => [one.value, one]));
  const add = (value, text) => {
    if (!values.has(value)) values.set(value, { value, text, jobs: null });
  };
  for (const value of [...wanted, ...unwanted]) add(value, before.get(value));
  if (wanted.length && field !== 'tag') for (const [value, text] of before) add(value, text);
  return [...values.values()].map((one) => ({
    ...one,
    wanted: wanted.includes(one.value),
    unwanted: unwanted.includes(one.value),
  }));
}

/** `onWant` and `onExclude` are called with a field and a value. */
export function Facets({ survey, q, onWant, onExclude }) {
  // Values of each field while the filter said nothing of it: `Map(field, Map(value, text))`.
  const seen = useRef(new Map());
  const facets = new Map((survey?.facets ?? []).map((facet) => [facet.field, facet]));
  for (const field of Object.keys(names)) {
    const { wanted, unwanted } = termsOf(q, field);
    const facet = facets.get(field);
    if (facet && !wanted.length && !unwanted.length)
      seen.current.set(field, new Map(facet.values.map((one) => [one.value, one.text])));
  }
  return html`<div class="facets stack tight">
    ${Object.entries(names).map(([field, name]) => {
      const facet = facets.get(field);
      const values = valuesOf(field, facet, q, seen.current.get(field) ?? new Map());
      if (!values.length) return null;
      const used = values.some((one) => one.wanted || one.unwanted);
      return html`<${Facet}
        key=${field}
        field=${field}
        name=${name}
        values=${values}
        others=${facet?.others ?? 0}
        most=${Math.max(1, ...values.map((one) => one.jobs ?? 0))}
        exact=${survey?.exact}
        open=${used || !folded.includes(field)}
        onWant=${onWant}
        onExclude=${onExclude}
      />`;
    })}
  </div>`;
}

function Facet({ field, name, values, others, most, exact, open, onWant, onExclude }) {
  const row = (one) => {
    const shown = one.text ?? one.value;
    return html`<li key=${one.value} class=${cls('value', one.wanted && 'wanted', one.unwanted && 'unwanted')}>
      <button
        type="button"
        class="quiet small"
        aria-pressed=${String(one.wanted)}
        title=${one.text ? `${one.value}: ${one.text}` : one.value}
        onClick=${() => onWant(field, one.value)}
      >
        <i aria-hidden="true" class=${cls('share', field === 'state' && one.value)}>
          <i style=${{ width: `${(100 * (one.jobs ?? 0)) / most}%` }}></i>
        </i>
        <span class="clip">${shown}</span>
        <span class="num faint">${one.jobs === null ? '' : counted(one.jobs, exact)}</span>
      </button>
      <button
        type="button"
        class="quiet small not"
        aria-pressed=${String(one.unwanted)}
        aria-label=${`Leave out ${field} ${shown}`}
        title=${one.unwanted ? 'Let these in again' : 'Leave these out'}
        onClick=${() => onExclude(field, one.value)}
      >
        ≠
      </button>
    </li>`;
  };
  return html`<section>
    <details open=${open} class="facet">
    <summary>${name}</summary>
    <ul class="plain-list" aria-label=${name}>${values.slice(0, FIRST).map(row)}</ul>
    ${
      values.length > FIRST &&
      html`<details>
        <summary class="faint">${values.length - FIRST} more</summary>
        <ul class="plain-list" aria-label=${`More of ${name}`}>${values.slice(FIRST).map(row)}</ul>
      </details>`
    }
    ${others > 0 && html`<p class="faint hint">and ${others} rarer values</p>`}
    </details>
  </section>`;
}
