// One queue: what stands in its way, how it does, and what may be changed.

import { seg, url } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { brief, count, plural, span, whoOf } from '../core/format.js';
import { known } from '../core/known.js';
import { useObservable } from '../core/observable.js';
import { useQuery } from '../core/query.js';
import { Acts } from '../ui/acts.js';
import { Allowed, Badge, Empty, Figure, Head, JobLink, Panel, Skeleton, Time, Trouble } from '../ui/base.js';
import { HistoryCharts } from '../ui/history.js';
import { BEHIND, full, hasUncounted, pause, resume, Standing, setUp, useLate, waiting } from '../ui/queues.js';
import { isDrained, living, standing } from '../ui/runners.js';

export default function Queue({ params: [name] }) {
  const late = useLate();
  const mine = (event) => event.data?.includes(`"queue":${JSON.stringify(name)}`);
  const queue = useQuery(`/v1/queues/${seg(name)}`, { on: mine, every: 5000, pace: 1000 });
  const behind = useQuery(
    queue.data ? url('/v1/jobs/count', { q: `queue:${name} state:waiting due:${BEHIND}` }) : null,
    { every: 10000 },
  );
  const act = async (what, of) => (await what(of)) && queue.reload();
  const change = html`<${Allowed}>
    <button type="button" onClick=${() => act(setUp, name)}>Limit and priority</button>
  </${Allowed}>`;
  if (queue.error && [404, 422].includes(queue.error.status)) {
    return html`
      <${Head} title="Queue" />
      <section class="panel">
        <${Empty} title="There is no such queue">
          <p><span class="mono wrap">${name}</span></p>
          A queue comes with its first job, or with a runner that serves it. Its limit and priority may be set before.
          <p class="row center">
            ${queue.error.status === 404 && change}
            <a class="button" href="/queues">All queues</a>
          </p>
        </${Empty}>
      </section>
    `;
  }
  if (!queue.data)
    return queue.error ? html`<${Trouble} error=${queue.error} retry=${queue.reload} />` : html`<${Skeleton} />`;
  const it = queue.data;
  const to = (words) => url('/jobs', { q: `queue:${name} ${words}` });
  return html`
    <${Head}
      title=${html`<span class="wrap">${it.name}</span>`}
      sub=${html`<${Standing} queue=${it} behind=${behind.data} />`}
    >
      <div class="row">
        ${change}
        <${Allowed}>
          ${
            it.paused
              ? html`
                <button type="button" onClick=${() => act(pause, it)}>Change the reason</button>
                <button type="button" class="primary" onClick=${() => act(resume, it)}>Resume</button>
              `
              : html`<button type="button" class="danger" onClick=${() => act(pause, it)}>Pause</button>`
          }
        </${Allowed}>
      </div>
    </${Head}>
    <${Trouble} error=${queue.error} retry=${queue.reload} />
    <${Why} queue=${it} />
    <div class="figures">
      <${Jobs}
        name="Waiting"
        of=${it.states.waiting}
        capped=${!it.exact}
        note=${it.exact ? 'also those due later' : 'at least; not all are counted'}
        to=${to('state:waiting')}
      />
      <${Jobs}
        name="Overdue"
        of=${behind.data?.count ?? null}
        capped=${behind.data?.capped}
        bad=${behind.data?.count > 0}
        note=${late[name] > 0 ? `oldest for ${span(late[name])}` : 'due for more than 10 s'}
        to=${to(`state:waiting due:${BEHIND}`)}
      />
      <${Jobs}
        name="Running"
        of=${it.states.executing}
        capped=${!it.exact}
        note=${it.concurrency === null ? 'no limit' : `${count(it.permits)} of ${count(it.concurrency)} permits taken`}
        to=${to('state:executing')}
      />
      <${Jobs}
        name="Retrying"
        of=${it.states.retrying}
        capped=${!it.exact}
        note="failed, and will be tried again"
        to=${to('state:retrying')}
      />
      <${Jobs}
        name="Failed"
        of=${it.open_dead_letters ?? it.states.failed}
        capped=${hasUncounted(it)}
        bad=${it.open_dead_letters > 0}
        note=${it.open_dead_letters === undefined ? 'for good, ever' : `open; ${count(it.states.failed ?? 0)} ever`}
        to=${to(it.open_dead_letters > 0 ? 'dead_letter:open' : 'state:failed')}
      />
      <${Jobs} name="Completed" of=${it.states.completed} note="ever" to=${to('state:completed')} />
    </div>
    <${HistoryCharts} queue=${name} />
    <div class="grid wide">
      <div class="stack">
        <${Some}
          title="Due now, not started"
          q=${`queue:${name} state:waiting due:<0s`}
          on=${mine}
          none="No job of this queue waits for its start."
        />
        <${Some}
          title="Failing, to be tried again"
          q=${`queue:${name} state:retrying`}
          on=${mine}
          error
          none="No job of this queue is between two attempts."
        />
        <${Some}
          title="Failed for good"
          q=${`queue:${name} state:failed`}
          on=${mine}
          error
          none="No job of this queue that is still kept has failed."
        />
      </div>
      <div class="stack">
        <${Panel} title="Details">
          <dl class="facts">
            <dt>Priority</dt>
            <dd>${it.priority} (0 runs first, 9 last)</dd>
            <dt>Limit</dt>
            <dd>
              ${
                it.concurrency === null
                  ? 'none'
                  : `${plural(it.concurrency, 'job')} at the same time, all runners together`
              }
            </dd>
            <dt>Last changed</dt>
            <dd>${it.changed_at ? html`<${Time} at=${it.changed_at} /> by ${it.changed_by}` : 'never'}</dd>
          </dl>
        </${Panel}>
        <${Runners} name=${name} />
        <${Acts} target=${name} of="queue" key=${it.changed_at} />
      </div>
    </div>
  `;
}

/** A number of jobs in brief, in full on hover. */
const Jobs = ({ of = 0, capped, ...figure }) =>
  html`<${Figure} ...${figure} value=${brief(of, capped)} title=${count(of, capped)} />`;

/** What keeps its jobs from starting, the hardest first. */
function Why({ queue }) {
  const { paused } = queue;
  const runners = useObservable(known).runners.data;
  const alone = queue.runners === 0 && waiting(queue) > 0;
  const drained = isDrained(runners, queue.name);
  return html`
    ${
      alone &&
      drained &&
      html`<div class="note bad">
        <b>Its runners are drained.</b> An operator told each runner of this queue to take no new work. Its jobs wait
        until one is resumed, or another runner starts. <a href="/runners">To the runners</a>
      </div>`
    }
    ${
      alone &&
      !drained &&
      html`<div class="note bad">
        <b>No living runner serves this queue.</b>${' '}
        <span class="wrap">
          Its jobs wait until one does: <code class="wrap">tickr serve --queues default,${queue.name}</code>
        </span>${' '}
        <a href="/runners">To the runners</a>
      </div>`
    }
    ${
      paused &&
      html`<div class="note warn">
        <b>Paused</b> <${Time} at=${paused.at} /> by <span class="wrap">${whoOf(paused.by)}</span>. None of its
        jobs starts.
        ${paused.reason && html`<p class="wrap">${paused.reason}</p>`}
      </div>`
    }
    ${
      full(queue) &&
      html`<div class="note warn">
        <b>The limit is reached.</b> ${plural(queue.concurrency, 'job')} may run at the same time, all runners together.
      </div>`
    }
  `;
}

function Some({ title, q, on, error, none }) {
  const found = useQuery(url('/v1/jobs', { q, limit: 5 }), { on, every: 15000, pace: 3000 });
  const rows = found.data?.data ?? [];
  return html`
    <${Panel} title=${title} flush side=${rows.length > 0 && html`<a href=${url('/jobs', { q })}>All of them</a>`}>
      <${Trouble} error=${found.error} retry=${found.reload} />
      ${!found.data && !found.error && html`<${Skeleton} />`}
      ${found.data && rows.length === 0 && !found.data.next_cursor && html`<p class="body faint">${none}</p>`}
      ${
        found.data?.next_cursor &&
        rows.length === 0 &&
        html`<p class="body faint">None among the newest. <a href=${url('/jobs', { q })}>Look further</a></p>`
      }
      ${
        rows.length > 0 &&
        html`<table class="cards">
          <thead>
            <tr><th>Kind</th><th>Job</th><th>${error ? 'Error' : 'Due'}</th><th class="right">Attempt</th></tr>
          </thead>
          <tbody>
            ${rows.map(
              (job) => html`<tr key=${job.id} data-row>
                <td data-label="Kind">${job.kind}</td>
                <td data-label="Job"><${JobLink} id=${job.id} /></td>
                <td data-label=${error ? 'Error' : 'Due'} class=${cls(error && 'half')}>
                  ${
                    error
                      ? html`<span class="clip fill" title=${job.last_error}>${job.last_error ?? '–'}</span>`
                      : html`<${Time} at=${job.execute_at} />`
                  }
                </td>
                <td data-label="Attempt" class="right num">${job.attempt} / ${job.max_attempts}</td>
              </tr>`,
            )}
          </tbody>
        </table>`
      }
    </${Panel}>
  `;
}

function Runners({ name }) {
  const runners = useQuery('/v1/runners', { every: 10000 });
  const serving = living(runners.data).filter((runner) => runner.queues.includes(name));
  const number = html`<span class="soft num">${count(serving.length, runners.data?.more)}</span>`;
  return html`<${Panel} title="Runners that serve it" side=${number}>
    <${Trouble} error=${runners.error} />
    ${
      serving.length === 0
        ? runners.data && html`<p class="faint">None. A runner says at its start which queues it serves.</p>`
        : html`<ul class="plain-list">
          ${serving.slice(0, 20).map(
            (runner) => html`<li key=${runner.id} class="row apart">
              <a class="mono wrap" href="/runners">${runner.id}</a>
              <span class="soft num">
                ${runner.draining && html`<${Badge} is="paused" title=${runner.draining.reason}>drained</${Badge}> `}
                ${
                  standing(runner) === 'silent'
                    ? html`<${Badge} is="warn">silent for ${span(runner.heartbeat_age_ms)}</${Badge}>`
                    : `${runner.busy_workers} of ${runner.workers} workers busy`
                }
              </span>
            </li>`,
          )}
          ${serving.length > 20 && html`<li class="faint">and ${serving.length - 20} more</li>`}
        </ul>`
    }
  </${Panel}>`;
}
