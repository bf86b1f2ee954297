// What operators did: who, when, to what.

import { seg, url } from '../core/api.js';
import { html, useEffect, useState } from '../core/dom.js';
import { plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { actionWords, told } from '../ui/acts.js';
import { Clock, Empty, Head, JobLink, Skeleton, Trouble } from '../ui/base.js';
import { Json } from '../ui/json.js';
import { Pages } from '../ui/paging.js';

const places = {
  job: (target) => `/jobs/${seg(target)}`,
  operation: (target) => `/operations/${seg(target)}`,
  queue: (target) => `/queues/${seg(target)}`,
  limit: (target) => `/limits/${seg(target)}`,
  schedule: (target) => `/schedules/${seg(target)}`,
  runner: () => '/runners',
  api_key: () => '/api-keys',
  index: () => '/index',
  outbox: () => '/outbox',
  batch: (target) => `/batches/${seg(target)}`,
};
const nounOf = (act) => act.action.split('.')[0];

/** What one operation did to many jobs stands in one row of a page, where the last of it was. */
function fold(acts) {
  const rows = new Map();
  for (const act of acts) {
    const operation = act.detail?.operation;
    const key = operation ? `${operation} ${act.action}` : act.id;
    if (rows.has(key)) rows.get(key).acts.push(act);
    else rows.set(key, { key, operation, acts: [act] });
  }
  return [...rows.values()];
}

export default function Audit() {
  const [query, change] = useWords();
  const target = query.get('target') ?? '';
  const cursor = query.get('cursor') ?? '';
  const [text, setText] = useState(target);
  useEffect(() => setText(target), [target]);
  const page = useQuery(url('/v1/audit', { target, cursor, limit: 200 }), { every: cursor ? 0 : 5000 });
  const rows = fold(page.data?.data ?? []);
  // An operation on many jobs may go on on the next page, or have begun on the one before.
  const more = Boolean(cursor || page.data?.next_cursor);
  const find = (event) => {
    event.preventDefault();
    change({ target: text.trim(), cursor: null }, { replace: false });
  };
  return html`
    <${Head}
      title="Audit"
      sub="What operators did, newest first, in local time. It is kept as long as its retention says."
    />
    <form class="row" role="search" aria-label="Audit" onSubmit=${find}>
      <label for="target">Filter by target</label>
      <input
        id="target"
        class="grow"
        maxlength="255"
        autocomplete="off"
        spellcheck=${false}
        value=${text}
        placeholder="Id of a job, batch or operation, or name of a queue, limit, schedule or key"
        onInput=${(event) => setText(event.target.value)}
      />
      <button type="submit">Find</button>
      ${
        target &&
        html`
          <button
            type="button"
            class="quiet"
            onClick=${() => change({ target: null, cursor: null }, { replace: false })}
          >
            All
          </button>
        `
      }
    </form>
    ${page.error && html`<${Trouble} error=${page.error} retry=${page.reload} />`}
    <section class="panel" aria-label="Actions found">
      ${
        !page.data
          ? !page.error && html`<${Skeleton} />`
          : rows.length === 0
            ? html`<${None} target=${target} />`
            : html`<table class="cards dense">
              <thead>
                <tr>
                  <th>When</th>
                  <th>Who</th>
                  <th>Action</th>
                  <th>Target</th>
                  <th>Details</th>
                </tr>
              </thead>
              <tbody>${rows.map((row) => html`<${Row} key=${row.key} row=${row} more=${more} />`)}</tbody>
            </table>`
      }
      <${Pages} cursor=${cursor} next=${page.data?.next_cursor} change=${change} />
    </section>
  `;
}

function Row({ row: { acts, operation }, more }) {
  const act = acts[0];
  const many = acts.length > 1;
  return html`<tr data-row>
    <td data-label="When"><${Clock} at=${act.at} /></td>
    <td data-label="Who" class="who"><span class="lines" title=${act.actor}>${act.actor}</span></td>
    <td data-label="Action">
      <span>
        <span class="bold nowrap">${actionWords(act.action)}</span>${' '}
        ${actionWords(act.action) !== act.action && html`<span class="faint mono">${act.action}</span>`}
      </span>
    </td>
    <td data-label="Target">
      ${
        many
          ? html`<details>
            <summary class="nowrap">${plural(acts.length, 'job')}${more && ' on this page'}</summary>
            <div class="row">${acts.map((one) => html`<${Target} key=${one.id} act=${one} />`)}</div>
          </details>`
          : html`<${Target} act=${act} />`
      }
    </td>
    <td data-label="Details" class="cause"><${Detail} detail=${act.detail} operation=${operation} /></td>
  </tr>`;
}

export function Target({ act }) {
  if (nounOf(act) === 'job') return html`<${JobLink} id=${act.target} />`;
  const place = places[nounOf(act)]?.(act.target);
  return place
    ? html`<a class="mono lines" href=${place} title=${act.target}>${act.target}</a>`
    : html`<span class="mono lines" title=${act.target}>${act.target}</span>`;
}

export function Detail({ detail, operation }) {
  if (operation)
    return html`<span>
      by the operation${' '}
      <a class="mono" href=${`/operations/${seg(operation)}`} title=${operation}>…${String(operation).slice(-8)}</a>
    </span>`;
  if (!detail || Object.keys(detail).length === 0) return html`<span class="faint">–</span>`;
  const { reason, replayed_as: made, ...rest } = detail;
  const more = Object.keys(rest).length > 0 || String(reason ?? '').length > 100;
  return html`<div class="stack tighter">
    ${typeof reason === 'string' && reason && html`<span class="lines" title=${reason}>${reason}</span>`}
    ${typeof made === 'string' && html`<span>as <${JobLink} id=${made} /></span>`}
    ${
      more &&
      html`<details>
        <summary class="soft">${said(rest) || 'In full'}</summary>
        <${Json} value=${detail} label="details" />
      </details>`
    }
  </div>`;
}

/** The beginning of the details, for a glance. */
const said = (detail) => {
  const text = told(detail);
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
};

function None({ target }) {
  if (target)
    return html`<${Empty} title="Nothing was done to it">
      The whole id or name is needed, as it is written there. <a href="/audit">Show all</a>
    </${Empty}>`;
  return html`<${Empty} title="No action of an operator yet">
    Whatever changes a job, a queue, a limit, a schedule, an API key or a runner by hand is written down here with who
    asked. To say for whom a program asks:
    <div>
      <pre>curl -X POST ${location.origin}/v1/queues/default/pause -H 'Tickr-Actor: nora' \\
  -H 'Content-Type: application/json' -d '{"reason": "the mail server is down"}'</pre>
    </div>
  </${Empty}>`;
}
