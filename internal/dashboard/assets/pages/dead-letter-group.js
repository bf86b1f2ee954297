// One group of dead letters: what it says, since when, how much, and how to be rid of it.

import { now, post, seg, url } from '../core/api.js';
import { errorOf, recentOf } from '../core/dead-letter-group.js';
import { cls, html, useMemo, useRef, useState } from '../core/dom.js';
import { brief, count, plural, utc } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { toRange } from '../core/range.js';
import { useWords } from '../core/route.js';
import {
  Allowed,
  Badge,
  Copy,
  Empty,
  Figure,
  Head,
  JobLink,
  Panel,
  Skeleton,
  Time,
  Trouble,
  tell,
} from '../ui/base.js';
import { bulk } from '../ui/bulk.js';
import { releaseAsCanary } from '../ui/canary.js';
import { Chart, ChartToCome } from '../ui/chart.js';
import { DeadLetters, failed, statuses, useSettled } from '../ui/dead-letters.js';
import { ask, confirm, InputField } from '../ui/dialog.js';
import { DifferencesPanel } from '../ui/differences.js';
import { quoted } from '../ui/filter.js';
import { Json, useSchema } from '../ui/json.js';
import { isReleasing, isRunning, nameOf, ofGroup, outcome, touches, useOperations, Watched } from '../ui/operation.js';
import { discard, release } from './dead-letters.js';

/** For so long the newest job stays the one that is shown while the group grows, in ms. */
const STAYS = 30000;

/** The newest job of a group: read once, and another one only when it was shown for a while. */
function useSample(newest) {
  const chosen = useRef({ id: null, at: 0 });
  const read = useRef(null);
  if (newest && newest !== chosen.current.id && Date.now() - chosen.current.at > STAYS)
    chosen.current = { id: newest, at: Date.now() };
  const job = useQuery(chosen.current.id && `/v1/jobs/${chosen.current.id}`);
  // The one before is better than nothing.
  if (job.data) read.current = job.data;
  return read.current;
}

export default function DeadLetterGroup({ params: [fingerprint] }) {
  const [query, change] = useWords();
  const [begun, setBegun] = useState([]);
  const operations = useOperations({ limit: 100 });
  const mine = ofGroup(operations.data?.data, fingerprint);
  const busy = Boolean(operations.data?.data.some(isRunning));
  const group = useQuery(`/v1/dead-letters/groups/${seg(fingerprint)}`, {
    on: failed,
    every: busy ? 4000 : 10000,
    pace: 2000,
  });
  useSettled(busy, group.reload);
  const sample = useSample(group.data?.sample);
  const schema = useSchema(group.data?.kind);
  const retrying = useQuery(
    group.data ? url('/v1/jobs/count', { q: `state:retrying kind:${quoted(group.data.kind)}` }) : null,
    { every: 10000 },
  );
  if (group.error?.status === 404 || group.error?.status === 422) {
    return html`
      <${Head} title="Dead letters" />
      <${Empty} title="There is no such group of dead letters">
        <span class="mono wrap">${fingerprint}</span><br />Its jobs may have been retried or deleted, or their retention
        may have ended. <a href="/dead-letters">All dead letters</a>
      </${Empty}>
    `;
  }
  if (!group.data)
    return group.error ? html`<${Trouble} error=${group.error} retry=${group.reload} />` : html`<${Skeleton} />`;
  const it = group.data;
  const shown = statuses.includes(query.get('status'))
    ? query.get('status')
    : it.open > 0 || it.replayed + it.discarded === 0
      ? 'open'
      : it.replayed >= it.discarded
        ? 'replayed'
        : 'discarded';
  const trial = query.get('trial');
  const reload = () => {
    operations.reload();
    group.reload();
  };
  const start = async (what) => {
    const operation = await what(it);
    if (!operation) return;
    setBegun((old) => [...old, operation.id]);
    reload();
  };
  // What was begun here stays in sight when it is over; the rest is history.
  const watched = (operations.data?.data ?? []).filter(
    (operation) => (isRunning(operation) && touches(operation, it)) || begun.includes(operation.id),
  );
  const releasing = isReleasing(operations.data?.data, it);
  const past = mine.filter((operation) => !watched.includes(operation));
  const title = html`
    ${it.kind}${' '}
    <${Badge} is=${it.open > 0 ? 'failed' : 'done'}>
      ${it.open > 0 ? `${count(it.open, it.capped)} open` : 'none open'}
    </${Badge}>
  `;
  const sub = html`
    <span class="lines bad mono">${errorOf(it)}</span>
    <span class="row">
      <span class="mono wrap">${it.fingerprint}</span>
      <${Copy} text=${it.fingerprint} label="Copy the fingerprint" />
    </span>
  `;
  const error = errorIn(sample, it);
  return html`
    <${Head} title=${title} sub=${sub}>
      ${/* It comes a moment later, and first, so that it moves none of the others under the mouse. */ ''}
      ${sample && html`<${Pause} queue=${sample.queue} />`}
      <a class="button" href=${url('/incident', { ...incidentOf(it), cause: it.fingerprint })}>Incident page</a>
      ${
        it.open > 0 &&
        html`<${Allowed}>
          <button
            type="button"
            onClick=${() =>
              tryOne(it, (id) => {
                change({ trial: id });
                group.reload();
              })}
          >
            Try one
          </button>
          <button
            type="button"
            class="primary"
            disabled=${releasing}
            title=${releasing ? 'A release of this group is running' : undefined}
            onClick=${() => start(release)}
          >
            Release
          </button>
          <button
            type="button"
            disabled=${releasing}
            title=${releasing ? 'A release of this group is running' : 'In steps, which stop when the jobs fail again'}
            onClick=${() => start(releaseAsCanary)}
          >
            Release as a canary
          </button>
          <button type="button" class="danger" onClick=${() => start(discard)}>Discard</button>
        </${Allowed}>`
      }
    </${Head}>
    <${Trouble} error=${group.error} retry=${group.reload} />
    ${watched.map((operation) => html`<${Watched} key=${operation.id} operation=${operation} reload=${reload} />`)}
    ${trial && html`<${Trial} id=${trial} hide=${() => change({ trial: null })} />`}
    <div class="figures">
      <${Figure} name="Open" note="needs attention" value=${brief(it.open, it.capped)} />
      <${Figure}
        name="First"
        note=${`${utc(Date.parse(it.first_seen)).slice(0, 16)} UTC`}
        value=${html`<${Time} at=${it.first_seen} />`}
      />
      <${Figure}
        name="Last"
        note=${`${utc(Date.parse(it.last_seen)).slice(0, 16)} UTC`}
        value=${html`<${Time} at=${it.last_seen} />`}
      />
      <${Figure}
        name="Retrying"
        value=${brief(retrying.data?.count ?? null, retrying.data?.capped)}
        note="of this kind, may fail as well"
        to=${url('/jobs', { q: `state:retrying kind:${quoted(it.kind)}` })}
      />
      <${Figure} name="Replayed" note="became new jobs" value=${brief(it.replayed, it.capped)} />
      <${Figure} name="Discarded" note="will not run again" value=${brief(it.discarded, it.capped)} />
    </div>
    <${Recent} group=${it} />
    <${DifferencesPanel}
      path=${`/v1/dead-letters/groups/${it.fingerprint}/differences`}
      within=${`group:${it.fingerprint}`}
    />
    <div class="grid wide">
      <div class="stack">
        <${Panel}
          title="Newest error"
          side=${html`<${JobLink} id=${sample?.id ?? it.sample} /><${Copy} text=${error} label="Copy the error" />`}
        >
          <div class="error" tabindex="0" role="region" aria-label="The error in full">${error}</div>
        </${Panel}>
      </div>
      <div class="stack">
        <${Panel} title="Latest job">
          <${Work} job=${sample} schema=${schema} />
        </${Panel}>
      </div>
    </div>
    ${
      past.length > 0 &&
      html`<${Panel} title="What was done to them">
        <ul class="plain-list">
          ${past.map(
            (operation) => html`<li key=${operation.id} class="row wrap">
              <a href=${`/operations/${operation.id}`}>${nameOf(operation.action)}</a>${' '}
              <${Badge} is=${operation.state} /><span>${outcome(operation)}</span>
              <span class="soft">by <bdi>${operation.asked_by}</bdi>, <${Time} at=${operation.created_at} /></span>
            </li>`,
          )}
        </ul>
      </${Panel}>`
    }
    <section class="panel" aria-label="Jobs of the group">
      <header>
        <h2>Jobs</h2>
        ${
          shown === 'discarded' &&
          it.discarded > 0 &&
          html`<${Allowed}>
            <button
              type="button"
              class="small"
              onClick=${() =>
                start(() =>
                  bulk(
                    'retry',
                    { q: `dead_letter:discarded group:${it.fingerprint}` },
                    { title: 'Retry the discarded jobs' },
                  ),
                )}
            >
              Retry the discarded jobs
            </button>
          </${Allowed}>`
        }
        <a href=${url('/jobs', { q: `group:${it.fingerprint} dead_letter:${shown}` })}>In the list of jobs</a>
      </header>
      <nav class="tabs" aria-label="Status">
        ${statuses.map(
          (word) => html`
            <a
              key=${word}
              href=${url(`/dead-letters/${it.fingerprint}`, { status: word, trial })}
              aria-current=${word === shown ? 'page' : undefined}
            >
              ${word}
              <span class="num">${brief(it[word], it.capped)}</span>
            </a>
          `,
        )}
      </nav>
      <${DeadLetters}
        key=${shown}
        status=${shown}
        fingerprint=${it.fingerprint}
        cursor=${query.get('cursor') ?? ''}
        change=${change}
        busy=${busy}
      />
    </section>
  `;
}

/** The time from a little before the first failure to the last one, or the last day of it. */
function incidentOf({ first_seen: first, last_seen: last }) {
  const to = Date.parse(last) + 60000;
  return toRange({ from: Math.max(Date.parse(first) - 600000, to - 86400000), to });
}

/** Only the listing of groups knows the hours. */
function Recent({ group }) {
  const page = useQuery(group.open > 0 ? url('/v1/dead-letters/groups', { kind: group.kind, limit: 200 }) : null, {
    every: 30000,
  });
  const hours = recentOf(page.data?.data.find((one) => one.fingerprint === group.fingerprint));
  const x = useMemo(() => hours?.map((_, i) => now() - (hours.length - i - 0.5) * 3600e3), [hours]);
  if (!hours)
    return group.open > 0 && !page.data && !page.error
      ? html`<${Panel} title="When they failed"><${ChartToCome} /></${Panel}>`
      : null;
  return html`
    <${Panel}
      title="When they failed"
      side=${html`<span class="soft num">
          ${plural(
            hours.reduce((sum, n) => sum + n, 0),
            'open one',
          )} of the last 24 h, by the hour
        </span>`}
    >
      <${Chart}
        x=${x}
        series=${[{ name: 'failed', values: hours, colour: 4, bars: true }]}
        format=${(n) => count(Math.round(n))}
        label="Failures of the last 24 hours"
      />
    </${Panel}>
  `;
}

/** The whole error of the newest job, as its last attempt told it. */
const errorIn = (job, group) =>
  job?.attempts?.findLast((attempt) => attempt.error)?.error ?? job?.last_error ?? group.sample_error;

function Work({ job, schema }) {
  if (!job) return html`<${Skeleton} />`;
  const last = job.attempts?.at(-1);
  // A job that expired did not run at its end: the runner only wrote the end.
  const runner = last?.started_at && last.runner;
  return html`
    <dl class="facts">
      <dt>Job</dt>
      <dd><${JobLink} id=${job.id}>${job.id}</${JobLink}></dd>
      <dt>Queue</dt>
      <dd><a href=${`/queues/${seg(job.queue)}`}>${job.queue}</a></dd>
      <dt>Attempts</dt>
      <dd class="num">${job.attempt} of ${job.max_attempts}</dd>
      ${runner && html`<dt>Ran on</dt><dd class="mono">${runner}</dd>`}
      ${
        last &&
        html`
          <dt>Ended as</dt>
          <dd>${last.verdict && html`<${Badge} is=${last.verdict} />`}</dd>
        `
      }
      ${
        job.tags?.length > 0 &&
        html`<dt>Tags</dt><dd>${job.tags.map((tag) => html`<span key=${tag} class="tag">${tag}</span> `)}</dd>`
      }
    </dl>
    <details><summary>Payload</summary><${Json} value=${job.payload} schema=${schema} label="payload" /></details>
  `;
}

/** A single replay, to see whether the cause is gone before the rest follows. */
const tryOne = (group, done) =>
  confirm(
    'Try one of them?',
    'The newest open one becomes a new job. See how it goes, then release the rest.',
    'Try it',
    async (_, once) => {
      const made = await once(`/v1/jobs/${group.sample}/replay`, {});
      tell('Started a test run', 'good', { href: `/jobs/${made.id}`, text: 'Look at it' });
      done(made.id);
      return true;
    },
  );

function Trial({ id, hide }) {
  const job = useQuery(`/v1/jobs/${seg(id)}`, { on: (event) => event.data?.includes(id), every: 3000, pace: 300 });
  const state = job.data?.state;
  const said = {
    completed: 'Completed: the cause seems to be gone.',
    failed: 'Failed with the same error, or another one: see below.',
    retrying: 'Failed, and will be tried again.',
    cancelled: 'It was cancelled, so it says nothing about the cause.',
  }[state];
  return html`
    <div
      class=${cls('note', state === 'completed' ? 'good' : state === 'failed' || state === 'retrying' ? 'warn' : '')}
      role="status"
    >
      <div class="row apart">
        <span class="row">
          <b>Test run</b>
          <${JobLink} id=${id} />
          ${state && html`<${Badge} is=${state} />`}
        </span>
        <button type="button" class="quiet small" aria-label="Hide the test run" onClick=${hide}>✕</button>
      </div>
      ${job.error ? html`<p>${job.error.message}</p>` : html`<p>${said ?? 'Not finished yet.'}</p>`}
      ${job.data?.last_error && state !== 'completed' && html`<div class="error">${job.data.last_error}</div>`}
    </div>
  `;
}

/** Stops what fails: the queue of the newest job can be paused from here. */
function Pause({ queue }) {
  const path = `/v1/queues/${seg(queue)}`;
  const found = useQuery(path, { every: 15000 });
  if (!found.data) return null;
  if (found.data.paused)
    return html`<a class="badge paused" href=${`/queues/${seg(queue)}`}>queue ${queue} is paused</a>`;
  const pause = () =>
    ask({
      title: `Pause the queue ${queue}?`,
      action: 'Pause',
      danger: true,
      values: { reason: '' },
      body: ({ values, set }) => html`
        <p>No job of it starts until an operator resumes it, of whatever kind. What runs goes on.</p>
        <${InputField}
          label="Reason"
          id="pause-reason"
          name="reason"
          hint="Shown to other operators while nothing runs"
          maxlength="255"
          values=${values}
          set=${set}
        />
      `,
      submit: async ({ reason }) => {
        await post(`${path}/pause`, reason.trim() ? { reason: reason.trim() } : {});
        tell(`The queue ${queue} is paused`, 'good', { href: `/queues/${seg(queue)}`, text: 'To the queue' });
        found.reload();
        return true;
      },
    });
  return html`<${Allowed}><button type="button" onClick=${pause}>Pause the queue</button></${Allowed}>`;
}
