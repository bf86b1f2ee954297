// Views of the explorer that this browser keeps. A view is a link.

import { html } from '../core/dom.js';
import { useKept } from '../core/kept.js';
import { ask, InputField } from './dialog.js';
import { Drop } from './drop.js';

/** Most views. */
const MANY = 30;
const given = [
  ['Running now', '/jobs?q=state%3Aexecuting'],
  ['Open dead letters', '/jobs?q=dead_letter%3Aopen'],
  ['Failed in the last 24 hours', '/jobs?q=state%3Afailed&span=24h'],
  ['Used more than one attempt', '/jobs?q=attempt%3A%3E1'],
  ['Due and not started', '/jobs?q=state%3Awaiting+due%3A%3C0s'],
];

/** The address without what belongs to a moment: the page of the listing and the job beside it. */
export function viewOf(address) {
  const view = new URL(address, location.origin);
  for (const word of ['cursor', 'job']) view.searchParams.delete(word);
  return view.pathname + view.search;
}

export function Views({ here }) {
  const [views, keep] = useKept('views', []);
  const to = viewOf(here);
  const save = () =>
    ask({
      title: 'Save this view',
      action: 'Save',
      values: { name: '' },
      ready: (values) => values.name.trim(),
      body: ({ values, set }) => html`
        <p>The filter, the range of time and the order are kept in this browser under a name.</p>
        <${InputField} label="Name" id="view-name" name="name" maxlength="60" required values=${values} set=${set} />
      `,
      submit: ({ name }) => {
        const others = (all) => all.filter((view) => view.name !== name.trim());
        keep((all) => [...others(all), { name: name.trim(), to }].slice(-MANY));
        return true;
      },
    });
  return html`<${Drop} label="Views" id="views" end>
      <ul class="plain-list" aria-label="Saved views">
        ${views.map(
          (view) => html`<li key=${view.name} class="row item">
            <a class="grow wrap" href=${view.to} aria-current=${view.to === to ? 'page' : undefined}>${view.name}</a>
            <button
              type="button"
              class="quiet small"
              aria-label=${`Remove the view ${view.name}`}
              onClick=${() => keep((all) => all.filter((one) => one.name !== view.name))}
            >
              ✕
            </button>
          </li>`,
        )}
        ${given.map(([name, address]) => html`<li key=${address}><a class="soft" href=${address}>${name}</a></li>`)}
      </ul>
      <button type="button" class="small" onClick=${save}>Save this view…</button>
  </${Drop}>`;
}
