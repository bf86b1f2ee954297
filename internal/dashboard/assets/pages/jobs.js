// Jobs: found by a filter, selected one by one or all that match.

import { call, get, url } from '../core/api.js';
import { cls, html, useEffect, useMemo, useRef, useState } from '../core/dom.js';
import { brief, count, plural } from '../core/format.js';
import { known } from '../core/known.js';
import { useQuery } from '../core/query.js';
import { remember, remembered, useWords } from '../core/route.js';
import {
  Allowed,
  Badge,
  Empty,
  Head,
  JobLink,
  Skeleton,
  Time,
  Trouble,
  tell,
  tellProblem,
  useMay,
} from '../ui/base.js';
import { actions, bulk } from '../ui/bulk.js';
import { FilterBar, withWord, wordOf } from '../ui/filter.js';
import { SearchState, useSearch } from '../ui/search.js';
import { useStill } from '../ui/still.js';

const states = ['waiting', 'executing', 'retrying', 'completed', 'failed', 'cancelled'];
/** Rows of an export. */
const MAX_ROWS = 10000;
const happens = ['accepted', 'started', 'settled', 'cancelled', 'rescheduled', 'reaped', 'cancel_requested'];

/** The end of a job, or when it is due. */
const moment = (job) => job.finished_at ?? (job.state === 'executing' ? job.started_at : job.execute_at);

export default function Jobs() {
  const [query, change] = useWords();
  const q = query.get('q') ?? '';
  const cursor = query.get('cursor') ?? '';
  const page = useSearch(q, cursor, happens);
  const listing = `${q} ${cursor}`;
  const before = remembered('chosen');
  const [chosen, choose] = useState(new Set(before?.of === listing ? before.ids : []));
  const [all, setAll] = useState(before?.of === listing && before.all);
  const still = useStill(page.rows, page.path, chosen.size > 0 || all);
  const admin = useMay('admin');
  const last = useRef(listing);
  useEffect(() => {
    if (last.current !== listing) {
      last.current = listing;
      choose(new Set());
      setAll(false);
    } else if (chosen.size > 0 || all || before) remember('chosen', { of: listing, ids: [...chosen], all });
  }, [listing, chosen, all]);
  const state = wordOf(q, 'state');
  const set = (text) => change({ q: text, cursor: null }, { replace: false });
  const { rows } = still;
  const ids = rows.map((job) => job.id);
  const every = ids.length > 0 && ids.every((id) => chosen.has(id));
  const toggle = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    choose(next);
    setAll(false);
  };
  const filter = all ? (q ? { q } : {}) : { ids: [...chosen] };
  const act = async (action) => {
    const operation = await bulk(action, filter);
    if (!operation) return;
    choose(new Set());
    setAll(false);
    page.reload();
  };
  return html`
    <${Head} title="Jobs">
      <${Allowed} to="enqueue"><a class="button" href="/enqueue">Enqueue a job</a></${Allowed}>
      <${Export} q=${q} />
    </${Head}>
    <div class="row"><${FilterBar} value=${q} on=${set} wrong=${page.error?.status === 422} /></div>
    ${
      page.error &&
      (page.error.status === 422
        ? html`<${Wrong} error=${page.error} />`
        : html`<${Trouble} error=${page.error} retry=${page.reload} />`)
    }
    <div class="row apart">
      <${Tabs} q=${q} state=${state} ready=${page.understood} />
      <${Fresh}
        q=${q}
        still=${still}
        show=${() => {
          const kept = still.show();
          choose(new Set([...chosen].filter((id) => kept.has(id))));
        }}
      />
    </div>
    <section class="panel scroll" aria-label="Jobs found">
      ${
        !page.known && !page.error
          ? html`<${Skeleton} />`
          : rows.length === 0 && !page.error
            ? !page.searching && !page.next && html`<${None} q=${q} />`
            : html`<table class="cards">
              <thead>
                <tr>
                  ${
                    admin &&
                    html`<th>
                      <input
                        type="checkbox"
                        checked=${every}
                        aria-label="Select all of this page"
                        onChange=${() => {
                          choose(every ? new Set() : new Set(ids));
                          setAll(false);
                        }}
                      />
                    </th>`
                  }
                  <th>State</th>
                  <th>Kind</th>
                  <th>Job</th>
                  <th>Queue</th>
                  <th class="right">Attempt</th>
                  <th>When</th>
                  <th>About</th>
                </tr>
              </thead>
              <tbody ...${still.hold}>
                ${rows.map(
                  (job) => html`<tr key=${job.id} data-row>
                    ${
                      admin &&
                      html`<td>
                        <input
                          type="checkbox"
                          checked=${all || chosen.has(job.id)}
                          aria-label=${`Select the job ${job.id}`}
                          onChange=${() => toggle(job.id)}
                        />
                      </td>`
                    }
                    <td data-label="State">
                      <a href=${withState(q, job.state)} tabindex="-1"><${Badge} is=${job.state} /></a>
                    </td>
                    <td data-label="Kind"><span class="bold">${job.kind}</span></td>
                    <td data-label="Job"><${JobLink} id=${job.id} /></td>
                    <td data-label="Queue">
                      <a href=${`/queues/${encodeURIComponent(job.queue)}`}>${job.queue}</a>
                      ${
                        job.priority !== 5 &&
                        html` <span class="faint" title="Priority: 0 runs first, 9 last">p${job.priority}</span>`
                      }
                    </td>
                    <td data-label="Attempt" class="right num">${job.attempt} / ${job.max_attempts}</td>
                    <td data-label="When"><${Time} at=${moment(job)} /></td>
                    <td data-label="About"><${About} job=${job} /></td>
                  </tr>`,
                )}
              </tbody>
            </table>`
      }
      <${SearchState} page=${page} />
      ${
        (cursor || page.older) &&
        html`<div class="more row">
          ${cursor && html`<button type="button" onClick=${() => history.back()}>Newer</button>`}
          ${
            page.older &&
            html`<button type="button" onClick=${() => change({ cursor: page.older }, { replace: false })}>
              Older
            </button>`
          }
        </div>`
      }
    </section>
    ${
      admin &&
      (chosen.size > 0 || all) &&
      html`<div class="selection" role="region" aria-label="Selected jobs">
        <b>${all ? 'All that match' : plural(chosen.size, 'job')} selected</b>
        ${
          !all &&
          every &&
          html`<button type="button" class="small quiet" onClick=${() => setAll(true)}>Select all that match</button>`
        }
        <span class="grow"></span>
        ${Object.entries(actions)
          .filter(([word]) => word !== 'discard' || state === 'failed')
          .map(
            ([word, { name, danger }]) => html`
              <button type="button" key=${word} class=${danger ? 'small danger' : 'small'} onClick=${() => act(word)}>
                ${name}
              </button>
            `,
          )}
        <button
          type="button"
          class="small quiet"
          data-escape
          onClick=${() => {
            choose(new Set());
            setAll(false);
          }}
        >
          Clear
        </button>
      </div>`
    }
  `;
}

const withState = (q, state) => url('/jobs', { q: withWord(q, 'state', state) });

function About({ job }) {
  if (job.state === 'executing' && job.progress)
    return html`<span class="clip" title=${job.progress.note ?? ''}>
      ${Math.round(job.progress.percent)} % ${job.progress.note ?? ''}
    </span>`;
  if (job.last_error && job.state !== 'completed')
    return html`<span class=${cls('clip', job.state !== 'cancelled' && 'bad')} title=${job.last_error}>
      ${job.last_error}
    </span>`;
  const words = [job.unique_key, job.order_key, job.limit_key, ...(job.tags ?? [])].filter(Boolean);
  if (job.schedule)
    return html`<span class="clip">
      by <a href=${`/schedules/${encodeURIComponent(job.schedule.name)}`}>${job.schedule.name}</a>
    </span>`;
  return words.length
    ? html`<span class="clip">
      ${words.slice(0, 4).map((word) => html`<span class="tag" key=${word}>${word}</span> `)}
    </span>`
    : html`<span class="faint">–</span>`;
}

/** What the server does not understand, in its words. */
const Wrong = ({ error }) => html`<div class="note bad" role="alert">
  ${(error.errors.length ? error.errors : [{ detail: error.message }]).map((one) => html`<p>${one.detail}</p>`)}
</div>`;

/** Says how many jobs have come while the list stands still, and shows them. */
function Fresh({ q, still, show }) {
  // The count takes no second word on the time of acceptance.
  const since = still.all && !wordOf(q, 'created') ? still.since : null;
  const more = useQuery(since && url('/v1/jobs/count', { q, created_after: since }), {
    on: happens,
    every: 10000,
    pace: 3000,
  });
  if (!still.fresh) return html`<span role="status"></span>`;
  return html`<span class="fresh" role="status">
    <b class="num">
      ${more.data?.count > still.fresh ? count(more.data.count, more.data.capped) : count(still.fresh, still.all)} new
    </b>${' '}
    <button type="button" class="small" onClick=${show}>Show</button>
  </span>`;
}

/** All, and one tab for each state, with counts that stop at ten thousand. */
function Tabs({ q, state, ready }) {
  const rest = withWord(q, 'state', null);
  // One request for each state: they are read side by side, each bounded by the server. Not before the list has come:
  // then the filter is one that the server understands.
  const path = ready ? url('/v1/jobs/count', { q: rest }) : null;
  const read = useMemo(
    () => async (_, signal) => {
      // Of all jobs, the server knows how many are not over yet without a search.
      const stats = rest ? null : (known.get().stats.data ?? (await get('/v1/stats', {}, signal)));
      const counted = (word) =>
        stats && ['waiting', 'executing', 'retrying'].includes(word)
          ? { count: stats.states[word], capped: !stats.exact }
          : null;
      const each = await Promise.all(
        states.map((word) => counted(word) ?? get('/v1/jobs/count', { q: withWord(rest, 'state', word) }, signal)),
      );
      return Object.fromEntries(states.map((word, i) => [word, each[i]]));
    },
    [rest],
  );
  const counts = useQuery(path, { on: happens, every: 30000, pace: 15000, read });
  const sum = counts.data && states.reduce((n, word) => n + counts.data[word].count, 0);
  const capped = counts.data && states.some((word) => counts.data[word].capped);
  return html`<nav class="tabs grow" aria-label="States">
    <a href=${url('/jobs', { q: rest })} aria-current=${state ? undefined : 'page'}>
      All<span class="num">${brief(sum ?? null, capped)}</span>
    </a>
    ${states.map(
      (word) => html`<a key=${word} href=${withState(q, word)} aria-current=${state === word ? 'page' : undefined}>
        ${word}
        <span class="num" title=${counts.data ? count(counts.data[word].count, counts.data[word].capped) : ''}>
          ${brief(counts.data?.[word].count ?? null, counts.data?.[word].capped)}
        </span>
      </a>`,
    )}
  </nav>`;
}

function None({ q }) {
  if (q)
    return html`<${Empty} title="No job matches">
      Words must all hold. Jobs that ended are kept as long as their retention says. <a href="/jobs">Show all jobs</a>
    </${Empty}>`;
  return html`<${Empty} title="No jobs yet">
    Any program enqueues one over HTTP:
    <div>
      <pre>curl -X POST ${location.origin}/v1/jobs -H 'Content-Type: application/json' \\
  -d '{"kind": "http", "payload": {"url": "…"}}'</pre>
    </div>
    <a href="/enqueue">Or fill in a form</a>
  </${Empty}>`;
}

/** What the filter finds, page by page, as a file. */
function Export({ q }) {
  const [progress, set] = useState(null);
  const run = async (kind) => {
    set(0);
    try {
      const parts = kind === 'csv' ? [`${COLUMNS.join(',')}\r\n`] : [];
      let rows = 0;
      let cursor = '';
      do {
        const page = await call('GET', url('/v1/jobs', { q, limit: 200, cursor }));
        for (const job of page.data.slice(0, MAX_ROWS - rows))
          parts.push(kind === 'csv' ? csv(job) : `${JSON.stringify(job)}\n`);
        rows += page.data.length;
        cursor = page.next_cursor ?? '';
        set(Math.min(rows, MAX_ROWS));
      } while (cursor && rows < MAX_ROWS);
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob(parts, { type: kind === 'csv' ? 'text/csv' : 'application/x-ndjson' }));
      link.download = `jobs.${kind === 'csv' ? 'csv' : 'ndjson'}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      tell(
        cursor
          ? `The newest ${count(MAX_ROWS)} jobs were exported; a narrower filter finds the rest`
          : `${plural(Math.min(rows, MAX_ROWS), 'job')} exported`,
      );
    } catch (problem) {
      tellProblem(problem);
    }
    set(null);
  };
  if (progress !== null) return html`<button type="button" disabled>${count(progress)} jobs…</button>`;
  return html`<label>
    <span class="hidden-visually">Export</span>
    <select
      value=""
      onChange=${(event) => {
        const kind = event.target.value;
        event.target.value = '';
        if (kind) run(kind);
      }}
    >
      <option value="">Export…</option>
      <option value="csv">as CSV</option>
      <option value="ndjson">as NDJSON</option>
    </select>
  </label>`;
}

// A cell that begins like a formula is not taken for one.
const cell = (value) => {
  const text = value === null || value === undefined ? '' : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) && typeof value !== 'number' ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
const COLUMNS = [
  'id',
  'kind',
  'queue',
  'state',
  'attempt',
  'max_attempts',
  'priority',
  'created_at',
  'execute_at',
  'finished_at',
  'last_error',
];
const csv = (job) => `${COLUMNS.map((column) => cell(job[column])).join(',')}\r\n`;
