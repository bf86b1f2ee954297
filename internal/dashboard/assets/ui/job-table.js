// The list of jobs in the explorer, with the columns that the user chose.

import { seg, url } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { span } from '../core/format.js';
import { rangeIn } from '../core/range.js';
import { place } from '../core/route.js';
import { withWord } from '../core/words.js';
import { Badge, Time } from './base.js';

/** The end of a job, or when it is due. */
const moment = (job) => job.finished_at ?? (job.state === 'executing' ? job.started_at : job.execute_at);
const took = (job) =>
  job.started_at && job.finished_at ? span(Date.parse(job.finished_at) - Date.parse(job.started_at)) : '–';

/** Columns by their names: the heading, whether it is always there, and whether a phone has no room for it (`wide`). */
export const columns = {
  state: { name: 'State', always: true },
  kind: { name: 'Kind', always: true },
  job: { name: 'Job', always: true },
  queue: { name: 'Queue', wide: true },
  attempt: { name: 'Attempt', wide: true, right: true },
  when: { name: 'When' },
  about: { name: 'About' },
  accepted: { name: 'Accepted', wide: true },
  took: { name: 'Took', wide: true, right: true },
  tags: { name: 'Tags', wide: true },
  keys: { name: 'Keys', wide: true },
};
/** Columns of a browser that has not chosen yet. */
export const usual = ['queue', 'attempt', 'when', 'about'];

const cells = {
  state: (job, q) =>
    html`<a
      href=${url('/jobs', { q: withWord(q, 'state', job.state), ...rangeIn(place.get().query) })}
      tabindex="-1"
    >
      <${Badge} is=${job.state} />
    </a>`,
  kind: (job) => html`<span class="clip bold" title=${job.kind}>${job.kind}</span>`,
  job: (job, _, to) =>
    html`<a class="mono nowrap" data-open href=${to(job.id)} title=${job.id}>…${job.id.slice(-8)}</a>`,
  queue: (job) => html`
    <a href=${`/queues/${seg(job.queue)}`}>${job.queue}</a>
    ${job.priority !== 5 && html` <span class="faint" title="Priority: 0 runs first, 9 last">p${job.priority}</span>`}
  `,
  attempt: (job) => `${job.attempt} / ${job.max_attempts}`,
  when: (job) => html`<${Time} at=${moment(job)} />`,
  about: (job) => html`<${About} job=${job} />`,
  accepted: (job) => html`<${Time} at=${job.created_at} />`,
  took,
  tags: (job) => html`<${Tags} of=${job.tags ?? []} />`,
  keys: (job) => html`<${Tags} of=${[job.unique_key, job.order_key, job.limit_key].filter(Boolean)} />`,
};

/** Keys and tags of a job. A tenant is often both, and is shown once. */
const Tags = ({ of }) =>
  of.length
    ? html`<span class="clip" title=${[...new Set(of)].join(' ')}>
      ${[...new Set(of)].slice(0, 4).map((word) => html`<span class="tag" key=${word}>${word}</span> `)}
    </span>`
    : html`<span class="faint">–</span>`;

function About({ job }) {
  if (job.state === 'executing' && job.progress)
    return html`<span class="clip" title=${job.progress.note ?? ''}>
      ${Math.round(job.progress.percent)} % ${job.progress.note ?? ''}
    </span>`;
  if (job.last_error && job.state !== 'completed')
    return html`<span class=${cls('clip', job.state !== 'cancelled' && 'bad')} title=${job.last_error}>
      ${job.last_error}
    </span>`;
  if (job.schedule)
    return html`<span class="clip">
      by <a href=${`/schedules/${seg(job.schedule.name)}`}>${job.schedule.name}</a>
    </span>`;
  return html`<${Tags} of=${[job.unique_key, job.order_key, job.limit_key, ...(job.tags ?? [])].filter(Boolean)} />`;
}

/**
 * `chosen` has the ids of selected jobs, or is null for a user who may not act on jobs. `current` is the job that
 * stands beside the list; `to` makes the address that opens one, and `open` opens it.
 */
export function JobTable({ rows, q, shown, dense, chosen, all, toggle, toggleAll, hold, current, to, open }) {
  const names = Object.keys(columns).filter((name) => columns[name].always || shown.includes(name));
  const every = chosen && rows.length > 0 && rows.every((job) => chosen.has(job.id));
  return html`<table class=${cls('jobs', dense && 'close')}>
    <thead>
      <tr>
        ${
          chosen &&
          html`<th class="pick">
            <input type="checkbox" checked=${every} aria-label="Select all of this page" onChange=${toggleAll} />
          </th>`
        }
        ${names.map(
          (name) =>
            html`<th key=${name} class=${cls(`c-${name}`, columns[name].right && 'right')}>${columns[name].name}</th>`,
        )}
      </tr>
    </thead>
    <tbody ...${hold}>
      ${rows.map(
        (job) => html`<tr
          key=${job.id}
          data-row
          data-id=${job.id}
          data-current=${job.id === current || undefined}
          onClick=${(event) => {
            if (event.target.closest('a, button, input, label') || String(getSelection())) return;
            open(job.id);
          }}
        >
          ${
            chosen &&
            html`<td class="pick">
              <input
                type="checkbox"
                checked=${all || chosen.has(job.id)}
                aria-label=${`Select the job ${job.id}`}
                onChange=${() => toggle(job.id)}
              />
            </td>`
          }
          ${names.map(
            (name) => html`<td
              key=${name}
              data-label=${columns[name].name}
              class=${cls(`c-${name}`, columns[name].right && 'right num')}
            >
              ${cells[name](job, q, to)}
            </td>`,
          )}
        </tr>`,
      )}
    </tbody>
  </table>`;
}
