// The batches: which there are, and how far each of them is.

import { url } from '../core/api.js';
import { html, useEffect, useState } from '../core/dom.js';
import { count } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { Badge, Empty, Head, Segment, Skeleton, Time, Trouble } from '../ui/base.js';
import { BatchLink, isOver, jobsOf, Progress } from '../ui/batches.js';
import { Pages } from '../ui/paging.js';

export default function Batches() {
  const [query, change] = useWords();
  const cursor = query.get('cursor') ?? '';
  const unfinished = query.get('unfinished') ? 'true' : '';
  const page = useBatches({ unfinished, cursor, limit: 50 });
  const rows = page.data?.data ?? [];
  return html`
    <${Head}
      title="Batches"
      sub="Jobs that belong together. A batch counts their ends, and enqueues its callbacks after them."
    >
      <${Segment}
        label="Which batches"
        of=${[['all', 'All'], ['unfinished', 'Unfinished only']]}
        is=${unfinished ? 'unfinished' : 'all'}
        on=${(word) => change({ unfinished: word === 'unfinished' ? 1 : null, cursor: null })}
      />
    </${Head}>
    <${Trouble} error=${page.error} retry=${page.reload} />
    ${!page.data && !page.error && html`<${Skeleton} />`}
    ${
      page.data &&
      html`<section class="panel scroll" aria-label="Batches found">
        ${
          rows.length === 0
            ? html`<${None} unfinished=${unfinished} more=${cursor} />`
            : html`<table class="cards dense">
              <thead>
                <tr>
                  <th>State</th>
                  <th>Batch</th>
                  <th>Progress</th>
                  <th class="right">Completed</th>
                  <th class="right">Failed</th>
                  <th class="right">Cancelled</th>
                  <th class="right">Unfinished</th>
                  <th>Created</th>
                </tr>
              </thead>
              <tbody>${rows.map((batch) => html`<${Row} key=${batch.id} batch=${batch} />`)}</tbody>
            </table>`
        }
        <${Pages} cursor=${cursor} next=${page.data.next_cursor} change=${change} />
      </section>`
    }
  `;
}

/** A page of batches, read more often while one of them has unfinished jobs. */
function useBatches(query) {
  const [busy, set] = useState(false);
  const found = useQuery(url('/v1/batches', query), { on: ['accepted'], every: busy ? 1500 : 5000, pace: 1500 });
  useEffect(() => set(Boolean(found.data?.data.some((batch) => !isOver(batch)))), [found.data]);
  return found;
}

const Row = ({ batch }) => html`<tr data-row>
  <td data-label="State"><${Badge} is=${batch.state} /></td>
  <td data-label="Batch" class="cause">
    <div>
      <span class="lines bold"><${BatchLink} batch=${batch} /></span>
      ${
        batch.parent &&
        html`<span class="faint">
          in <a class="mono" href=${`/batches/${batch.parent}`} title=${batch.parent}>…${batch.parent.slice(-8)}</a>
        </span>`
      }
    </div>
  </td>
  <td data-label="Progress" class="pace"><${Progress} batch=${batch} /></td>
  <td data-label="Completed" class="right num"><${Count} of=${batch} end="completed" /></td>
  <td data-label="Failed" class="right num"><${Count} of=${batch} end="failed" /></td>
  <td data-label="Cancelled" class="right num"><${Count} of=${batch} end="cancelled" /></td>
  <td data-label="Unfinished" class="right num">${count(batch.pending)}</td>
  <td data-label="Created"><${Time} at=${batch.created_at} /></td>
</tr>`;

const Count = ({ of, end }) =>
  of[end] === 0
    ? html`<span class="faint">0</span>`
    : html`<a class=${end === 'failed' && 'bad'} href=${jobsOf(of.id, end)}>${count(of[end])}</a>`;

function None({ unfinished, more }) {
  if (more) return html`<${Empty} title="No batch on this page"><a href="/batches">The newest batches</a></${Empty}>`;
  if (unfinished)
    return html`<${Empty} title="No batch is unfinished"><a href="/batches">Show all batches</a></${Empty}>`;
  return html`<${Empty} title="No batch yet">
    A program creates one over HTTP, with jobs or without; more jobs are added by their field <code>batch</code>:
    <div>
      <pre>curl -X POST ${location.origin}/v1/batches -H 'Content-Type: application/json' \\
  -d '{"name": "nightly invoices", "jobs": [{"kind": "http", "payload": {"url": "…"}}], "close": true}'</pre>
    </div>
  </${Empty}>`;
}
