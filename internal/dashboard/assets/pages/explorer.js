// The explorer: jobs by time, by their facts and one by one, found by a filter within a range of time.

import { url } from '../core/api.js';
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { writeExact } from '../core/exact.js';
import { brief, count, plural } from '../core/format.js';
import { useKept } from '../core/kept.js';
import { useQuery } from '../core/query.js';
import { rangeIn, rangeOf, toRange, within } from '../core/range.js';
import { remember, remembered, useWords } from '../core/route.js';
import { excluded, termsOf, toggled, withWord, wordOf } from '../core/words.js';
import { Allowed, Empty, Head, Skeleton, Trouble, tell, tellProblem, useMay } from '../ui/base.js';
import { actions, bulk } from '../ui/bulk.js';
import { DifferencesPanel } from '../ui/differences.js';
import { Drop } from '../ui/drop.js';
import { Facets } from '../ui/facets.js';
import { FilterBar } from '../ui/filter.js';
import { counted, Histogram, stacked } from '../ui/histogram.js';
import { columns, JobTable, usual } from '../ui/job-table.js';
import { RangeChoice, rangeName } from '../ui/range.js';
import { patiently, SearchState, useSearch } from '../ui/search.js';
import { useStill } from '../ui/still.js';
import { Views } from '../ui/views.js';
import { Inspector, NARROW, PASSING } from './inspector.js';

/** Rows of an export. */
const MAX_ROWS = 10000;
const happens = ['accepted', 'started', 'settled', 'cancelled', 'rescheduled', 'reaped', 'cancel_requested'];

export default function Explorer() {
  const [query, change] = useWords();
  const q = query.get('q') ?? '';
  const cursor = query.get('cursor') ?? '';
  const current = query.get('job');
  const range = rangeOf(query);
  const whole = within(q, range);
  const [kept, keep] = useKept('explorer', { columns: usual, dense: false, sort: 'newest' });
  // A cursor belongs to the order of its listing.
  const sort = query.get('sort') ?? (cursor ? 'newest' : kept.sort);
  const page = useSearch(whole, cursor, happens, sort === 'oldest' ? sort : '');
  const survey = useSurvey(whole, page.understood, range.to === null);
  const listing = `${whole} ${cursor} ${sort}`;
  const selection = useSelection(listing);
  const still = useStill(page.rows, page.path, selection.some || Boolean(current), { forwards: sort === 'oldest' });
  const admin = useMay('admin');
  const { rows } = still;
  // Another filter is another list: its first page, without the job of the old one.
  const search = (next) => change({ q: next, cursor: null }, { replace: false });
  const to = (job) => {
    const next = new URLSearchParams(query);
    next.set('job', job);
    return `/jobs?${next}`;
  };
  const open = (job, { replace = Boolean(current) } = {}) => change({ job }, { replace });
  const close = () => {
    change({ job: null });
    document.querySelector(`tr[data-id="${CSS.escape(current)}"] [data-open]`)?.focus();
  };
  const step = (by) => {
    const at = rows.findIndex((job) => job.id === current);
    const next = rows[at + by];
    if (next) open(next.id);
  };
  const passing = useRef(0);
  const hold = {
    ...still.hold,
    onfocusin: (event) => {
      still.hold.onfocusin(event);
      clearTimeout(passing.current);
      const next = current && event.target.closest?.('[data-open]') && event.target.closest('tr').dataset.id;
      if (next && next !== current && !matchMedia(NARROW).matches)
        passing.current = setTimeout(() => open(next), PASSING);
    },
  };
  const setRange = (next) => change({ ...toRange(next), cursor: null }, { replace: false });
  const shown = survey.data && { from: Date.parse(survey.data.from), to: Date.parse(survey.data.to) };
  return html`
    <${Head} title="Explorer">
      <a class="button" href=${url('/tail', { q })} title="What happens to these jobs, as it happens">Follow</a>
      ${!wordOf(q, 'created') && html`<a class="button" href=${incidentOf(q, query)}>Incident page</a>`}
      <${Views} here=${`/jobs?${query}`} />
      <${Export} q=${whole} sort=${sort} />
      <${Allowed} to="enqueue"><a class="button spare" href="/enqueue">Enqueue a job</a></${Allowed}>
    </${Head}>
    <div class="row">
      <${FilterBar} value=${q} on=${search} wrong=${page.error?.status === 422} />
      <${RangeChoice} range=${range} shown=${shown} own=${wordOf(q, 'created') !== null} on=${setRange} />
    </div>
    ${
      page.error &&
      (page.error.status === 422
        ? html`<${Wrong} error=${page.error} />`
        : html`<${Trouble} error=${page.error} retry=${page.reload} />`)
    }
    <section class="panel overview" aria-label="Jobs by time">
      <div class="row apart">
        <${States} q=${q} query=${query} survey=${survey.data} stale=${survey.stale} />
        <${Looked} survey=${survey.data} />
      </div>
      <${Trouble} error=${survey.error} retry=${survey.reload} />
      ${
        survey.data
          ? html`<${Histogram} survey=${survey.data} open=${range.to === null} stale=${survey.stale} on=${setRange} />`
          : !survey.error && html`<div class="histogram"><${Skeleton} /></div>`
      }
    </section>
    ${page.understood && wordOf(q, 'state') === 'failed' && html`<${Different} key=${whole} q=${whole} />`}
    <div class=${cls('explorer', current && 'beside')}>
      <${Narrow} count=${survey.data?.facets.length}>
        <${Facets}
          survey=${survey.data}
          q=${q}
          onWant=${(field, value) => search(toggled(q, field, value))}
          onExclude=${(field, value) => search(excluded(q, field, value))}
        />
      </${Narrow}>
      <section class="panel scroll list" aria-label="Jobs found">
        <div class="row apart tools">
          <${Fresh} q=${q} still=${still} show=${() => selection.retain(still.show())} />
          <${Looks}
            kept=${kept}
            keep=${keep}
            sort=${sort}
            order=${(next) => {
              keep({ ...kept, sort: next });
              change({ sort: next === 'oldest' ? next : null, cursor: null }, { replace: false });
            }}
          />
        </div>
        ${
          !page.known && !page.error
            ? html`<${Skeleton} />`
            : rows.length === 0 && !page.error
              ? !page.searching && !page.next && html`<${None} q=${q} range=${range} change=${change} />`
              : html`<${JobTable}
                rows=${rows}
                q=${q}
                shown=${kept.columns}
                dense=${kept.dense}
                chosen=${admin ? selection.chosen : null}
                all=${selection.all}
                toggle=${selection.toggle}
                toggleAll=${() => selection.togglePage(rows)}
                hold=${hold}
                current=${current}
                to=${to}
                open=${open}
              />`
        }
        <${SearchState} page=${page} />
        ${
          (cursor || page.older) &&
          html`<div class="more row">
            ${cursor && html`<button type="button" onClick=${() => history.back()}>Back</button>`}
            ${
              page.older &&
              html`<button
                type="button"
                onClick=${() =>
                  change({ cursor: page.older, sort: sort === 'oldest' ? sort : null }, { replace: false })}
              >
                ${sort === 'oldest' ? 'Newer' : 'Older'}
              </button>`
            }
          </div>`
        }
      </section>
      ${current && html`<${Inspector} id=${current} step=${step} close=${close} />`}
    </div>
    ${
      admin &&
      selection.some &&
      html`<${Selected} selection=${selection} q=${whole} rows=${rows} reload=${page.reload} />`
    }
  `;
}

/** The page of what went wrong in the range of the address, for the queue and the kind that the filter wants. */
function incidentOf(q, query) {
  const [queue, kind] = ['queue', 'kind'].map((field) => termsOf(q, field).wanted);
  const one = (values) => (values.length === 1 ? values[0] : null);
  return url('/incident', { ...rangeIn(query), queue: one(queue), kind: one(kind) });
}

/**
 * The survey of a filter: `data` stays until the next one is there, and is `stale` as long as it is one of another
 * filter. When the next one does not come, there is none: old numbers would be taken for those of the new filter.
 * Nothing is asked before the server has understood the filter. `open` is false for a range that has an end: its jobs
 * still change, though no new ones come.
 */
function useSurvey(q, ready, open) {
  const path = ready ? url('/v1/jobs/survey', { q }) : null;
  const found = useQuery(path, { on: happens, every: open ? 30000 : 60000, pace: 10000 });
  const last = useRef(null);
  if (found.data && !found.loading) last.current = found.data;
  if (found.error && !found.loading && !found.data) last.current = null;
  return { ...found, data: last.current, stale: !ready || found.loading || !found.data };
}

/** Which jobs of a listing are selected: some by their ids, or all that match. */
function useSelection(listing) {
  const before = remembered('chosen');
  const [chosen, choose] = useState(new Set(before?.of === listing ? before.ids : []));
  const [all, setAll] = useState(before?.of === listing && before.all);
  const last = useRef(listing);
  useEffect(() => {
    if (last.current !== listing) {
      last.current = listing;
      choose(new Set());
      setAll(false);
    } else if (chosen.size > 0 || all || before) remember('chosen', { of: listing, ids: [...chosen], all });
  }, [listing, chosen, all]);
  return {
    chosen,
    all,
    some: chosen.size > 0 || Boolean(all),
    toggle: (id) => {
      const next = new Set(chosen);
      if (!next.delete(id)) next.add(id);
      choose(next);
      setAll(false);
    },
    togglePage: (rows) => {
      const ids = rows.map((job) => job.id);
      choose(ids.every((id) => chosen.has(id)) ? new Set() : new Set(ids));
      setAll(false);
    },
    chooseAll: () => setAll(true),
    retain: (ids) => choose(new Set([...chosen].filter((id) => ids.has(id)))),
    clear: () => {
      choose(new Set());
      setAll(false);
    },
  };
}

/** What can be done to the selected jobs. */
function Selected({ selection, q, rows, reload }) {
  const { chosen, all } = selection;
  const every = rows.length > 0 && rows.every((job) => chosen.has(job.id));
  const filter = all ? (q ? { q } : null) : { ids: [...chosen] };
  const act = async (action) => {
    const operation = await bulk(action, filter);
    if (!operation) return;
    selection.clear();
    reload();
  };
  return html`<div class="selection" role="region" aria-label="Selected jobs">
    <b>${all ? 'All that match' : plural(chosen.size, 'job')} selected</b>
    ${
      !all &&
      every &&
      html`<button type="button" class="small quiet" onClick=${selection.chooseAll}>Select all that match</button>`
    }
    <span class="grow"></span>
    ${Object.entries(actions)
      .filter(([word]) => word !== 'discard' || wordOf(q, 'state') === 'failed')
      .map(
        ([word, { name, danger }]) => html`
          <button type="button" key=${word} class=${danger ? 'small danger' : 'small'} onClick=${() => act(word)}>
            ${name}
          </button>
        `,
      )}
    <button type="button" class="small quiet" data-escape onClick=${selection.clear}>Clear</button>
  </div>`;
}

/**
 * What the failed jobs of the list have more often than those that passed. The server looks at thousands of jobs for
 * it, so it is asked by a click alone.
 */
function Different({ q }) {
  const [open, set] = useState(false);
  if (open) return html`<${DifferencesPanel} path=${url('/v1/jobs/differences', { q })} within=${q} />`;
  return html`<div>
    <button type="button" onClick=${() => set(true)}>What is different about these failures?</button>
  </div>`;
}

/** The facets. On a narrow page they are folded. */
function Narrow({ children }) {
  const [wide] = useState(() => !matchMedia(NARROW).matches);
  return html`<details class="panel narrow-down" open=${wide}>
    <summary>Narrow down</summary>
    <div class="body">${children}</div>
  </details>`;
}

/** How much of the jobs the numbers come from. */
function Looked({ survey }) {
  if (!survey || survey.exact) return null;
  return html`<span class="faint" title="A narrower range of time or filter has exact numbers">
    ≈ estimated from ${count(survey.looked_at)} jobs
  </span>`;
}

/** All, and each state with its number. They are also the legend of the bars. */
function States({ q, query, survey, stale }) {
  const state = wordOf(q, 'state');
  const rest = withWord(q, 'state', null);
  const to = (word) => url('/jobs', { q: withWord(q, 'state', word), ...rangeIn(query) });
  const free = !state && wordOf(q, '-state') === null;
  // A survey of one state says nothing of the others. Their numbers are those from before, as long as the rest of the
  // filter is the same.
  const all = useRef({ of: null });
  const own = survey && { jobs: survey.jobs, exact: survey.exact, sums: sumsOf(survey) };
  if (own && !stale && free) all.current = { of: rest, ...own };
  const known = free ? own : all.current.of === rest ? all.current : { ...own, jobs: null };
  const number = (jobs) =>
    html`<span class="num" title=${jobs === null ? '' : counted(jobs, known.exact)}>
      ${jobs === null ? '' : `${known.exact || jobs === 0 ? '' : '≈'}${brief(jobs)}`}
    </span>`;
  const jobsIn = (word) => known?.sums?.[word] ?? (known && known.jobs !== null ? 0 : null);
  return html`<nav class="tabs grow" aria-label="States">
    <a href=${to(null)} aria-current=${free ? 'page' : undefined}>All${number(known?.jobs ?? null)}</a>
    ${[...stacked].reverse().map(
      (word) => html`<a key=${word} href=${to(word)} aria-current=${state === word ? 'page' : undefined}>
        <i class=${cls('swatch', word)} aria-hidden="true"></i>${word}${number(jobsIn(word))}
      </a>`,
    )}
  </nav>`;
}

const sumsOf = (survey) =>
  Object.fromEntries(
    (survey.facets.find((facet) => facet.field === 'state')?.values ?? []).map(({ value, jobs }) => [value, jobs]),
  );

/** How the list looks: its order, its density and its columns, kept in this browser. */
function Looks({ kept, keep, sort, order }) {
  const toggle = (name) =>
    keep({
      ...kept,
      columns: kept.columns.includes(name) ? kept.columns.filter((one) => one !== name) : [...kept.columns, name],
    });
  return html`<span class="row tight">
    <label>
      <span class="hidden-visually">Order</span>
      <select value=${sort} onChange=${(event) => order(event.target.value)}>
        <option value="newest">Newest first</option>
        <option value="oldest">Oldest first</option>
      </select>
    </label>
    <button
      type="button"
      aria-pressed=${String(kept.dense)}
      onClick=${() => keep({ ...kept, dense: !kept.dense })}
    >
      Compact
    </button>
    <${Drop} label="Columns" end>
        ${Object.entries(columns)
          .filter(([, column]) => !column.always)
          .map(
            ([name, column]) => html`<label key=${name} class=${cls('row tight', column.wide && 'wide')}>
              <input type="checkbox" checked=${kept.columns.includes(name)} onChange=${() => toggle(name)} />
              ${column.name}
            </label>`,
          )}
    </${Drop}>
  </span>`;
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

function None({ q, range, change }) {
  const all = (word) => change({ ...toRange({}), ...word, cursor: null }, { replace: false });
  const within = wordOf(q, 'created') === null && rangeName(range);
  if (q || within)
    return html`<${Empty} title=${within ? `No job matches ${within}` : 'No job matches'}>
      Words must all hold. Jobs that ended are kept as long as their retention says.
      <p>
        ${within && html`<button type="button" onClick=${() => all({})}>Search all time</button>`}${' '}
        ${q && html`<button type="button" onClick=${() => all({ q: null })}>Show all jobs</button>`}
      </p>
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
function Export({ q, sort }) {
  const [progress, set] = useState(null);
  const stop = useRef(null);
  const run = async (kind) => {
    const abort = new AbortController();
    stop.current = () => abort.abort();
    set(0);
    try {
      const parts = kind === 'csv' ? [`${COLUMNS.join(',')}\r\n`] : [];
      let rows = 0;
      let cursor = '';
      do {
        // The cursor of an export that is cut stands behind its last row: without one there was nothing more.
        const limit = Math.min(200, MAX_ROWS - rows);
        const page = await patiently({ q, limit, cursor, sort }, abort.signal);
        for (const job of page.data) parts.push(kind === 'csv' ? csv(job) : `${writeExact(job)}\n`);
        rows += page.data.length;
        cursor = page.next_cursor ?? '';
        set(rows);
      } while (cursor && rows < MAX_ROWS);
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob(parts, { type: kind === 'csv' ? 'text/csv' : 'application/x-ndjson' }));
      link.download = `jobs.${kind === 'csv' ? 'csv' : 'ndjson'}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      tell(
        cursor
          ? `The first ${count(MAX_ROWS)} jobs were exported; a narrower filter finds the rest`
          : `${plural(rows, 'job')} exported`,
      );
    } catch (problem) {
      if (!abort.signal.aborted) tellProblem(problem);
    }
    set(null);
  };
  if (progress !== null)
    return html`<button type="button" onClick=${stop.current}>Stop the export: ${count(progress)} jobs</button>`;
  return html`<label class="spare">
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

// A spreadsheet takes a text for a formula also behind spaces and quotes, and in other languages it splits a line at
// other signs than commas. An apostrophe before each such piece disarms it, as in the files of reports.
const FORMULA = /^[\s"\u0085\u200b]*[=+\-@＝＋－＠]/;
const harmless = (text) =>
  (/^[\t\r\n]/.test(text) ? "'" : '') +
  text
    .split(/(?<=[\n\r\t;|])/)
    .map((piece) => (FORMULA.test(piece) ? `'${piece}` : piece))
    .join('');
const cell = (value) => {
  const text = value === null || value === undefined ? '' : String(value).replaceAll('\u0000', '');
  const safe = typeof value === 'number' ? text : harmless(text);
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
