// What is, and was, done to many jobs at once.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { rate, span } from '../core/format.js';
import { useWords } from '../core/route.js';
import { Allowed, Badge, Empty, Head, Skeleton, Time, Trouble } from '../ui/base.js';
import { filterWords } from '../ui/filter-text.js';
import {
  isRunning,
  meant,
  nameOf,
  outcome,
  Progress,
  paceOf,
  Released,
  stateOf,
  stop,
  useOperations,
} from '../ui/operation.js';
import { Pages } from '../ui/paging.js';
import { Still, useStill } from '../ui/still.js';

const states = ['running', 'done', 'cancelled', 'failed'];
/** Running operations of a page whose released jobs are counted: each count is a reading of its own. */
const COUNTED = 5;

export default function Operations() {
  const [query, change] = useWords();
  const state = states.includes(query.get('state')) ? query.get('state') : '';
  const cursor = query.get('cursor') ?? '';
  const page = useOperations({ state, cursor, limit: 50 }, cursor ? 0 : 5000);
  // The newest one comes first, and a click must not hit another one.
  const still = useStill(page.data?.data ?? [], `${page.loading} ${state} ${cursor}`, false);
  const { rows } = still;
  const end = (operation) =>
    stop(operation, () => {
      still.free(operation);
      page.reload();
    });
  const counted = rows.filter((operation) => isRunning(operation) && operation.action === 'replay').slice(0, COUNTED);
  return html`
    <${Head}
      title="Operations"
      sub="Actions on many jobs at once. A runner carries them out in the background."
    />
    <nav class="tabs" aria-label="States">
      <a href="/operations" aria-current=${state ? undefined : 'page'}>All</a>
      ${states.map(
        (word) => html`
          <a
            key=${word}
            href=${url('/operations', { state: word })}
            aria-current=${word === state ? 'page' : undefined}
          >
            ${word}
          </a>
        `,
      )}
    </nav>
    ${page.error && html`<${Trouble} error=${page.error} retry=${page.reload} />`}
    <section class="panel" aria-label="Operations found">
      <${Still} still=${still} one="new operation">
        ${
          !page.data
            ? !page.error && html`<${Skeleton} />`
            : rows.length === 0
              ? html`<${None} state=${state} />`
              : html`<table class="cards dense">
                <thead>
                  <tr>
                    <th>State</th>
                    <th>Action</th>
                    <th>Jobs</th>
                    <th>Progress</th>
                    <th>Rate</th>
                    <th>Left</th>
                    <th class="optional">Requested by</th>
                    <th>When</th>
                    <${Allowed}>
                      <th><span class="hidden-visually">Actions</span></th>
                    </${Allowed}>
                  </tr>
                </thead>
                <tbody>
                  ${rows.map(
                    (operation) => html`<tr key=${operation.id} data-row>
                      <td data-label="State">
                        <${Badge}
                          is=${stateOf(operation)}
                          title=${operation.paused_at ? `by ${operation.paused_by}` : undefined}
                        />
                      </td>
                      <td data-label="Action">
                        <a class="bold nowrap" href=${`/operations/${operation.id}`}>${nameOf(operation.action)}</a>
                      </td>
                      <td data-label="Jobs" class="cause">
                        <span class="lines" title=${filterWords(meant(operation))}>
                          ${filterWords(meant(operation))}
                        </span>
                      </td>
                      <td data-label="Progress" class="pace">
                        ${
                          isRunning(operation)
                            ? html`<div class="stack tighter">
                              <${Progress} operation=${operation} />
                              ${counted.includes(operation) && html`<${Released} operation=${operation} quiet />`}
                            </div>`
                            : html`<span class="num">${outcome(operation)}</span>`
                        }
                      </td>
                      <td data-label="Rate" class="num nowrap" title=${paceOf(operation)}>
                        ${stateOf(operation) === 'paused' ? '–' : `${rate(operation.measured_rate)}/s`}
                      </td>
                      <td data-label="Left" class="num nowrap">
                        ${leftOf(operation)}
                      </td>
                      <td data-label="Requested by" class="who optional">
                        <span class="lines" title=${operation.asked_by}>${operation.asked_by}</span>
                      </td>
                      <td data-label="When"><${Time} at=${operation.created_at} /></td>
                      <${Allowed}>
                        <td>
                          ${
                            isRunning(operation) &&
                            html`<button type="button" class="small danger" onClick=${() => end(operation)}>
                              Stop
                            </button>`
                          }
                        </td>
                      </${Allowed}>
                    </tr>`,
                  )}
                </tbody>
              </table>`
        }
      </${Still}>
      <${Pages} cursor=${cursor} next=${page.data?.next_cursor} change=${change} />
    </section>
  `;
}

/** The time that is left. One that is paused makes no progress, so nothing is known of its time. */
const leftOf = (operation) =>
  stateOf(operation) === 'running' && operation.eta_s !== null ? span(operation.eta_s * 1000) : '–';

function None({ state }) {
  if (state)
    return html`<${Empty} title=${`None is ${state}`}><a href="/operations">Show all operations</a></${Empty}>`;
  return html`<${Empty} title="No operation yet">
    Select jobs in <a href="/jobs">the list of jobs</a>, or release a group of <a href="/dead-letters">dead letters</a>.
    Or over HTTP, at first without changing anything:
    <div>
      <pre>curl -X POST ${location.origin}/v1/operations -H 'Content-Type: application/json' \\
  -d '{"action": "retry", "filter": {"q": "${'state:failed finished:<2h'}"}, "rate": 50, "dry_run": true}'</pre>
    </div>
  </${Empty}>`;
}
