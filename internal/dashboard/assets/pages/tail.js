// The tail: the events of the cluster as they happen, the newest first, as far as a filter wants them.

import { get, keyMark, seg, url } from '../core/api.js';
import { cls, html, useEffect, useMemo, useRef, useState } from '../core/dom.js';
import { failures, filterOf, isGap, keeper, readEvent, types, values, words } from '../core/events.js';
import { count, plural, utc } from '../core/format.js';
import { hasPlace, listen, live } from '../core/live.js';
import { useObservable } from '../core/observable.js';
import { inLine } from '../core/query.js';
import { place, useWords } from '../core/route.js';
import { withWord, wordOf } from '../core/words.js';
import { Badge, Empty, Head } from '../ui/base.js';
import { FilterBar } from '../ui/filter.js';
import { useStill } from '../ui/still.js';
import { Inspector, NARROW, PASSING } from './inspector.js';

/** Time from one drawing to the next at least, in ms. */
const PACE = 250;
/** Errors that one request asks for. A filter has at most 2,000 bytes, and each id takes 40 of them. */
const ERRORS = 40;
/** Errors that the server could not give are asked for again so much later, in ms. */
const LATER = 5000;
const idOf = (row) => row.seq;

export default function Tail() {
  const [query, change] = useWords();
  const q = query.get('q') ?? '';
  const current = query.get('job');
  const filter = useMemo(() => filterOf(q), [q]);
  const state = useObservable(live);
  const tail = useTail(filter);
  const [paused, pause] = useState(false);
  const box = useRef(null);
  const away = useAway(box);
  const marked = useMarked(box);
  const still = useStill(tail.rows, tail.part, paused || Boolean(current) || away || marked, { idOf });
  const { rows } = still;
  const fresh = still.fresh && Math.max(still.fresh, tail.matched - rows[0].nth);
  useErrors(rows);
  useSpace(() => pause((was) => !was));
  // An event is one of several rows of its job.
  const at = useRef(null);
  const here =
    current &&
    (rows.find((row) => row.seq === at.current && row.job === current) ?? rows.find((row) => row.job === current));
  const to = (job) => {
    const next = new URLSearchParams(query);
    next.set('job', job);
    return `/tail?${next}`;
  };
  const mark = (row) => {
    at.current = row.seq;
  };
  const open = (row) => {
    mark(row);
    change({ job: row.job }, { replace: place.get().query.has('job') });
  };
  const close = () => {
    change({ job: null });
    box.current.querySelector(`tr[data-seq="${here?.seq}"] [data-open]`)?.focus();
  };
  const step = (by) => {
    for (let i = rows.indexOf(here) + by; rows[i]; i += by) {
      if (rows[i].job && rows[i].job !== current) return open(rows[i]);
    }
    return undefined;
  };
  const passing = useRef(0);
  const hold = {
    ...still.hold,
    onfocusin: (event) => {
      still.hold.onfocusin(event);
      clearTimeout(passing.current);
      const seq = current && event.target.closest?.('[data-open]') && event.target.closest('tr').dataset.seq;
      const next = seq && rows.find((row) => String(row.seq) === seq);
      if (next && next !== here && !matchMedia(NARROW).matches) passing.current = setTimeout(() => open(next), PASSING);
    },
  };
  const show = () => {
    getSelection().removeAllRanges();
    still.show();
    // Further down the list would stand still again.
    scrollTo(0, 0);
  };
  const search = (next) => change({ q: next }, { replace: false });
  return html`
    <${Head} title="Tail" sub="What happens in the cluster, as it happens. The newest event comes first.">
      <a class="button" href=${url('/jobs', { q: ofJobs(filter.rest) })}>Explorer</a>
    </${Head}>
    <div class="row">
      <${FilterBar}
        value=${q}
        on=${search}
        wrong=${filter.wrong.length > 0}
        words=${words}
        more=${values}
        example="state:failed kind:email queue:mail"
      />
    </div>
    ${filter.wrong.length > 0 && html`<${Wrong} filter=${filter} />`}
    <${Choices} q=${q} />
    <div class=${cls('explorer', 'tail', current && 'beside')}>
      <section class="panel list" aria-label="Events" ref=${box}>
        <div class="row apart tools">
          ${
            fresh > 0 && !away
              ? html`<${Fresh} fresh=${fresh} show=${show} />`
              : html`<${State} state=${state} paused=${paused} pace=${tail.pace} />`
          }
          <span class="row tight">
            <button
              type="button"
              class="small"
              title="Space"
              aria-pressed=${String(paused)}
              onClick=${() => pause(!paused)}
            >
              Pause
            </button>
            <button type="button" class="small" disabled=${rows.length === 0} onClick=${tail.clear}>Clear</button>
          </span>
        </div>
        <div class="scroll">
          <table class="jobs close">
            <thead>
              <tr>
                <th class="c-when">Time (UTC)</th>
                <th class="c-state">Event</th>
                <th class="c-kind">Kind</th>
                <th class="c-job">Job</th>
                <th class="c-queue">Queue</th>
                <th class="c-about">About</th>
                <th class="c-runner">Runner</th>
              </tr>
            </thead>
            <tbody ...${hold}>
              ${rows.map((row) =>
                isGap(row)
                  ? html`<${Gap} key=${row.seq} row=${row} />`
                  : html`<${Row}
                    key=${row.seq}
                    row=${row}
                    error=${row.error}
                    current=${row === here}
                    href=${row.job ? to(row.job) : placeOf(row)[1]}
                    mark=${mark}
                    open=${open}
                  />`,
              )}
            </tbody>
          </table>
        </div>
        ${rows.length === 0 && html`<${None} q=${q} state=${state} wrong=${filter.wrong.length > 0} />`}
      </section>
      ${current && html`<${Inspector} id=${current} step=${step} close=${close} />`}
    </div>
    ${away && fresh > 0 && html`<div class="selection"><${Fresh} fresh=${fresh} show=${show} /></div>`}
  `;
}

// What a tab has seen stays for the way back from a job, for the same API key.
let before = null;

/** The events that the filter wants, drawn a few times a second, however many come. */
function useTail(filter) {
  const own = useMemo(() => {
    if (before?.of !== keyMark()) before = { of: keyMark(), tail: keeper() };
    const { tail } = before;
    if (tail.last && tail.last.type !== 'closed') tail.add({ type: 'closed' });
    return { tail, wants: null, drawn: 0, timer: 0, due: 0, frame: 0 };
  }, []);
  const { tail } = own;
  const [, draw] = useState(0);
  if (own.wants !== filter) {
    own.wants = filter;
    // Events under a filter that was not understood would be taken for those that it wants.
    tail.want(filter.wrong.length > 0 ? () => false : filter.test);
  }
  useEffect(() => {
    const soon = () => {
      own.timer = 0;
      if (!own.frame) own.frame = requestAnimationFrame(take);
    };
    const wake = (due) => {
      if (own.frame || (own.timer && own.due <= due)) return;
      clearTimeout(own.timer);
      own.due = due;
      own.timer = setTimeout(soon, Math.max(0, due - Date.now()));
    };
    const take = () => {
      own.frame = 0;
      own.drawn = Date.now();
      tail.take(own.drawn);
      draw((n) => n + 1);
      // The figure of a second ends with it.
      if (tail.pace.all > 0 || tail.isCounting()) wake(own.drawn + 1000);
    };
    let begun = live.get() === 'live';
    const stop = listen((event) => {
      let heard = null;
      if (event.type === 'awake') {
        // Behind an event that the page has the stream goes on, or it says that it cannot. Not so in a tab that comes
        // back and hears another one.
        if (begun && !hasPlace() && tail.last?.type !== 'away') heard = { type: 'away' };
        begun = true;
      } else if (types.includes(event.type) || event.type === 'gap' || event.type === 'reset') heard = readEvent(event);
      if (heard && tail.add(heard)) wake(own.drawn + PACE);
    });
    wake(0);
    return () => {
      stop();
      clearTimeout(own.timer);
      cancelAnimationFrame(own.frame);
    };
  }, []);
  return {
    rows: tail.rows,
    part: tail.part,
    matched: tail.matched,
    pace: tail.pace,
    clear: () => {
      tail.clear();
      draw((n) => n + 1);
    },
  };
}

const lacksError = (row) => row.error === undefined && row.bad && row.type === 'settled' && Boolean(row.job);

/** The stream says how an attempt ended. The errors of those that are shown are read from the jobs, in turn. */
function useErrors(rows) {
  const own = useRef({ rows, asking: false, abort: new AbortController() }).current;
  const [, draw] = useState(0);
  own.rows = rows;
  const wanted = rows.some(lacksError);
  useEffect(() => {
    if (wanted && !own.asking) askErrors(own).then(() => own.abort.signal.aborted || draw((n) => n + 1));
  });
  useEffect(() => () => own.abort.abort(), []);
}

async function askErrors(own) {
  own.asking = true;
  await inLine();
  // The newest ones first: the list may move on before it is the turn of the others.
  const ids = new Set();
  const asked = [];
  for (const row of own.rows) {
    if (!lacksError(row) || (ids.size === ERRORS && !ids.has(row.job))) continue;
    ids.add(row.job);
    asked.push(row);
  }
  const { signal } = own.abort;
  try {
    if (ids.size > 0 && !signal.aborted) {
      const q = [...ids].map((id) => `id:${id}`).join(' ');
      const page = await get('/v1/jobs', { q, limit: ids.size }, signal);
      const found = new Map(page.data.map((job) => [job.id, job]));
      for (const row of asked) {
        // A job has its newest error alone, so an older attempt of the same job gets none.
        row.error = found.get(row.job)?.last_error ?? null;
        found.delete(row.job);
      }
    }
  } catch {
    await new Promise((done) => setTimeout(done, LATER));
  }
  own.asking = false;
}

/** Whether the beginning of the list is above the window. Then a new row would move those that are read. */
function useAway(box) {
  const [away, set] = useState(false);
  useEffect(() => {
    const look = () => set(box.current.getBoundingClientRect().top < 0);
    addEventListener('scroll', look, { passive: true });
    return () => removeEventListener('scroll', look);
  }, []);
  return away;
}

/** Whether some text of the list is selected. */
function useMarked(box) {
  const [marked, set] = useState(false);
  useEffect(() => {
    const look = () => {
      const selection = getSelection();
      set(!selection.isCollapsed && box.current.contains(selection.anchorNode));
    };
    document.addEventListener('selectionchange', look);
    return () => document.removeEventListener('selectionchange', look);
  }, []);
  return marked;
}

/** Space, where it means nothing else. */
function useSpace(act) {
  useEffect(() => {
    const key = (event) => {
      if (event.key !== ' ' || event.repeat || event.metaKey || event.ctrlKey || event.altKey || event.shiftKey) return;
      if (event.target.closest?.('input, textarea, select, button, summary, aside, dialog, [contenteditable]')) return;
      event.preventDefault();
      act();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
}

/** A filter without the words that jobs do not have. */
const ofJobs = (q) => withWord(withWord(q, 'event', null), 'verdict', null);

const changes = types
  .filter((type) => /^(queue|schedule|index|runner)_/.test(type) && type !== 'schedule_ticked')
  .concat('reaped', 'rebuilt')
  .join('|');
const choices = [
  ['All', {}],
  ['Accepted', { event: 'accepted' }],
  ['Started', { event: 'started' }],
  ['Settled', { event: 'settled' }],
  ['Failures', { verdict: failures.join('|') }],
  ['Changes', { event: changes }],
];

/** The most wanted filters of what happened. The other words stay. */
function Choices({ q }) {
  const to = ({ event = null, verdict = null }) =>
    url('/tail', { q: withWord(withWord(q, 'event', event), 'verdict', verdict) });
  const is = ({ event = null, verdict = null }) => wordOf(q, 'event') === event && wordOf(q, 'verdict') === verdict;
  return html`<nav class="tabs" aria-label="What happened">
    ${choices.map(
      ([name, words]) =>
        html`<a key=${name} href=${to(words)} aria-current=${is(words) ? 'page' : undefined}>${name}</a>`,
    )}
  </nav>`;
}

/** What the filter asks for and events do not have. */
const Wrong = ({ filter }) => html`<div class="note bad" role="alert">
  ${filter.wrong.map((one, i) => html`<p key=${i}>${one}.</p>`)}
  <p>
    The Explorer finds jobs by all of their facts.${' '}
    <a href=${url('/tail', { q: filter.rest })}>Leave these words out</a>
  </p>
</div>`;

/**
 * How many events have come while the list stands still. It is over the list, or at the bottom of the window when the
 * list is longer: the mouse that shows them must not come to a row by that, because then the list would stand still.
 */
const Fresh = ({ fresh, show }) => html`<span class="fresh">
  <b class="num">${count(fresh)} new</b>${' '}
  <button type="button" class="small" onClick=${show}>Show</button>
</span>`;

/** Whether the list follows, and how much of what happens it shows. */
function State({ state, paused, pace }) {
  const { all, shown } = pace;
  const happens =
    shown < all
      ? html`showing <b class="num">${count(shown)}</b> of <b class="num">${count(all)}</b> events a second, failures
          first`
      : all > 0
        ? html`<b class="num">${count(all)}</b> ${all === 1 ? 'event' : 'events'} a second`
        : state === 'live'
          ? 'waiting for events'
          : 'connecting to the stream of events';
  return html`<span class="soft">${paused && html`<b class="warn">Paused</b>, `}${happens}</span>`;
}

function None({ q, state, wrong }) {
  if (wrong) return html`<${Empty} title="Nothing is shown">The filter has words that events do not have.</${Empty}>`;
  return html`<${Empty} title=${q ? 'No event matches yet' : 'Nothing has happened yet'}>
    ${state === 'live' ? 'Events appear here as they happen' : 'The stream of events is being opened'}: jobs that are
    accepted, started, settled, cancelled, and changes of queues, schedules and runners.
  </${Empty}>`;
}

/** What is missing at a place of the list. */
function gapText({ type, reason, count: missing }) {
  const events = missing ? plural(missing, 'event') : 'Events';
  const are = missing === 1 ? 'is' : 'are';
  if (type === 'thinned') return `${plural(missing, 'more event')} here`;
  if (type === 'closed') return 'This screen was closed here';
  if (type === 'away') return 'Events may be missing here: the stream was away';
  if (type === 'reset') return 'Events are missing here: the stream was away for too long';
  if (reason === 'redis') return 'Redis does not answer: other runners are not heard from here on';
  if (reason === 'lost') return 'Events may be missing here: Redis or MySQL failed, or a runner stood still';
  if (reason === 'behind') return `${events} ${are} missing here: this browser read too slowly`;
  return `${events} ${are} missing here: more happened at once than a runner tells`;
}

const Gap = ({ row }) => html`<tr class=${cls('gap', row.type !== 'thinned' && row.type !== 'closed' && 'warn')}>
  <td colspan="7">${gapText(row)}</td>
</tr>`;

/** The screen of what an event is about when it is no job: its name and its address. */
function placeOf({ type, queue, schedule }) {
  if (schedule) return ['schedule', type === 'schedule_deleted' ? '/schedules' : `/schedules/${seg(schedule)}`];
  if (queue) return ['queue', `/queues/${seg(queue)}`];
  return ['rebuilt', 'index_health'].includes(type) ? ['index', '/index'] : ['runners', '/runners'];
}

const looks = {
  accepted: 'waiting',
  started: 'executing',
  deferred: 'executing',
  lease_lost: 'bad',
  cancel_requested: 'cancelling',
  cancelled: 'cancelled',
  reaped: 'lost',
  queue_paused: 'paused',
  queue_resumed: 'good',
  schedule_paused: 'paused',
  schedule_resumed: 'good',
  runner_stopping: 'warn',
};

/** An event. It does not change but for its error, so it is drawn once, however often the list is. */
function Row({ row, error, current, href, mark, open }) {
  return useMemo(() => {
    const { type, at, job, queue, verdict, health, runner } = row;
    const settled = type === 'settled';
    const time = new Date(at);
    const name = row.kind ?? (job ? null : (row.schedule ?? queue));
    return html`<tr
      data-row
      data-seq=${row.seq}
      data-current=${current || undefined}
      onClick=${(event) => {
        if (event.target.closest('[data-open]')) mark(row);
        else if (job && !event.target.closest('a, button') && !String(getSelection())) open(row);
      }}
    >
      <td class="c-when">
        <time class="num nowrap" datetime=${time.toISOString()} title=${utc(at)}>${utc(at).slice(11, 23)}</time>
      </td>
      <td class="c-state">
        <${Badge} is=${settled ? verdict : (health ?? looks[type])}>
          ${(settled ? (verdict ?? type) : type).replaceAll('_', ' ')}
        </${Badge}>
      </td>
      <td class="c-kind"><span class="clip thin bold" title=${name}>${name ?? '–'}</span></td>
      <td class="c-job">
        ${
          job
            ? html`<a class="mono nowrap" data-open href=${href} title=${job}>…${job.slice(-8)}</a>`
            : html`<a href=${href}>${placeOf(row)[0]}</a>`
        }
      </td>
      <td class="c-queue">
        ${queue && html`<a class="clip thin" href=${`/queues/${seg(queue)}`} title=${queue}>${queue}</a>`}
      </td>
      <td class="c-about"><${About} row=${row} error=${error} /></td>
      <td class="c-runner"><span class="clip thin mono" title=${runner}>${runner}</span></td>
    </tr>`;
  }, [row, error, current, href]);
}

function About({ row, error }) {
  const { type, bad, verdict, state, number, schedule, cause, count: many, health } = row;
  if (type === 'settled') {
    if (verdict === 'succeeded') return null;
    const text = `${state ? `now ${state}` : ''}${state && error ? ': ' : ''}${error ?? ''}`;
    const title = error ? `The newest error of the job: ${error}` : text;
    return html`<span class=${cls('clip', bad && 'bad')} title=${title}>${text}</span>`;
  }
  if (type === 'schedule_ticked')
    return html`<span class="clip">
      ${cause ? `skipped ${plural(many ?? 1, 'tick')}: ${cause.replaceAll('_', ' ')}` : 'fired'}${' '}
      by <a href=${`/schedules/${seg(schedule)}`}>${schedule}</a>
    </span>`;
  const text = {
    started: number && `attempt ${number}`,
    deferred: 'left to another system, which finishes it',
    lease_lost: 'finished after its lease was lost',
    cancel_requested: 'asked to stop',
    rescheduled: 'has another due time or priority',
    queue_changed: 'has another priority or limit',
    schedule_put: 'is new or has another definition',
    reaped: `${plural(many ?? 0, 'attempt')} of dead runners`,
    rebuilt: `${plural(many ?? 0, 'job')} put back`,
    index_health: `Redis is ${health}`,
    runner_stopping: 'finishes or gives back its work',
  }[type];
  return text ? html`<span class="clip">${text}</span>` : null;
}
