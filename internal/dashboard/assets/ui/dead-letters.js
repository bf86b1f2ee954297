// Dead letters one by one.

import { seg, url } from '../core/api.js';
import { html, useEffect, useRef } from '../core/dom.js';
import { useQuery } from '../core/query.js';
import { Empty, JobLink, Skeleton, Time, Trouble } from './base.js';
import { Pages } from './paging.js';
import { Still, useStill } from './still.js';

const PAGE = 50;
export const statuses = ['open', 'replayed', 'discarded'];

/** Does an event tell of a job that may have failed for good? */
export const failed = (event) =>
  event.type === 'reaped' || (event.type === 'settled' && event.data.includes('"failed"'));

const none = {
  open: ['None is open', 'What failed here was replayed or discarded, or nothing has failed yet.'],
  replayed: [
    'None was replayed',
    'A replay makes a new job of a failed one. The failed one stays here, and each names the other.',
  ],
  discarded: [
    'None was discarded',
    'A discard puts failed jobs away that will not run again, with a reason. A retry takes one back.',
  ],
};

/** Reads once more when what was under way is over. */
export function useSettled(busy, reload) {
  const was = useRef(busy);
  useEffect(() => {
    if (was.current && !busy) reload();
    was.current = busy;
  }, [busy]);
}

/** The dead letters of one status: of a kind, of a group, or all. `change` moves the cursor in the address. */
export function DeadLetters({ status, kind, fingerprint, cursor, change, busy = false }) {
  const page = useQuery(url('/v1/dead-letters', { status, kind, fingerprint, limit: PAGE, cursor }), {
    on: !cursor && status === 'open' && failed,
    every: cursor ? 0 : busy ? 3000 : 15000,
    pace: 2000,
  });
  useSettled(busy, page.reload);
  // The job that failed last comes first, and a click must not hit another one.
  const listing = [page.loading, status, kind, fingerprint, cursor].join(' ');
  const still = useStill(page.data?.data ?? [], listing, false, { mixed: true });
  const { rows } = still;
  const alone = Boolean(fingerprint);
  if (!page.data)
    return page.error ? html`<${Trouble} error=${page.error} retry=${page.reload} />` : html`<${Skeleton} />`;
  return html`
    <${Trouble} error=${page.error} retry=${page.reload} />
    <${Still} still=${still} one="new dead letter">
      ${
        rows.length === 0
          ? html`<${Empty} title=${none[status][0]}>${none[status][1]}</${Empty}>`
          : html`<table class="cards dense">
            <thead>
              <tr>
                <th>Job</th>
                ${!alone && html`<th>Kind</th><th>Error</th>`}
                <th class="optional">Queue</th>
                <th class="right optional">Attempts</th>
                <th>Failed</th>
                ${status === 'open' && alone && html`<th>Error</th>`}
                ${
                  status !== 'open' &&
                  html`
                    <th>${status === 'replayed' ? 'Replayed' : 'Discarded'}</th>
                    <th>By</th>
                    <th>${status === 'replayed' ? 'As' : 'Reason'}</th>
                  `
                }
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                (job) => html`<tr key=${job.id} data-row>
                  <td data-label="Job"><${JobLink} id=${job.id} /></td>
                  ${
                    !alone &&
                    html`
                      <td data-label="Kind"><span class="bold">${job.kind}</span></td>
                      <td data-label="Error" class="cause">
                        <a class="lines" href=${`/dead-letters/${job.dead_letter.fingerprint}`} title=${job.last_error}>
                          ${job.last_error}
                        </a>
                      </td>
                    `
                  }
                  <td data-label="Queue" class="optional"><a href=${`/queues/${seg(job.queue)}`}>${job.queue}</a></td>
                  <td data-label="Attempts" class="right num optional">${job.attempt} / ${job.max_attempts}</td>
                  <td data-label="Failed"><${Time} at=${job.dead_letter.failed_at} /></td>
                  ${
                    status === 'open' &&
                    alone &&
                    html`<td data-label="Error" class="cause">
                      <span class="lines" title=${job.last_error}>${job.last_error}</span>
                    </td>`
                  }
                  ${
                    status !== 'open' &&
                    html`
                      <td data-label=${status === 'replayed' ? 'Replayed' : 'Discarded'}>
                        <${Time} at=${job.dead_letter.since} />
                      </td>
                      <td data-label="By" class="who"><span class="lines">${job.dead_letter.by ?? '–'}</span></td>
                      <td data-label=${status === 'replayed' ? 'As' : 'Reason'} class="who">
                        ${
                          status === 'replayed'
                            ? html`<${JobLink} id=${job.dead_letter.replayed_as} />`
                            : html`<span class="lines" title=${job.dead_letter.reason}>${job.dead_letter.reason}</span>`
                        }
                      </td>
                    `
                  }
                </tr>`,
              )}
            </tbody>
          </table>`
      }
    </${Still}>
    <${Pages} cursor=${cursor} next=${page.data.next_cursor} change=${change} />
  `;
}
