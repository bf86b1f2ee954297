// Limits by key: how many jobs with the same limit key run at once, and start in a period.

import { seg } from '../core/api.js';
import { html, useMemo, useState } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { go, useWords } from '../core/route.js';
import { Allowed, Empty, Head, Skeleton, Time, Trouble, useMay } from '../ui/base.js';
import { LimitForm, RateOf, shares } from '../ui/limits.js';

const PAGE = 50;

export default function Limits() {
  const [query, change] = useWords();
  const admin = useMay('admin');
  if (query.get('new') && admin)
    return html`
      <${LimitForm}
        done=${(name) => (name ? go(`/limits/${seg(name)}`, { replace: true }) : change({ new: null }))}
      />
    `;
  return html`<${List} admin=${admin} />`;
}

function List({ admin }) {
  const limits = useQuery('/v1/limits', { every: 10000 });
  const [word, setWord] = useState('');
  const [most, showMost] = useState(PAGE);
  const all = limits.data?.data ?? [];
  const rows = useMemo(() => {
    const wanted = word.trim().toLowerCase();
    return all.filter(({ name, kind, queue }) => [name, kind, queue].join(' ').includes(wanted));
  }, [limits.data, word]);
  const shown = rows.slice(0, most);
  const any = html`<span class="faint">all</span>`;
  const none = html`<span class="faint">–</span>`;
  return html`
    <${Head}
      title="Limits"
      sub=${
        all.length
          ? `${plural(all.length, 'limit')} by key: how many jobs with the same limit key run at once, or start in a ` +
            'period.'
          : 'How many jobs with the same limit key run at once, or start in a period.'
      }
    >
      ${
        all.length > 10 &&
        html`<label>
          <span class="hidden-visually">Find a limit</span>
          <input
            type="search"
            placeholder="Find a limit" title="By name, kind or queue"
            value=${word}
            onInput=${(e) => setWord(e.target.value)}
          />
        </label>`
      }
      <${Allowed}><a class="button" href="/limits?new=1">New limit</a></${Allowed}>
    </${Head}>
    <${Trouble} error=${limits.error} retry=${limits.reload} />
    ${!limits.data && !limits.error && html`<${Skeleton} />`}
    ${
      limits.data &&
      html`<section class="panel scroll" aria-label="Limits found">
        ${
          all.length === 0
            ? html`<${None} admin=${admin} />`
            : rows.length === 0
              ? html`<${Empty} title="No limit matches" />`
              : html`<table class="cards dense">
                <thead>
                  <tr>
                    <th>Limit</th>
                    <th>Kind</th>
                    <th>Queue</th>
                    <th>Shared by</th>
                    <th class="right">At once</th>
                    <th>Rate</th>
                    <th class="right">Overrides</th>
                    <th>Changed</th>
                  </tr>
                </thead>
                <tbody>
                  ${shown.map(
                    (limit) => html`<tr key=${limit.name} data-row>
                      <td data-label="Limit">
                        <span class="named slim">
                          <a class="bold" href=${`/limits/${seg(limit.name)}`}>${limit.name}</a>
                        </span>
                      </td>
                      <td data-label="Kind" class="who">
                        ${limit.kind ? html`<span class="lines" title=${limit.kind}>${limit.kind}</span>` : any}
                      </td>
                      <td data-label="Queue" class="who">
                        ${
                          limit.queue
                            ? html`<a class="lines" title=${limit.queue} href=${`/queues/${seg(limit.queue)}`}>
                              ${limit.queue}
                            </a>`
                            : any
                        }
                      </td>
                      <td data-label="Shared by"><span title=${shares[limit.shared_by]}>${limit.shared_by}</span></td>
                      <td data-label="At once" class="right num">
                        ${limit.concurrency === null ? (limit.fair ? 'fair' : none) : count(limit.concurrency)}
                      </td>
                      <td data-label="Rate" class="num"><${RateOf} rate=${limit.rate} /></td>
                      <td data-label="Overrides" class="right num">
                        ${Object.keys(limit.overrides).length ? count(Object.keys(limit.overrides).length) : none}
                      </td>
                      <td data-label="Changed">
                        <div>
                          <${Time} at=${limit.changed_at} />
                          <span class="clip slim faint" title=${limit.changed_by}>by ${limit.changed_by}</span>
                        </div>
                      </td>
                    </tr>`,
                  )}
                </tbody>
              </table>`
        }
        ${
          rows.length > shown.length &&
          html`<div class="more">
            <button type="button" onClick=${() => showMost(most + PAGE)}>
              ${plural(rows.length - shown.length, 'more', 'more')}
            </button>
          </div>`
        }
      </section>`
    }
  `;
}

const None = ({ admin }) => html`<${Empty} title="No limit yet">
  A limit by key bounds how many jobs with the same limit key, such as a tenant, run at the same time, or start in a
  period. A job names its key as <code>limit_key</code>, or counts by the host that it calls. It waits without a worker
  while its key has no room.
  <div>
    <pre>curl -X PUT ${location.origin}/v1/limits/per-tenant -H 'Content-Type: application/json' \\
  -d '{"kind": "http", "concurrency": 5, "rate": {"starts": 100, "period_ms": 60000}}'</pre>
  </div>
  <p>
    ${admin && html`<a href="/limits?new=1">Fill in a form</a> · `}
    <a href="/docs#tag-limits">Limits in the reference</a>
  </p>
</${Empty}>`;
