// The outbox: jobs that other programs request in their own transactions, and the rows that cannot become jobs.

import { call, post, seg, url } from '../core/api.js';
import { html } from '../core/dom.js';
import { count } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { Allowed, Empty, Head, Panel, Skeleton, Time, Trouble, tell } from '../ui/base.js';
import { confirm } from '../ui/dialog.js';
import { Pages } from '../ui/paging.js';
import { Still, useStill } from '../ui/still.js';

/** The API counts no further. */
const MAX_COUNTED = 10000;

export default function Outbox() {
  const [query, change] = useWords();
  const cursor = query.get('cursor') ?? '';
  const state = useQuery('/v1/outbox', { on: ['accepted'], every: 5000, pace: 1000 });
  const page = useQuery(url('/v1/outbox/rejected', { cursor, limit: 50 }), { every: cursor ? 0 : 5000 });
  // The row that was rejected last comes first, and a click must not hit another one.
  const still = useStill(page.data?.data ?? [], `${page.loading} ${cursor}`, false, { mixed: true });
  const { rows } = still;
  const again = () => {
    state.reload();
    page.reload();
  };
  const done = (row) => {
    still.free(row);
    again();
  };
  return html`
    <${Head}
      title="Outbox"
      sub="Jobs that other programs request with an INSERT into tickr_outbox, in their own transactions."
    />
    <${Trouble} error=${state.error ?? page.error} retry=${again} />
    ${state.data && html`<${State} of=${state.data} />`}
    ${state.data?.sources.length > 0 && html`<${Sources} of=${state.data.sources} />`}
    ${!page.data && !page.error && html`<${Skeleton} />`}
    ${
      page.data &&
      html`<section class="panel scroll" aria-label="Rejected rows found">
        <${Still} still=${still} one="new row">
          ${
            rows.length === 0
              ? html`<${Empty} title="No row is rejected">
                A row that cannot become a job, because its kind is unknown or its payload does not fit, is kept here
                with the reason.
              </${Empty}>`
              : html`<table class="cards">
                <thead>
                  <tr>
                    <th>Row</th>
                    <th>Kind</th>
                    <th>Rejected</th>
                    <th>Reason</th>
                    <th></th>
                  </tr>
                </thead>
                <tbody>
                  ${rows.map((row) => html`<${Row} key=${row.id} row=${row} done=${() => done(row)} />`)}
                </tbody>
              </table>`
          }
        </${Still}>
        <${Pages} cursor=${cursor} next=${page.data.next_cursor} change=${change} />
      </section>`
    }
  `;
}

const State = ({ of }) => html`<${Panel} title="Waiting rows">
  <div>
    ${
      of.waiting === 0
        ? 'No row waits.'
        : html`${count(of.waiting, of.waiting >= MAX_COUNTED)} ${of.waiting === 1 ? 'row waits' : 'rows wait'}, the
            oldest since <${Time} at=${of.oldest_at} />.`
    }
  </div>
  <div class="soft">
    ${
      of.leader
        ? html`The runner <span class="mono">${of.leader}</span> looks for new ones.`
        : 'Nothing was inserted for a while, so no runner looks all the time.'
    }
  </div>
</${Panel}>`;

/** Outboxes in databases of applications. */
const Sources = ({ of }) => html`<section class="panel scroll" aria-label="Outboxes of applications">
  <table class="cards">
    <thead>
      <tr>
        <th>Source</th>
        <th>Waiting</th>
        <th>Copied by</th>
        <th>State</th>
      </tr>
    </thead>
    <tbody>${of.map((source) => html`<${Source} key=${source.name} of=${source} />`)}</tbody>
  </table>
</section>`;

const Source = ({ of }) => html`<tr>
  <td data-label="Source"><span class="mono lines">${of.name}</span></td>
  <td data-label="Waiting">
    ${count(of.waiting, of.waiting >= MAX_COUNTED)}
    ${of.oldest_at && html`<span class="soft"> since <${Time} at=${of.oldest_at} /></span>`}
  </td>
  <td data-label="Copied by"><span class="mono lines">${of.leader ?? '–'}</span></td>
  <td data-label="State" class="cause">
    ${
      of.error
        ? html`<div class="stack tighter">
            <span>Cannot be read since <${Time} at=${of.failing_since} /></span>
            <span class="lines soft">${of.error}</span>
          </div>`
        : of.up
          ? 'Its rows are copied'
          : 'No runner copies its rows'
    }
  </td>
</tr>`;

function Row({ row, done }) {
  const path = `/v1/outbox/rejected/${seg(row.id)}`;
  const about = html`<b class="mono">${row.kind}</b> <span class="mono">${row.id}</span>: ${row.reason}`;
  const replay = () =>
    confirm(
      'Replay this row?',
      'It goes back into the outbox. A job is made of it, unless it is rejected for the same reason again.',
      'Replay it',
      async () => {
        await post(`${path}/replay`, {});
        tell('The row is in the outbox again');
        done();
        return true;
      },
      { about },
    );
  const discard = () =>
    confirm(
      'Discard this row?',
      'No job is made of it. The audit keeps its id.',
      'Discard it',
      async () => {
        await call('DELETE', path);
        tell('The row is gone');
        done();
        return true;
      },
      { danger: true, about },
    );
  return html`<tr data-row>
    <td data-label="Row"><span class="mono lines" title=${row.id}>…${row.id.slice(-8)}</span></td>
    <td data-label="Kind">
      <span class="mono lines" title=${row.kind}>${row.kind}</span>
      ${row.source && html`<div class="soft">from <span class="mono lines">${row.source}</span></div>`}
    </td>
    <td data-label="Rejected"><${Time} at=${row.rejected_at} /></td>
    <td data-label="Reason" class="cause">
      <div class="stack tighter">
        <span class="lines">${row.reason}</span>
        <details>
          <summary class="faint">Payload${row.options ? ' and options' : ''}</summary>
          <pre class="wrap">${row.payload}</pre>
          ${row.options && html`<pre class="wrap">${row.options}</pre>`}
        </details>
      </div>
    </td>
    <td>
      <${Allowed}>
        <div class="row">
          <button type="button" class="small" onClick=${replay}>Replay</button>
          <button type="button" class="small quiet" onClick=${discard}>Discard</button>
        </div>
      </${Allowed}>
    </td>
  </tr>`;
}
