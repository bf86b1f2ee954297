// The order keys that have jobs: which job is at the head of each, and how many wait behind it.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { count } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { Badge, Empty, Head, JobLink, Segment, Skeleton, Time, Trouble } from '../ui/base.js';
import { quoted } from '../ui/filter.js';
import { KeyPages } from '../ui/paging.js';

const happens = ['accepted', 'started', 'settled', 'cancelled', 'reaped'];
/** The API counts no further. */
const MAX_COUNTED = 10000;

const jobsOf = (key, state) =>
  url('/jobs', { q: [`order:${quoted(key)}`, state && `state:${state}`].filter(Boolean).join(' ') });

export default function OrderKeys() {
  const [query, change] = useWords();
  const blocked = query.get('blocked') ? 'true' : '';
  const after = query.get('after') ?? '';
  const keys = useQuery(url('/v1/order-keys', { after, blocked }), { on: happens, every: 5000, pace: 1000 });
  const rows = keys.data?.data ?? [];
  const show = (word) => change({ blocked: word === 'blocked' ? 1 : null, after: null });
  return html`
    <${Head}
      title="Order keys"
      sub="Jobs with the same order key run one at a time, in the order in which they were accepted."
    >
      <${Segment}
        label="Which order keys"
        of=${[['all', 'With jobs'], ['blocked', 'Behind a failed job']]}
        is=${blocked ? 'blocked' : 'all'}
        on=${show}
      />
    </${Head}>
    <${Trouble} error=${keys.error} retry=${keys.reload} />
    ${!keys.data && !keys.error && html`<${Skeleton} />`}
    ${
      keys.data &&
      html`<section class="panel scroll" aria-label="Order keys found">
        ${
          rows.length === 0
            ? html`<${None} blocked=${blocked} more=${after || keys.data.next} />`
            : html`<table class="cards">
              <thead>
                <tr>
                  <th>Order key</th>
                  <th>Job at the head</th>
                  <th>State</th>
                  <th>Since</th>
                  <th class="right">Behind it</th>
                  <th>Due since</th>
                </tr>
              </thead>
              <tbody>${rows.map((row) => html`<${Row} key=${row.key} row=${row} />`)}</tbody>
            </table>`
        }
        <${KeyPages} after=${after} next=${keys.data.next} change=${change} />
      </section>`
    }
  `;
}

const Row = ({ row: { key, head, waiting, waiting_since: since } }) => html`<tr data-row>
  <td data-label="Order key">
    <a class="mono lines" title=${key} href=${jobsOf(key)}>${key}</a>
  </td>
  <td data-label="Job at the head">
    <div><${JobLink} id=${head.id} /> <span class="clip slim faint" title=${head.kind}>${head.kind}</span></div>
  </td>
  <td data-label="State"><${Badge} is=${head.state} /></td>
  <td data-label="Since"><${Time} at=${head.since} /></td>
  <td data-label="Behind it" class="right num">
    ${
      waiting === 0
        ? html`<span class="faint">0</span>`
        : html`<a href=${jobsOf(key, 'waiting')}>${count(waiting, waiting >= MAX_COUNTED)}</a>`
    }
  </td>
  <td data-label="Due since"><${Time} at=${since} /></td>
</tr>`;

const None = ({ blocked, more }) => {
  const title = more ? 'No order key on this page' : blocked ? 'No order key is held up' : 'No order key has jobs';
  return html`<${Empty} title=${title}>
    ${
      blocked
        ? 'A job that failed for good holds up the jobs behind it until an operator retries, replays or discards it.'
        : 'A job names its order key when it is enqueued, as order_key. A key is listed while it has unfinished jobs.'
    }
  </${Empty}>`;
};
