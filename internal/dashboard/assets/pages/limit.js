// One limit by key: what it allows, and its keys that have jobs.

import { call, seg, url } from '../core/api.js';
import { html, useState } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { go, useWords } from '../core/route.js';
import { Acts } from '../ui/acts.js';
import { Allowed, Copy, Empty, Head, Panel, Skeleton, Time, Trouble, tell, useMay } from '../ui/base.js';
import { confirm } from '../ui/dialog.js';
import { quoted } from '../ui/filter.js';
import { allowance, breakerText, each, keyWord, LimitForm, RateOf, readTagged, remove, shares } from '../ui/limits.js';
import { KeyPages } from '../ui/paging.js';

const happens = ['accepted', 'started', 'settled', 'cancelled', 'reaped'];
/** The API counts no further. */
const MAX_COUNTED = 10000;
const OVERRIDES = 20;

export default function LimitPage({ params: [name] }) {
  const [query, change] = useWords();
  const admin = useMay('admin');
  const path = `/v1/limits/${seg(name)}`;
  const limit = useQuery(path, { every: 5000, read: readTagged });
  if (query.get('edit') && admin && limit.data)
    return html`
      <${LimitForm}
        name=${name}
        done=${() => {
          change({ edit: null });
          limit.reload();
        }}
      />
    `;
  if (limit.error && [404, 422].includes(limit.error.status))
    return html`
      <${Head} title="Limit" />
      <section class="panel">
        <${Empty} title="There is no such limit">
          <span class="mono wrap">${name}</span><br />It may have been removed. <a href="/limits">All limits</a>
        </${Empty}>
      </section>
      ${limit.error.status === 404 && html`<${Acts} target=${name} of="limit" />`}
    `;
  if (!limit.data)
    return limit.error ? html`<${Trouble} error=${limit.error} retry=${limit.reload} />` : html`<${Skeleton} />`;
  const it = limit.data.limit;
  return html`
    <${Head}
      title=${html`<span class="wrap">${it.name}</span>`}
      sub=${
        allowance(it) ? `${allowance(it)}, ${each[it.shared_by]}` : 'Only the keys that have an override are limited'
      }
    >
      <${Allowed}>
        <div class="row">
          <button type="button" onClick=${() => change({ edit: 1 }, { replace: false })}>Change</button>
          <button type="button" class="danger" onClick=${() => remove(limit.data, () => go('/limits'))}>Remove</button>
        </div>
      </${Allowed}>
    </${Head}>
    <${Trouble} error=${limit.error} retry=${limit.reload} />
    ${
      !it.counted &&
      boundsAttempts(it) &&
      html`<div class="note warn">
        The attempts that run are being counted. Jobs whose key bounds how many run at once start in a few seconds.
      </div>`
    }
    <div class="grid wide">
      <div class="stack"><${Keys} limit=${it} path=${path} /></div>
      <div class="stack">
        <${Panel} title="Details"><${Facts} it=${it} /></${Panel}>
        <${Overrides} of=${it.overrides} />
        <${Acts} key=${it.changed_at} target=${name} of="limit" />
      </div>
    </div>
  `;
}

/** Whether jobs wait until the attempts that run are counted: those of a key with a concurrency do. */
const boundsAttempts = ({ concurrency, overrides }) =>
  concurrency !== null || Object.values(overrides).some((own) => own.concurrency !== null);

function Facts({ it }) {
  return html`<dl class="facts">
    <dt>Kind</dt>
    <dd>${it.kind ?? 'all'}</dd>
    <dt>Queue</dt>
    <dd>${it.queue ? html`<a href=${`/queues/${seg(it.queue)}`}>${it.queue}</a>` : 'all'}</dd>
    <dt>Shared by</dt>
    <dd><b>${it.shared_by}</b> <span class="soft">${shares[it.shared_by]}</span></dd>
    <dt>At once</dt>
    <dd>${it.concurrency === null ? 'no such limit' : plural(it.concurrency, 'attempt')}</dd>
    <dt>Rate</dt>
    <dd>${it.rate ? html`<${RateOf} rate=${it.rate} />` : 'no such limit'}</dd>
    <dt>Fair</dt>
    <dd>${it.fair ? 'keys with waiting jobs share the workers' : 'no'}</dd>
    ${it.breaker && html`<dt>Breaker</dt><dd>${breakerText(it.breaker)}</dd>`}
    <dt>Last changed</dt>
    <dd><${Time} at=${it.changed_at} /> by ${it.changed_by}</dd>
  </dl>`;
}

function Overrides({ of }) {
  const [most, showMost] = useState(OVERRIDES);
  const all = Object.entries(of);
  if (!all.length) return null;
  return html`<${Panel} title="Overrides" flush side=${html`<span class="soft num">${count(all.length)}</span>`}>
    <table class="cards dense">
      <thead>
        <tr><th>Key</th><th class="right">At once</th><th>Rate</th><th class="right">Weight</th></tr>
      </thead>
      <tbody>
        ${all.slice(0, most).map(
          ([key, own]) => html`<tr key=${key}>
            <td data-label="Key"><span class="mono lines" title=${key}>${key}</span></td>
            <td data-label="At once" class="right num">
              ${own.concurrency === null ? html`<span class="faint">–</span>` : count(own.concurrency)}
            </td>
            <td data-label="Rate" class="num"><${RateOf} rate=${own.rate} /></td>
            <td data-label="Weight" class="right num">${own.weight ?? 1}</td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${
      all.length > most &&
      html`<div class="more">
        <button type="button" onClick=${() => showMost(most + 200)}>
          ${plural(all.length - most, 'more', 'more')}
        </button>
      </div>`
    }
  </${Panel}>`;
}

/** The jobs of one key of a limit; null where no filter finds just these. */
function jobsOf(limit, key, state) {
  if (limit.shared_by === 'parent') return null;
  const words = [
    limit.shared_by === 'key' && `limit:${quoted(key)}`,
    limit.shared_by === 'host' && `host:${quoted(key)}`,
    limit.kind && `kind:${limit.kind}`,
    limit.queue && `queue:${limit.queue}`,
    state && `state:${state}`,
  ];
  return url('/jobs', { q: words.filter(Boolean).join(' ') });
}

const Maybe = ({ to, children }) => (to ? html`<a href=${to}>${children}</a>` : html`<span>${children}</span>`);

/** The state of the breaker of a host, why it is open, and the way to close it. */
function BreakerOf({ of, host, path, done }) {
  if (!of) return html`<span class="faint">–</span>`;
  if (of.state === 'closed')
    return html`<span class="soft">closed${of.failures > 0 ? `, ${plural(of.failures, 'failure')}` : ''}</span>`;
  const close = () =>
    confirm(
      `Close the breaker of ${host}?`,
      'The jobs that wait for it start as the limit allows. Failures are counted anew.',
      'Close it',
      async () => {
        const { closed } = await call('POST', `${path}/close-breaker`, { body: { host } });
        tell(closed ? `The breaker of ${host} was closed` : `The breaker of ${host} was not open any more`);
        done();
        return true;
      },
    );
  return html`<div class="stack tighter">
    <span>
      <b class="bad">${of.state === 'half_open' ? 'half-open' : 'open'}</b> since <${Time} at=${of.since} />${' '}
      <span class="soft">after ${plural(of.failures, 'failure')}</span>
    </span>
    <span class="soft">
      ${of.state === 'half_open' ? 'The next call decides' : html`Next call <${Time} at=${of.next_call_at} />`}
    </span>
    ${
      of.last_error &&
      html`<span class="row top">
        <span class="mono lines grow" title=${of.last_error}>${of.last_error}</span>
        <${Copy} text=${of.last_error} label="Copy the error" />
      </span>`
    }
    <${Allowed}>
      <div><button type="button" class="small" onClick=${close}>Close the breaker</button></div>
    </${Allowed}>
  </div>`;
}

/** The keys that have jobs, page by page. */
function Keys({ limit, path }) {
  const [query, change] = useWords();
  const after = query.get('after') ?? '';
  const keys = useQuery(url(`${path}/keys`, { after }), { on: happens, every: 5000, pace: 1000 });
  const rows = keys.data?.data ?? [];
  const word = keyWord(limit.shared_by);
  const rated = rows.some((row) => row.rate);
  const guarded = Boolean(limit.breaker);
  return html`
    <${Panel} title=${`${word}s with jobs`} flush>
      <${Trouble} error=${keys.error} retry=${keys.reload} />
      ${!keys.data && !keys.error && html`<${Skeleton} />`}
      ${
        keys.data &&
        rows.length === 0 &&
        html`<${Empty} title=${after ? 'No more keys' : 'No key has jobs'}>
          A key is listed while jobs of it run, or wait for this limit${guarded && ', and while its breaker is open'}.
        </${Empty}>`
      }
      ${
        rows.length > 0 &&
        html`<table class="cards">
          <thead>
            <tr>
              <th>${word}</th>
              <th class="right">Running</th>
              <th class="right">Waiting</th>
              <th>Since</th>
              ${rated && html`<th>Rate</th>`}
              ${guarded && html`<th>Breaker</th>`}
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (row) => html`<tr key=${row.key} data-row>
                <td data-label=${word} class="key">
                  ${
                    row.key === ''
                      ? html`<a href=${jobsOf(limit, '', null)}>all jobs</a>`
                      : html`<span class="mono lines" title=${row.key}>
                        <${Maybe} to=${jobsOf(limit, row.key, null)}>${row.key}</${Maybe}>
                      </span>`
                  }
                </td>
                <td data-label="Running" class="right num">
                  <span class="nowrap">
                    <${Maybe} to=${jobsOf(limit, row.key, 'executing')}>
                      ${count(row.running)}${row.concurrency !== null && ` of ${count(row.concurrency)}`}
                    </${Maybe}>
                  </span>
                </td>
                <td data-label="Waiting" class="right num">
                  ${
                    row.parked === 0
                      ? html`<span class="faint">0</span>`
                      : html`<${Maybe} to=${jobsOf(limit, row.key, 'waiting')}>
                        ${count(row.parked, row.parked >= MAX_COUNTED)}
                      </${Maybe}>`
                  }
                </td>
                <td data-label="Since"><${Time} at=${row.parked_since} /></td>
                ${rated && html`<td data-label="Rate" class="num"><${RateOf} rate=${row.rate} /></td>`}
                ${
                  guarded &&
                  html`<td data-label="Breaker">
                    <${BreakerOf} of=${row.breaker} host=${row.key} path=${path} done=${keys.reload} />
                  </td>`
                }
              </tr>`,
            )}
          </tbody>
        </table>`
      }
      ${
        limit.shared_by === 'parent' &&
        rows.length > 0 &&
        html`<p class="more faint">
          Each row counts the jobs whose limit key is the parent, or begins with it and a slash.
        </p>`
      }
      <${KeyPages} after=${after} next=${keys.data?.next} change=${change} />
    </${Panel}>
  `;
}
