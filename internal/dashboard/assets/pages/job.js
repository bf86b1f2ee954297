// One job: why it is where it is, what happened to it, and what can be done.

import { call, callTagged, readFile, readText, seg, url } from '../core/api.js';
import { html, useEffect, useState } from '../core/dom.js';
import { backoff, count, plural, span, utc } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { go, goOn } from '../core/route.js';
import { actionWords } from '../ui/acts.js';
import {
  Allowed,
  Badge,
  Clock,
  Copy,
  Empty,
  Head,
  JobLink,
  Panel,
  Skeleton,
  Time,
  Trouble,
  tell,
  tellProblem,
  useMay,
  useNow,
  WithJobs,
} from '../ui/base.js';
import { JobList, NamedBatch, useJobs } from '../ui/batches.js';
import { ask, confirm, InputField } from '../ui/dialog.js';
import { quoted } from '../ui/filter.js';
import { Json, useSchema } from '../ui/json.js';
import { Waterfall } from '../ui/waterfall.js';

const waits = (job) => job.state === 'waiting' || job.state === 'retrying';
const over = (job) => ['completed', 'failed', 'cancelled'].includes(job.state);

export default function Job({ params: [id] }) {
  return html`<${JobView} id=${id} />`;
}

/** The heading of a job beside a list, whose screen has a heading of its own. */
const SmallHead = ({ title, sub, children }) => html`<div class="stack tight">
  <h2>${title}</h2>
  <div>${sub}</div>
  ${children}
</div>`;

/** A job. `aside` is for a place beside the list that it was opened from; `gone` is called when it was deleted. */
export function JobView({ id, aside, gone }) {
  const Title = aside ? SmallHead : Head;
  const path = `/v1/jobs/${seg(id)}`;
  const mine = (event) => event.data?.includes(id);
  const job = useQuery(path, { on: mine, every: 5000, pace: 300 });
  const open = job.data && !over(job.data);
  const why = useQuery(job.data ? `${path}/explain` : null, { on: mine, every: open ? 5000 : 0, pace: 500 });
  const schema = useSchema(job.data?.kind);
  const [acted, act] = useState(0);
  if (job.error?.status === 404 || job.error?.status === 422) {
    return html`
      <${Title} title="Job" />
      <${Empty} title="There is no such job">
        <span class="mono wrap">${id}</span><br />It may have been deleted, or its retention may have ended.${' '}
        <a href="/jobs">All jobs</a>
      </${Empty}>
    `;
  }
  if (!job.data) return job.error ? html`<${Trouble} error=${job.error} retry=${job.reload} />` : html`<${Skeleton} />`;
  const it = job.data;
  const limited = has(why.data, 'limit_reached', 'breaker_open');
  const behind = it.held && (limited ? 'limit' : it.order_key ? 'key' : it.after?.length ? 'parents' : 'limit');
  return html`
    <${Title}
      title=${html`${it.kind} <${Badge} is=${it.state} />`}
      sub=${html`<span class="row">
          <span class="mono wrap">${it.id}</span>
          <${Copy} text=${it.id} label="Copy the id" />
        </span>`}
    >
      <${Actions}
        job=${it}
        path=${path}
        gone=${gone ?? (() => goOn('/jobs'))}
        reload=${() => {
          job.reload();
          why.reload();
          act((n) => n + 1);
        }}
      />
    </${Title}>
    <${Trouble} error=${job.error} retry=${job.reload} />
    <${Explained} why=${why} job=${it} />
    <${Waterfall} path=${path} open=${Boolean(open)} mine=${mine} attempts=${it.attempts?.length ?? 0} />
    ${
      it.progress &&
      it.state === 'executing' &&
      html`<${Panel} title="Progress">
        <div class="row apart">
          <span>${it.progress.note ?? ''}</span>
          <b class="num">${Math.round(it.progress.percent)} %</b>
        </div>
        <progress max="100" value=${it.progress.percent} aria-label="Progress"></progress>
      </${Panel}>`
    }
    <div class="grid wide">
      <div class="stack">
        <${Panel} title="Attempts" side=${html`<span class="soft num">${it.attempt} of ${it.max_attempts} used</span>`}>
          <${Attempts} job=${it} path=${path} />
        </${Panel}>
        <${Panel} title="Payload"><${Json} value=${it.payload} schema=${schema} label="payload" /></${Panel}>
        ${
          it.checkpoint &&
          html`<${Panel}
            title="Checkpoint"
            side=${html`<span class="soft">saved <${Time} at=${it.checkpoint.saved_at} /></span>`}
          >
            <${Json} value=${it.checkpoint.content} label="checkpoint" />
          </${Panel}>`
        }
        ${
          it.state === 'completed' &&
          html`<${Panel} title="Result" side=${html`<${Report} of=${it.result} />`}>
            ${
              it.result === null
                ? html`<p class="faint">The handler returned nothing.</p>`
                : html`<${Json} value=${it.result} label="result" />`
            }
          </${Panel}>`
        }
      </div>
      <div class="stack">
        <${Panel} title="Timeline"><${Timeline} job=${it} behind=${behind} /></${Panel}>
        ${it.after?.length > 0 && html`<${Parents} job=${it} />`}
        <${Children} path=${path} />
        <${Panel} title="Details"><${Facts} job=${it} /></${Panel}>
        <${Done} id=${it.id} acted=${acted} />
      </div>
    </div>
  `;
}

/** The file that a report made. A plain link would ask for it without the API key. */
function Report({ of }) {
  const [busy, set] = useState(false);
  if (typeof of?.file !== 'string' || of.url !== `/v1/reports/${of.file}`) return null;
  const save = async () => {
    set(true);
    try {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(await readFile(of.url));
      link.download = of.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (problem) {
      tellProblem(problem);
    }
    set(false);
  };
  return html`<button type="button" class="small" disabled=${busy} onClick=${save}>
    ${busy ? 'Downloading…' : 'Download the report'}
  </button>`;
}

const has = (explanation, ...codes) => explanation?.reasons.some((reason) => codes.includes(reason.code));

function Explained({ why, job }) {
  const title = over(job) ? 'Outcome' : job.state === 'executing' ? 'Now' : 'Why it does not run';
  if (!why.data)
    return why.error
      ? html`<${Trouble} error=${why.error} />`
      : html`<div class="note" aria-busy="true"><b>${title}</b><p>${'\u00a0'}</p></div>`;
  const bad = [
    'queue_paused',
    'no_runner',
    'queue_not_served',
    'kind_unknown',
    'runners_draining',
    'overdue',
    'lease_over',
  ];
  const worst = has(why.data, ...bad, 'limit_reached', 'breaker_open')
    ? 'warn'
    : job.state === 'failed'
      ? 'bad'
      : job.state === 'completed'
        ? 'good'
        : '';
  return html`<div class=${`note ${worst}`} id="explain">
    <b>${title}</b>
    ${
      why.data.reasons.length === 1
        ? html`<p class="wrap"><${Reason} of=${why.data.reasons[0]} /></p>`
        : html`<ol class="wrap">
          ${why.data.reasons.map((reason) => html`<li key=${reason.code}><${Reason} of=${reason} /></li>`)}
        </ol>`
    }
    ${
      job.dead_letter?.replayed_as &&
      html`<p>Replayed: the job <${JobLink} id=${job.dead_letter.replayed_as} /> does its work now.</p>`
    }
    ${
      has(why.data, 'limit_reached', 'breaker_open') &&
      html`<p class="row"><${ToLimit} reasons=${why.data.reasons} /> <${SameKey} job=${job} /></p>`
    }
    ${
      has(why.data, 'queue_paused') && html`<p><a href=${`/queues/${seg(job.queue)}`}>To the queue ${job.queue}</a></p>`
    }
    ${
      has(why.data, 'no_runner', 'queue_not_served', 'kind_unknown', 'runners_draining', 'workers_busy') &&
      html`<p><a href="/runners">To the runners</a></p>`
    }
  </div>`;
}
const Reason = ({ of }) => html`<${WithJobs} text=${sentence(of.text)} />`;

/** The limit that a job waits for; only the sentence names it. */
function ToLimit({ reasons }) {
  const { text } = reasons.find((reason) => ['limit_reached', 'breaker_open'].includes(reason.code));
  const [, name] = /^the limit ([a-z0-9][a-z0-9_.-]{0,63}) /.exec(text) ?? [];
  return name ? html`<a href=${`/limits/${seg(name)}`}>To the limit ${name}</a>` : html`<a href="/limits">Limits</a>`;
}

const SameKey = ({ job }) =>
  job.limit_key && html`<a href=${withKey('limit', job.limit_key)}>Jobs with its limit key</a>`;

const withKey = (field, key) => url('/jobs', { q: `${field}:${quoted(key)}` });
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function Actions({ job, path, reload, gone }) {
  const admin = useMay('admin');
  const produce = useMay('enqueue');
  if (!admin && !produce) return null;
  const done = (text) => {
    tell(text);
    reload();
    return true;
  };
  const openDeadLetter = job.dead_letter?.status === 'open';
  const about = html`<b>${job.kind}</b> <span class="mono">${job.id}</span>`;
  return html`<div class="row">
    <${Allowed}>
      ${
        waits(job) &&
        html`
          <button
            type="button"
            onClick=${() =>
              confirm(
                'Run it now?',
                'The job becomes due at once.',
                'Run now',
                async (_, once) => {
                  await once(`${path}/run-now`);
                  return done('The job is due now');
                },
                { about },
              )}
          >
            Run now
          </button>
          <button type="button" onClick=${() => reschedule(path, about, done)}>Reschedule</button>
        `
      }
      ${
        (job.state === 'failed' || job.state === 'cancelled') &&
        job.dead_letter?.status !== 'replayed' &&
        html`
          <button
            type="button"
            class="primary"
            onClick=${() =>
              confirm(
                'Retry this job?',
                'The same job runs again, with all of its attempts.',
                'Retry',
                async (_, once) => {
                  await once(`${path}/retry`);
                  return done('The job waits again');
                },
                { about },
              )}
          >
            Retry
          </button>
        `
      }
      ${
        openDeadLetter &&
        html`
          <button
            type="button"
            onClick=${() =>
              confirm(
                'Replay it?',
                'A new job with the same payload is made. This one stays as it is, marked as replayed.',
                'Replay',
                async (_, once) => {
                  const made = await once(`${path}/replay`, {});
                  done('A new job was made of it');
                  go(`/jobs/${made.id}`);
                  return true;
                },
                { about },
              )}
          >
            Replay
          </button>
          <button
            type="button"
            class="danger"
            onClick=${() =>
              ask({
                title: 'Discard this dead letter?',
                action: 'Discard',
                danger: true,
                values: { reason: '' },
                ready: (v) => v.reason.trim(),
                body: ({ values, set }) =>
                  html`
                    <p class="wrap">${about}</p>
                    <p>It leaves the open dead letters, and is purged after its retention.</p>
                    <${InputField}
                      label="Reason"
                      id="discard-reason"
                      name="reason"
                      required
                      maxlength="500"
                      values=${values}
                      set=${set}
                    />
                  `,
                submit: async ({ reason }, once) => {
                  await once(`${path}/discard`, { reason });
                  return done('The dead letter was discarded');
                },
              })}
          >
            Discard
          </button>
        `
      }
      ${
        !over(job) &&
        html`
          <button
            type="button"
            class="danger"
            disabled=${Boolean(job.cancel_requested_at)}
            onClick=${() =>
              confirm(
                'Cancel this job?',
                job.state === 'executing'
                  ? 'It runs: its handler is asked to stop, and may take a while.'
                  : 'It will never start.',
                'Cancel the job',
                async (_, once) => {
                  const answer = await once(`${path}/cancel`);
                  return done(
                    answer.state === 'cancelled' ? 'The job will never start' : 'The handler was asked to stop',
                  );
                },
                { danger: true, about },
              )}
          >
            ${job.cancel_requested_at ? 'Asked to stop' : 'Cancel'}
          </button>
        `
      }
      ${
        over(job) &&
        html`
          <button
            type="button"
            class="danger"
            onClick=${() =>
              confirm(
                'Delete this job?',
                'The job is removed with its attempts and its result. That cannot be undone.',
                'Delete',
                async (_, once) => {
                  await once('/v1/operations', { action: 'delete', filter: { ids: [job.id] } });
                  tell('The job is being deleted');
                  gone();
                  return true;
                },
                { danger: true, about },
              )}
          >
            Delete
          </button>
        `
      }
    </${Allowed}>
    <${Allowed} to="enqueue"><a class="button" href=${`/enqueue?from=${job.id}`}>Duplicate and edit</a></${Allowed}>
  </div>`;
}

/** Ask for another due time or priority. What another caller changed meanwhile is not overwritten. */
async function reschedule(path, about, done) {
  let seen;
  try {
    seen = await callTagged('GET', path);
  } catch (problem) {
    tellProblem(problem);
    return undefined;
  }
  const { body: job, tag } = seen;
  const at = Date.parse(job.execute_at);
  const local = new Date(at - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  const before = String(job.priority);
  return ask({
    title: 'When should it run?',
    action: 'Reschedule',
    values: { when: local, priority: before },
    body: ({ values, set }) => html`<p class="wrap">${about}</p><div class="fields">
      <${InputField}
        label="Due at (your local time)"
        id="when"
        name="when"
        type="datetime-local"
        required
        values=${values}
        set=${set}
      />
      <${InputField}
        label="Priority"
        id="priority"
        name="priority"
        hint="0 runs first, 9 last"
        type="number"
        min="0"
        max="9"
        required
        values=${values}
        set=${set}
      />
    </div>`,
    ready: ({ when, priority }) => when && priority !== '' && (when !== local || priority !== before),
    submit: async ({ when, priority }) => {
      const body = {};
      if (priority !== before) body.priority = Number(priority);
      if (when !== local) body.execute_at = new Date(when).toISOString();
      await call('PATCH', path, { body, headers: tag ? { 'if-match': tag } : {} });
      return done('The job was changed');
    },
  });
}

/** A job may have a thousand attempts. Of them the page draws so many, the last ones, until the user wants all. */
const LAST_ATTEMPTS = 50;
/** So many steps of the timeline are drawn at first. */
const LAST_STEPS = 60;

const Earlier = ({ of, show }) =>
  of > 0 &&
  html`<div>
    <button type="button" class="quiet small" onClick=${() => show(true)}>${plural(of, 'earlier', 'earlier')}</button>
  </div>`;

function Attempts({ job, path }) {
  const [all, show] = useState(false);
  // A link of the waterfall leads to an attempt that may not be drawn yet.
  useEffect(() => {
    const lead = () => /^#attempt-\d+$/.test(location.hash) && !document.querySelector(location.hash) && show(true);
    lead();
    addEventListener('hashchange', lead);
    return () => removeEventListener('hashchange', lead);
  }, []);
  useEffect(() => {
    if (all && /^#attempt-\d+$/.test(location.hash)) document.querySelector(location.hash)?.scrollIntoView();
  }, [all]);
  if (!job.attempts?.length) return html`<p class="faint">None has begun yet.</p>`;
  const drawn = all ? job.attempts : job.attempts.slice(-LAST_ATTEMPTS);
  return html`<div class="stack tight">
    ${[...drawn].reverse().map((attempt) => html`<${Attempt} key=${attempt.number} attempt=${attempt} path=${path} />`)}
    <${Earlier} of=${job.attempts.length - drawn.length} show=${show} />
  </div>`;
}

/** How long an attempt that has no end has gone on. */
const GoesOn = ({ since }) => span(useNow() - since);

function Attempt({ attempt, path }) {
  const end = attempt.finished_at ? Date.parse(attempt.finished_at) : null;
  // Nothing began when the job expired.
  const began = attempt.started_at ? Date.parse(attempt.started_at) : null;
  return html`<article id=${`attempt-${attempt.number}`} class="stack tight attempt">
    <div class="row apart">
      <span class="row">
        <b>Attempt ${attempt.number}</b>
        ${attempt.verdict ? html`<${Badge} is=${attempt.verdict} />` : html`<${Badge} is="executing" />`}
      </span>
      ${
        began === null
          ? html`<span class="soft num"><${Time} at=${attempt.finished_at} /></span>`
          : html`<span class="soft num" title=${`${utc(began)}${end === null ? '' : ` to ${utc(end)}`}`}>
              ${end === null ? html`<${GoesOn} since=${began} />` : span(end - began)}
              ${' · '}<${Time} at=${attempt.started_at} />
            </span>`
      }
    </div>
    ${
      began === null
        ? html`<div class="faint">Nothing began. <span class="mono">${attempt.runner}</span> ended the job.</div>`
        : html`<div class="faint">
            on <span class="mono">${attempt.runner}</span>,${' '}
            ${span(Math.max(0, began - Date.parse(attempt.execute_at)))} after it was due
          </div>`
    }
    ${attempt.error && html`<div class="error">${attempt.error}</div>`}
    ${
      attempt.late_note &&
      html`<div class="note warn">Reported after its lease was gone, without effect: ${attempt.late_note}</div>`
    }
    ${
      attempt.exchange &&
      html`<details>
        <summary>Request and response</summary>
        <${Json} value=${attempt.exchange} label="exchange" />
      </details>`
    }
    ${attempt.log_bytes && html`<${Log} of=${`${path}/attempts/${attempt.number}`} bytes=${attempt.log_bytes} />`}
  </article>`;
}

/** The lines that an attempt wrote. They are read when they are unfolded. */
function Log({ of, bytes }) {
  const [wanted, want] = useState(false);
  const log = useQuery(wanted ? `${of}/log` : null, { read: readText });
  return html`<details onToggle=${(event) => event.target.open && want(true)}>
    <summary>Log <span class="soft num">${count(bytes)} bytes</span></summary>
    ${
      log.data
        ? html`
            <div class="row end"><${Copy} text=${log.data} label="Copy the log" /></div>
            <pre class="tall" tabindex="0" role="region" aria-label="Log">${log.data}</pre>
          `
        : log.error
          ? html`<${Trouble} error=${log.error} retry=${log.reload} />`
          : wanted && html`<${Skeleton} />`
    }
  </details>`;
}

/** The jobs that it waits for, and what becomes of it when one of them does not complete. */
function Parents({ job }) {
  const known = useJobs(job.after, waits(job) ? 5000 : 30000);
  return html`<${Panel} title="Parents">
    ${
      known.data
        ? html`<${JobList} jobs=${job.after.map((id) => known.data.get(id) ?? { id })} />`
        : known.error
          ? html`<${Trouble} error=${known.error} retry=${known.reload} />`
          : html`<${Skeleton} />`
    }
    <p class="soft">When a parent does not complete, ${onParentFailure[job.on_parent_failure]}.</p>
  </${Panel}>`;
}

const onParentFailure = {
  cancel: 'this job is cancelled',
  run: 'this job runs all the same',
  hold: 'this job waits until that parent is retried and completes',
};

/** The jobs that wait or waited for this one, as many as one page has. A server may not have the route. */
function Children({ path }) {
  const [missing, miss] = useState(false);
  const found = useQuery(missing ? null : `${path}/children`, { every: 15000 });
  useEffect(() => miss(found.error?.status === 404), [found.error]);
  if (!found.data?.data.length) return null;
  return html`<${Panel} title="Children" side=${html`<span class="faint">jobs that wait or waited for this one</span>`}>
    <${JobList} jobs=${found.data.data.slice(0, 50)} more=${found.data.next_cursor || found.data.data.length > 50} />
  </${Panel}>`;
}

const waitsFor = {
  limit: ', and waits for its limit',
  key: ', behind other jobs with its order key',
  parents: ', and waits for its parents',
};

/** Says whether a moment is still to come. */
const Due = ({ at }) => (Date.parse(at) > useNow() ? 'Due' : 'Became due');

/** What happened when, and how long it stayed so. */
function Timeline({ job, behind }) {
  const [all, show] = useState(false);
  const steps = [{ at: job.created_at, is: 'waiting', text: 'Accepted' }];
  for (const attempt of job.attempts ?? []) {
    if (attempt.started_at)
      steps.push({ at: attempt.started_at, is: 'executing', text: `Attempt ${attempt.number} began` });
    if (attempt.finished_at) {
      const last = attempt === job.attempts.at(-1);
      steps.push({
        at: attempt.finished_at,
        is: last && over(job) ? job.state : attempt.verdict === 'succeeded' ? 'completed' : 'retrying',
        text: `Attempt ${attempt.number}: ${attempt.verdict.replaceAll('_', ' ')}`,
      });
    }
  }
  if (job.cancel_requested_at) steps.push({ at: job.cancel_requested_at, is: 'cancelled', text: 'Asked to stop' });
  if (over(job) && !job.attempts?.some((attempt) => attempt.finished_at === job.finished_at))
    steps.push({ at: job.finished_at, is: job.state, text: `Ended as ${job.state}` });
  steps.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  if (job.dead_letter && job.dead_letter.status !== 'open')
    steps.push({
      at: job.dead_letter.since,
      is: 'waiting',
      text: sentence(`${job.dead_letter.status} by ${job.dead_letter.by ?? 'an operator'}`),
    });
  if (waits(job)) {
    const text = html`<${Due} at=${job.execute_at} />${behind ? waitsFor[behind] : ''}`;
    steps.push({ at: job.execute_at, is: 'waiting', text });
  }
  const left = all ? 0 : Math.max(0, steps.length - LAST_STEPS);
  return html`<${Earlier} of=${left} show=${show} />
  <ol class="timeline">
    ${steps.slice(left).map((step, i, drawn) => {
      const next = drawn[i + 1];
      return html`<li key=${left + i} class=${step.is}>
        <div class="row apart">
          <span>${step.text}</span>
          <span class="soft"><${Clock} at=${step.at} /></span>
        </div>
        ${next && html`<div class="gap num">${span(Date.parse(next.at) - Date.parse(step.at))}</div>`}
      </li>`;
    })}
  </ol>`;
}

function Facts({ job }) {
  const fact = (name, value) =>
    value !== null && value !== undefined && value !== false && html`<dt>${name}</dt><dd>${value}</dd>`;
  return html`<dl class="facts">
    ${fact('Queue', html`<a href=${`/queues/${seg(job.queue)}`}>${job.queue}</a>`)}
    ${fact('Priority', `${job.priority} (0 runs first, 9 last)`)}
    ${fact('Accepted', html`<${Time} at=${job.created_at} />`)}
    ${fact('Due', html`<${Time} at=${job.execute_at} />`)}
    ${job.expires_at && fact('Expires', html`<${Time} at=${job.expires_at} />`)}
    ${fact('Time limit', job.timeout_ms && span(job.timeout_ms))}
    ${fact('Retries', job.retry && backoff(job.retry))}
    ${fact(
      'Unique key',
      job.unique_key &&
        html`<a class="mono wrap" href=${withKey('unique_key', job.unique_key)}>
          ${job.unique_key}
        </a>${job.unique_until === 'start' ? ', until it starts' : ''}
        ${job.unique_for_ms ? `, for at least ${span(job.unique_for_ms)}` : ''}
        ${job.max_wait_ms ? `, put off for at most ${span(job.max_wait_ms)}` : ''}`,
    )}
    ${fact(
      'Order key',
      job.order_key &&
        html`<a class="mono wrap" href=${withKey('order', job.order_key)}>
          ${job.order_key}
        </a>${job.on_failure === 'block' ? ', blocks it when it fails for good' : ''}`,
    )}
    ${fact(
      'Limit key',
      job.limit_key && html`<a class="mono wrap" href=${withKey('limit', job.limit_key)}>${job.limit_key}</a>`,
    )}
    ${fact('Host', job.host && html`<a class="mono wrap" href=${withKey('host', job.host)}>${job.host}</a>`)}
    ${fact(
      'Tags',
      job.tags?.length > 0 &&
        job.tags.map((tag) => html`<a key=${tag} class="tag" href=${`/jobs?q=${seg(`tag:${tag}`)}`}>${tag}</a> `),
    )}
    ${fact('Batch', job.batch && html`<${NamedBatch} id=${job.batch} />`)}
    ${fact('Callback of', job.callback_of && html`<${NamedBatch} id=${job.callback_of} />`)}
    ${fact(
      'Schedule',
      job.schedule &&
        html`
          <a href=${`/schedules/${seg(job.schedule.name)}`}>${job.schedule.name}</a>, tick${' '}
          <${Time} at=${job.schedule.tick_at} />
        `,
    )}
    ${fact('Replay of', job.replay_of && html`<${JobLink} id=${job.replay_of} />`)}
    ${fact('Replayed as', job.dead_letter?.replayed_as && html`<${JobLink} id=${job.dead_letter.replayed_as} />`)}
    ${fact(
      'Dead letter',
      job.dead_letter &&
        html`
          <a class="mono" href=${`/dead-letters/${job.dead_letter.fingerprint}`}>
            ${job.dead_letter.fingerprint}
          </a>,${' '}
          ${job.dead_letter.status}
        `,
    )}
    ${fact('Discarded', job.dead_letter?.reason)}
    ${fact(
      'Trace',
      job.trace &&
        html`<span class="row">
          <span class="mono wrap">${job.trace.traceparent.split('-')[1]}</span>
          <${Copy} text=${job.trace.traceparent} label="Copy the traceparent" />
        </span>`,
    )}
  </dl>`;
}

/** What operators did to it, and what the user has just done: the number `acted` changes then. */
function Done({ id, acted }) {
  const acts = useQuery(`/v1/audit?target=${seg(id)}&limit=20`, { every: 30000 });
  const [shown, show] = useState(false);
  useEffect(() => show(false), [id]);
  useEffect(() => {
    if (acted > 0) acts.reload();
  }, [acted]);
  if (!acts.data?.data.length) return null;
  const all = shown ? acts.data.data : acts.data.data.slice(0, 5);
  return html`<${Panel} title="What operators did">
    <ul class="plain-list">
      ${all.map(
        (act) => html`<li key=${act.id}>
          <b title=${act.action}>${actionWords(act.action)}</b> by ${act.actor}${' '}
          <span class="soft"><${Time} at=${act.at} /></span>
        </li>`,
      )}
    </ul>
    ${
      acts.data.data.length > all.length &&
      html`<button type="button" class="quiet small" onClick=${() => show(true)}>
        ${plural(acts.data.data.length - all.length, 'more', 'more')}
      </button>`
    }
  </${Panel}>`;
}
