// A foldable view of a JSON value. What the schema of its kind calls sensitive is hidden until the operator asks.
import { html, useEffect, useState } from '../core/dom.js';
import { Exact, writeExact } from '../core/exact.js';
import { useQuery } from '../core/query.js';
import { Copy } from './base.js';

const MANY = 100;
const LONG = 400;
/** Characters of a text, and items of a list, that one press of a button adds. */
const MORE = 20000;
const MORE_ITEMS = 500;

/** Does the schema call this sensitive? `writeOnly`, `format: password` or `x-sensitive`. */
export const isSensitive = (schema) =>
  Boolean(schema && (schema.writeOnly || schema['x-sensitive'] || schema.format === 'password'));

function resolve(schema, root) {
  for (let depth = 0; schema?.$ref && depth < 8; depth += 1) {
    const extra = schema;
    schema = schema.$ref.startsWith('#/')
      ? schema.$ref
          .slice(2)
          .split('/')
          .reduce((at, part) => at?.[part.replaceAll('~1', '/').replaceAll('~0', '~')], root)
      : undefined;
    if (isSensitive(extra)) return { ...schema, writeOnly: true };
  }
  return schema;
}

/** The same through references and choices, as an optional field has them. */
function hides(schema, root) {
  const own = resolve(schema, root);
  return (
    isSensitive(own) ||
    [...(own?.anyOf || []), ...(own?.oneOf || []), ...(own?.allOf || [])].some((part) =>
      isSensitive(resolve(part, root)),
    )
  );
}

/** The schema of one field, through `anyOf` and the like. */
export function within(schema, name, root) {
  const own = resolve(schema, root);
  if (!own) return undefined;
  const here = Array.isArray(own.items) || typeof name !== 'number' ? own.properties?.[name] : own.items;
  if (here) return resolve(here, root);
  for (const part of [...(own.anyOf || []), ...(own.oneOf || []), ...(own.allOf || [])]) {
    const found = within(part, name, root);
    if (found) return found;
  }
  return typeof own.additionalProperties === 'object' && typeof name !== 'number'
    ? resolve(own.additionalProperties, root)
    : undefined;
}

// Without its schema, any field of a kind may be sensitive.
const COMING = { writeOnly: true };
const UNKNOWN = { writeOnly: true };
/** The kinds as this page read them last, so that the next job need not wait for them. */
let read = null;

/** The schema of a kind. As long as it is not there, and for a kind that the server does not know, it hides all. */
export function useSchema(kind) {
  const [failed, set] = useState(false);
  const kinds = useQuery('/v1/kinds', { every: failed ? 5000 : 0 });
  useEffect(() => set(Boolean(kinds.error) && !kinds.data), [kinds.data, kinds.error]);
  if (kinds.data) read = kinds.data.data;
  if (!read) return failed ? UNKNOWN : COMING;
  const known = read.find((one) => one.kind === kind);
  return known ? known.schema : UNKNOWN;
}

export function Json({ value, schema, label = 'value' }) {
  if (value === undefined) return null;
  const save = () => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([writeExact(value, 2)], { type: 'application/json' }));
    link.download = `${label}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  return html`<div class="json">
    <div class="row end tight">
      <${Copy} text=${writeExact(value, 2)} label=${`Copy the ${label}`} />
      <button type="button" class="quiet small" aria-label=${`Download the ${label}`} onClick=${save}>Download</button>
    </div>
    ${
      schema === UNKNOWN &&
      html`<p class="faint">Hidden, because this server does not say which fields of the kind are sensitive.</p>`
    }
    <div class="tree-of" tabindex="0" role="region" aria-label=${label}>
      <${Node} value=${value} schema=${schema} root=${schema} depth=${0} />
    </div>
  </div>`;
}

function Node({ name, value, schema, root, depth }) {
  const [shown, show] = useState(false);
  const [most, showMost] = useState(MANY);
  const [open, setOpen] = useState(depth < 2);
  const key = name === undefined ? null : html`<span class="name">${name}</span>: `;
  if (hides(schema, root) && value !== null && !shown) {
    return html`<div class="leaf">
      ${key}<span class="faint">hidden</span>${' '}
      <button type="button" class="quiet small" onClick=${() => show(true)} aria-label=${`Show ${name ?? 'the value'}`}>
        show
      </button>
    </div>`;
  }
  if (value === null || typeof value !== 'object' || value instanceof Exact)
    return html`<div class="leaf">${key}<${Leaf} value=${value} /></div>`;
  const list = Array.isArray(value);
  const entries = list ? value.map((item, i) => [i, item]) : Object.entries(value);
  const size = entries.length;
  if (size === 0) return html`<div class="leaf">${key}${list ? '[]' : '{}'}</div>`;
  const cut = entries.slice(0, most);
  return html`
    <details
      open=${open}
      onToggle=${(event) => {
        event.stopPropagation();
        if (event.target === event.currentTarget) setOpen(event.currentTarget.open);
      }}
    >
      <summary>${key}<span class="faint">${list ? `[${size}]` : `{${size}}`}</span></summary>
      ${
        open &&
        html`<div class="inner">
          ${cut.map(
            ([k, v]) => html`
              <${Node}
                key=${k}
                name=${k}
                value=${v}
                schema=${within(schema, k, root)}
                root=${root}
                depth=${depth + 1}
              />
            `,
          )}
          ${
            size > cut.length &&
            html`<button type="button" class="quiet small" onClick=${() => showMost(most + MORE_ITEMS)}>
              ${size - cut.length} more
            </button>`
          }
        </div>`
      }
    </details>
  `;
}

function Leaf({ value }) {
  const [most, show] = useState(LONG);
  if (typeof value === 'string') {
    const long = value.length > most;
    return html`
      <span class="text">${JSON.stringify(long ? value.slice(0, most) : value)}</span>
      ${
        long &&
        html`
          ${' '}
          <button type="button" class="quiet small" onClick=${() => show(most + MORE)}>
            ${value.length - most} characters more
          </button>
        `
      }
    `;
  }
  if (typeof value === 'number' || value instanceof Exact)
    return html`<span class="figure-value num">${String(value)}</span>`;
  return html`<span class="word">${String(value)}</span>`;
}
