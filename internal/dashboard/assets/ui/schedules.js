// Schedules: their words, what is done to them, and the form that makes and changes them.

import { call, dryRun, Problem, post, seg, send, textOf } from '../core/api.js';
import { html, useEffect, useMemo, useState } from '../core/dom.js';
import { backoff } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Badge, Field, Head, JobLink, Panel, Segment, Skeleton, Time, Trouble, tell, WithJobs } from './base.js';
import { ask, InputField } from './dialog.js';
import { blank, elsewhere, parseWithPayload, SchemaForm } from './schema-form.js';

/** What each policy means, in a line. */
export const policies = {
  dst: {
    once:
      'A time that the turn of the clocks leaves out runs right after the gap; ' +
      'one that comes twice runs the first time.',
    skip: 'A time that the turn of the clocks leaves out, or brings twice, does not run that day.',
    both:
      'A time that the turn of the clocks leaves out runs right after the gap; ' +
      'one that comes twice runs both times.',
  },
  misfire: {
    one: 'Of the ticks that no runner was there for, the latest fires when one is back.',
    skip: 'Ticks that no runner was there for do not fire.',
    all: 'Each tick that no runner was there for fires when one is back, at most the latest thousand.',
  },
  overlap: {
    allow: 'Fires also while its previous job has not ended.',
    skip: 'Does not fire while its previous job has not ended.',
    replace: 'Cancels its previous job if it waits, asks it to stop if it runs, and fires.',
  },
};

export const Outcome = ({ tick }) =>
  html`<${Badge} is=${tick.outcome} title=${tick.reason ?? ''}>
    ${tick.cause ? `skipped: ${tick.cause}` : tick.manual ? 'fired by hand' : tick.outcome}
  </${Badge}>`;

export function pause({ name }) {
  return ask({
    title: `Pause the schedule ${name}?`,
    action: 'Pause',
    danger: true,
    values: { reason: '' },
    body: ({ values, set }) => html`
      <p>
        Its ticks pass without firing, each with a line among its ticks. What was due then does not fire later. Jobs
        that are there run on.
      </p>
      <${InputField}
        label="Reason"
        id="pause-reason"
        name="reason"
        hint="Shown to other operators"
        maxlength="1000"
        values=${values}
        set=${set}
      />
    `,
    submit: async ({ reason }) => {
      await post(`/v1/schedules/${seg(name)}/pause`, reason.trim() ? { reason } : {});
      tell(`${name} is paused`);
      return true;
    },
  });
}

export function resume({ name, paused }) {
  return ask({
    title: `Resume the schedule ${name}?`,
    action: 'Resume',
    body: () =>
      html`
        <p>It ticks again. What was due while it was paused does not fire.</p>
        ${paused?.reason && html`<p class="wrap soft">It was paused because: ${paused.reason}</p>`}
      `,
    submit: async () => {
      await post(`/v1/schedules/${seg(name)}/resume`);
      tell(`${name} ticks again`);
      return true;
    },
  });
}

/** Fire now. If the previous job is in the way, ask what should become of it. */
export async function trigger({ name, overlap, paused }) {
  const path = `/v1/schedules/${seg(name)}/trigger`;
  const fired = (job) => {
    tell(`${name} fired`, 'good', { href: `/jobs/${job.id}`, text: 'See the job' });
    return job;
  };
  const answer = await ask({
    title: `Trigger ${name} now?`,
    action: 'Trigger',
    body: () =>
      html`
        <p>
          A job is made at once${paused ? ', although the schedule is paused' : ''}. Its own ticks come as they would.
        </p>
        <p class="soft">While its previous job has not ended: ${policies.overlap[overlap]}</p>
      `,
    submit: (_, once) =>
      once(path).then(fired, (problem) => {
        if (problem.code !== 'previous_unfinished') throw problem;
        return problem;
      }),
  });
  if (!(answer instanceof Problem)) return answer;
  return ask({
    title: 'Its previous job has not ended',
    action: 'Trigger all the same',
    values: { overlap: 'allow' },
    body: ({ values, set }) => html`
      <p>
        The job <${JobLink} id=${answer.body.holder} away /> is <${Badge} is=${answer.body.current_state} />. The
        schedule would not fire now.
      </p>
      ${[
        ['allow', 'Fire beside it'],
        ['replace', 'Replace it: cancel it if it waits, ask it to stop if it runs, and fire'],
      ].map(
        ([word, text]) => html`<label class="row" key=${word}>
          <input
            type="radio"
            name="overlap"
            value=${word}
            checked=${values.overlap === word}
            onChange=${() => set({ overlap: word })}
          />${' '}
          ${text}
        </label>`,
      )}
    `,
    submit: (values, once) => once(`${path}?overlap=${values.overlap}`).then(fired),
  });
}

const day = new Intl.DateTimeFormat('en-GB', { weekday: 'short', timeZone: 'UTC' });
/** The parts of `2026-11-22T02:30:00.000+01:00`. */
function wall(written) {
  const [, date, time, offset] = /^(\d+-\d+-\d+)T(\d+:\d+:\d+)(?:\.\d+)?(.*)$/.exec(written) ?? [null, written, '', ''];
  return { date, time: time.replace(/:00$/, ''), offset };
}
const weekday = (date) => (/^\d+-\d+-\d+$/.test(date) ? day.format(new Date(`${date}T00:00:00Z`)) : '');

/** Runs to come, on the clocks of the schedule's zone and in UTC. */
export function Runs({ runs, zone }) {
  if (!runs.length) return html`<p class="faint body">It never runs again.</p>`;
  const abroad = zone !== 'UTC';
  const walls = runs.map((run) => wall(run.local));
  return html`<table class="cards">
    <thead>
      <tr>${abroad && html`<th>${zone}</th>`}<th>UTC</th><th class="right">From now</th></tr>
    </thead>
    <tbody>
      ${runs.map((run, i) => {
        const { date, time, offset } = walls[i];
        const world = wall(run.at);
        return html`<tr key=${run.at}>
          ${
            abroad &&
            html`<td data-label=${zone} class="num">
              <span title=${`Here: ${new Date(run.at).toLocaleString()}`}>
                <span class="nowrap">${weekday(date)} ${date}</span>${' '}
                <span class="nowrap"><b>${time}</b> <span class="faint">${offset}</span></span>
                ${
                  i > 0 &&
                  offset !== walls[i - 1].offset &&
                  html` <${Badge} is="warn" title="Between this run and the one before">clocks turned</${Badge}>`
                }
              </span>
            </td>`
          }
          <td data-label="UTC" class="num">
            <span>
              ${
                (!abroad || world.date !== date) &&
                html`<span class="nowrap">${weekday(world.date)} ${world.date}</span> `
              }
              ${world.time}
            </span>
          </td>
          <td data-label="From now" class="right"><${Time} at=${run.at} /></td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}

/** Why a tick made no job; the job that it speaks of is a link. */
export const Why = ({ tick }) => html`<${WithJobs} text=${tick.reason} brief />`;

const units = [
  [86400000, 'days'],
  [3600000, 'hours'],
  [60000, 'minutes'],
  [1000, 'seconds'],
  [1, 'milliseconds'],
];
const examples = [
  ['*/5 * * * *', 'every 5 minutes'],
  ['0 * * * *', 'every hour'],
  ['30 2 * * *', 'each night'],
  ['0 9 * * 1-5', 'workdays'],
  ['0 0 1 * *', 'each month'],
];
const zones = () => ['UTC', ...(Intl.supportedValuesOf?.('timeZone') ?? []).filter((zone) => zone !== 'UTC')];
const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
const local = (at) => new Date(Date.parse(at) - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 19);
const text = (value) => String(value ?? '');

/** A schedule as its form holds it. */
function valuesOf(s) {
  const [unit] = units.find(([ms]) => s?.every_ms && s.every_ms % ms === 0) ?? units[2];
  return {
    name: s?.name ?? '',
    mode: s?.every_ms ? 'every' : 'cron',
    cron: s?.cron ?? '',
    zone: s?.zone ?? 'UTC',
    dst: s?.dst ?? 'once',
    every: s?.every_ms ? String(s.every_ms / unit) : '10',
    unit: String(unit),
    anchor: s?.anchor ? local(s.anchor) : '',
    misfire: s?.misfire ?? 'one',
    grace: text((s?.misfire_grace_ms ?? 15000) / 1000),
    overlap: s?.overlap ?? 'allow',
    kind: s?.kind ?? '',
    payload: s?.payload ?? {},
    queue: text(s?.queue),
    priority: text(s?.priority ?? 5),
    attempts: text(s?.max_attempts),
    timeout: s?.timeout_ms ? text(s.timeout_ms / 1000) : '',
    retry: s?.retry ?? null,
  };
}

function timesOf(v, s) {
  if (v.mode === 'cron') return { cron: v.cron.trim(), zone: v.zone.trim(), dst: v.dst };
  const body = { every_ms: Math.round(Number(v.every) * Number(v.unit)), zone: v.zone.trim() };
  // The field shows whole seconds: a value that the operator left alone goes back as it came.
  if (v.anchor) body.anchor = s?.anchor && v.anchor === local(s.anchor) ? s.anchor : new Date(v.anchor).toISOString();
  return body;
}

function bodyOf(v, s) {
  const body = {
    ...timesOf(v, s),
    misfire: v.misfire,
    misfire_grace_ms: Math.round(Number(v.grace) * 1000),
    overlap: v.overlap,
    kind: v.kind,
    payload: v.payload ?? {},
    priority: Number(v.priority),
  };
  // Without one, the jobs go to the queue of their kind.
  if (v.queue.trim()) body.queue = v.queue.trim();
  if (v.attempts) body.max_attempts = Number(v.attempts);
  if (v.timeout) body.timeout_ms = Math.round(Number(v.timeout) * 1000);
  // What is left out of it is the kind's.
  if (v.retry && Object.keys(v.retry).length > 0) body.retry = v.retry;
  // The form has no fields for these: they stay as they were.
  for (const field of ['order_key', 'on_failure', 'limit_key', 'expires_in_ms', 'tags'])
    if (s?.[field]) body[field] = s[field];
  return body;
}

/** The words and next runs of these times, a moment after the last key. */
function usePreview(times) {
  const asked = JSON.stringify(times);
  const [state, set] = useState({ busy: true });
  useEffect(() => {
    let gone = false;
    set((old) => ({ ...old, busy: true }));
    const look = () =>
      times.cron === ''
        ? set({})
        : dryRun('/v1/schedules/preview', times).then(
            (answer) => gone || set({ answer, zone: times.zone }),
            (error) => gone || set({ error }),
          );
    const timer = setTimeout(look, 250);
    // Runs of short intervals pass while the operator fills in the rest.
    const again = setInterval(() => document.hidden || look(), 15000);
    return () => {
      gone = true;
      clearTimeout(timer);
      clearInterval(again);
    };
  }, [asked]);
  return state;
}

function Preview({ preview, asked }) {
  const { answer, zone, error, busy } = preview;
  if (answer)
    return html`<div class=${busy ? 'stack tight faint' : 'stack tight'} aria-live="polite" data-preview>
      <p class="bold wrap">${answer.description}</p>
      <${Runs} runs=${answer.next_runs} zone=${zone} />
    </div>`;
  if (error)
    return html`<p class="bad" data-preview>
      ${error.errors?.length ? 'That gives no time yet: see the field.' : error.message}
    </p>`;
  return asked
    ? html`<${Skeleton} />`
    : html`<p class="faint" data-preview>Say when it should run, and its next five runs are shown here.</p>`;
}

async function exactly(path, signal) {
  const response = await send('GET', path, { signal });
  const answer = await textOf(response, signal);
  if (!response.ok) throw new Problem(response.status, JSON.parse(answer));
  return { schedule: parseWithPayload(answer), tag: response.headers.get('etag') };
}

/**
 * Change the schedule `name`, or make one if there is no name. `done` gets the name, or nothing when it was given up.
 */
export function ScheduleForm({ name, done }) {
  const read = useQuery(name ? `/v1/schedules/${seg(name)}` : null, { read: exactly });
  const kinds = useQuery('/v1/kinds');
  if (read.error || kinds.error)
    return html`<${Trouble} error=${read.error ?? kinds.error} retry=${read.error ? read.reload : kinds.reload} />`;
  if (!kinds.data || (name && !read.data)) return html`<${Skeleton} />`;
  return html`
    <${Form} key=${read.data?.tag} seen=${read.data} kinds=${kinds.data.data} done=${done} again=${read.reload} />
  `;
}

function Form({ seen, kinds, done, again }) {
  const s = seen?.schedule;
  const [v, setAll] = useState(() => valuesOf(s));
  const [state, setState] = useState({ busy: false, error: null });
  const set = (change) => setAll((old) => ({ ...old, ...change }));
  const preview = usePreview(timesOf(v, s));
  const queues = useQuery('/v1/queues');
  const names = useMemo(zones, []);
  const kind = kinds.find((known) => known.kind === v.kind);
  const errors = [...(preview.error?.errors ?? []), ...(state.error?.errors ?? [])];
  const wrong = (field) => errors.find((error) => error.pointer.replace(/^\//, '') === field)?.detail;
  const fields = [
    'cron',
    'every_ms',
    'zone',
    'dst',
    'anchor',
    'misfire',
    'misfire_grace_ms',
    'overlap',
    'kind',
    'queue',
    'priority',
    'max_attempts',
    'timeout_ms',
    'name',
  ];
  const left = elsewhere(state.error?.errors ?? []).filter(
    (error) => !fields.includes(error.pointer.replace(/^\//, '')),
  );
  const problem =
    state.error &&
    (state.error.status === 412
      ? {
          message: s
            ? 'Another operator changed it since you opened this form. Nothing was saved.'
            : `There is a schedule ${v.name} already. Nothing was changed.`,
        }
      : { message: state.error.message, errors: left });
  const choose = (word) =>
    set({ kind: word, payload: blank(kinds.find((known) => known.kind === word)?.schema) ?? {} });
  const input = (
    field,
    label,
    props,
    hint,
    at = field,
  ) => html`<${Field} label=${label} id=${`s-${field}`} hint=${hint} wrong=${wrong(at)}>
    <input
      id=${`s-${field}`}
      value=${v[field]}
      aria-describedby=${hint ? `s-${field}-hint` : undefined}
      aria-invalid=${wrong(at) ? 'true' : undefined}
      autocomplete="off"
      spellcheck=${false}
      onInput=${(e) => set({ [field]: e.target.value })}
      ...${props}
    />
  </${Field}>`;
  const policy = (
    field,
    label,
  ) => html`<${Field} label=${label} id=${`s-${field}`} hint=${policies[field][v[field]]} wrong=${wrong(field)}>
    <select
      id=${`s-${field}`}
      aria-describedby=${`s-${field}-hint`}
      value=${v[field]}
      onChange=${(e) => set({ [field]: e.target.value })}
    >
      ${Object.keys(policies[field]).map((word) => html`<option key=${word} value=${word}>${word}</option>`)}
    </select>
  </${Field}>`;
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      const made = await call('PUT', `/v1/schedules/${seg(v.name.trim())}`, {
        body: bodyOf(v, s),
        headers: s ? { 'if-match': seen.tag } : { 'if-none-match': '*' },
      });
      tell(s ? `${made.name} was changed` : `${made.name} was made`);
      done(made.name);
    } catch (error) {
      setState({ busy: false, error });
      requestAnimationFrame(() =>
        document
          .querySelector('#schedule-form [aria-invalid=true], #schedule-form [role=alert]')
          ?.scrollIntoView({ block: 'center' }),
      );
    }
  };
  return html`<form id="schedule-form" class="stack" onSubmit=${submit}>
    <${Head}
      title=${s ? html`<span class="wrap">Change ${s.name}</span>` : 'New schedule'}
      sub="Makes a job by the clock. Every tick fires exactly once, however many runners there are."
    ></${Head}>
    ${problem && html`<${Trouble} error=${problem} of="change" />`}
    ${
      state.error?.status === 412 &&
      s &&
      html`<p><button type="button" onClick=${again}>Show it as it is now, and drop my changes</button></p>`
    }
    <${Panel} title="When">
      <div class="grid wide">
        <div class="stack">
          ${
            !s &&
            html`<div class="fields">
              ${input(
                'name',
                'Name',
                {
                  required: true,
                  maxlength: 64,
                  pattern: '[a-z0-9][a-z0-9_.\\-]*',
                  placeholder: 'nightly-report',
                  autofocus: true,
                },
                'Small letters, digits, _ . and -',
              )}
            </div>`
          }
          <div>
            <${Segment}
              label="How the times are given"
              of=${[['cron', 'By the clock (cron)'], ['every', 'At an interval']]}
              is=${v.mode}
              on=${(mode) => set({ mode })}
            />
          </div>
          ${
            v.mode === 'cron'
              ? html`
                <div class="fields">
                  ${input(
                    'cron',
                    'Cron expression',
                    { required: true, maxlength: 255, placeholder: '30 2 * * *', class: 'mono' },
                    'minute hour day month weekday; with six fields seconds come first',
                  )}
                  ${input(
                    'zone',
                    'Time zone',
                    { required: true, list: 's-zones', maxlength: 64 },
                    here && here !== v.zone
                      ? html`
                        Whose clocks. Yours:${' '}
                        <button type="button" class="quiet small" onClick=${() => set({ zone: here })}>${here}</button>
                      `
                      : 'Whose clocks',
                  )}
                  ${policy('dst', 'When clocks are turned')}
                </div>
                <div class="row tight">
                  <span class="faint">For example:</span>
                  ${examples.map(
                    ([cron, what]) => html`
                      <button key=${cron} type="button" class="small" title=${cron} onClick=${() => set({ cron })}>
                        ${what}
                      </button>
                    `,
                  )}
                </div>
                <p class="faint">
                  An expression that runs in every hour names no hour: it goes by the passing of time, whatever clocks
                  are turned.
                </p>
              `
              : html`<div class="fields">
                ${input(
                  'every',
                  'Every',
                  { required: true, type: 'number', min: 0.001, step: 'any' },
                  null,
                  'every_ms',
                )}
                <${Field} label="Unit" id="s-unit">
                  <select id="s-unit" value=${v.unit} onChange=${(e) => set({ unit: e.target.value })}>
                    ${units.map(([ms, word]) => html`<option key=${ms} value=${String(ms)}>${word}</option>`)}
                  </select>
                </${Field}>
                ${input(
                  'anchor',
                  'Counted from (your local time)',
                  { type: 'datetime-local', step: 1 },
                  'A tick from which all others are counted. Empty: the moment it was made.',
                )}
                ${input(
                  'zone',
                  'Shown in the time zone',
                  { required: true, list: 's-zones', maxlength: 64 },
                  'An interval goes by no wall clock: its zone is only for reading',
                )}
              </div>`
          }
          <datalist id="s-zones">${names.map((zone) => html`<option key=${zone} value=${zone} />`)}</datalist>
        </div>
        <div class="stack tight">
          <h3>Next runs</h3>
          <${Preview} preview=${preview} asked=${v.mode === 'every' || v.cron} />
        </div>
      </div>
    </${Panel}>
    <${Panel} title="What">
      <div class="stack">
        <div class="fields">
          <${Field} label="Kind" id="s-kind" wrong=${wrong('kind')} hint=${kind?.schema.description}>
            <select id="s-kind" required value=${v.kind} onChange=${(e) => choose(e.target.value)}>
              <option value="">Choose a kind</option>
              ${v.kind && !kind && html`<option value=${v.kind}>${v.kind} (not known here)</option>`}
              ${kinds.map((known) => html`<option key=${known.kind} value=${known.kind}>${known.kind}</option>`)}
            </select>
          </${Field}>
          ${input(
            'queue',
            'Queue',
            { maxlength: 64, list: 's-queues', placeholder: kind?.queue ?? 'default' },
            'Empty: that of its kind',
          )}
          ${input('priority', 'Priority', { required: true, type: 'number', min: 0, max: 9 }, '0 runs first, 9 last')}
        </div>
        <datalist id="s-queues">
          ${queues.data?.data.slice(0, 200).map((queue) => html`<option key=${queue.name} value=${queue.name} />`)}
        </datalist>
        ${
          v.kind &&
          html`
            <${SchemaForm}
              key=${v.kind}
              schema=${kind?.schema ?? {}}
              value=${v.payload}
              id="s-payload"
              errors=${state.error?.errors ?? []}
              onChange=${(payload) => set({ payload })}
            />
          `
        }
      </div>
    </${Panel}>
    <${Panel} title="When things go wrong">
      <div class="stack">
        <div class="fields">
          ${policy('overlap', 'Overlap')}
          ${policy('misfire', 'Missed ticks')}
          ${input(
            'grace',
            'Missed after, seconds',
            { required: true, type: 'number', min: 0, max: 86400, step: 'any' },
            'A tick that fires within this time is late, not missed',
            'misfire_grace_ms',
          )}
          ${input(
            'attempts',
            'Attempts',
            { type: 'number', min: 1, max: 100, placeholder: kind ? String(kind.max_attempts) : '' },
            'Empty: as its kind says',
            'max_attempts',
          )}
          ${input(
            'timeout',
            'Time limit, seconds',
            {
              type: 'number',
              min: 0.001,
              max: 86400,
              step: 'any',
              placeholder: kind ? String(kind.timeout_ms / 1000) : '',
            },
            'Of one attempt. Empty: as its kind says',
            'timeout_ms',
          )}
        </div>
        <label class="row">
          <input
            type="checkbox"
            checked=${Boolean(v.retry)}
            onChange=${(e) =>
              set({
                retry: e.target.checked
                  ? { ...(kind?.retry ?? { base_ms: 1000, factor: 2, cap_ms: 60000, jitter: 0.1 }) }
                  : null,
              })}
          />${' '}
          Its own backoff between attempts
        </label>
        ${
          v.retry &&
          (v.retry.delays_ms
            ? html`<p class="soft">
                ${backoff(v.retry)}${' '}
                <span class="faint">(A table of delays stays as it is here. The API changes it.)</span>
              </p>`
            : html`<div class="fields">
              ${[
                ['base_ms', 'First delay, ms', 1, 86400000],
                ['factor', 'Growth', 1, 100],
                ['cap_ms', 'Longest delay, ms', 1, 604800000],
                ['jitter', 'Jitter, as a share', 0, 1],
              ].map(
                ([field, label, min, max]) => html`
                  <${Field} key=${field} label=${label} id=${`s-${field}`} wrong=${wrong(`retry/${field}`)}>
                    <input
                      id=${`s-${field}`}
                      type="number"
                      min=${min}
                      max=${max}
                      step=${field.endsWith('_ms') ? 1 : 'any'}
                      placeholder=${kind?.retry[field] ?? ''}
                      value=${v.retry[field]}
                      onInput=${(e) => {
                        const { [field]: _, ...rest } = v.retry;
                        const given = e.target.valueAsNumber;
                        set({ retry: Number.isNaN(given) ? rest : { ...rest, [field]: given } });
                      }}
                    />
                  </${Field}>
                `,
              )}
            </div>`)
        }
      </div>
    </${Panel}>
    <div class="row end">
      <button type="button" onClick=${() => done()}>Cancel</button>
      <button type="submit" class="primary" disabled=${state.busy}>
        ${state.busy ? 'Saving…' : s ? 'Save' : 'Make the schedule'}
      </button>
    </div>
  </form>`;
}
