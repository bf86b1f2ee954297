// Runners: the processes, what they run, and whether they should take new work.

import { post, seg } from '../core/api.js';
import { cls, html, useState } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { known } from '../core/known.js';
import { useQuery } from '../core/query.js';
import {
  Allowed,
  Badge,
  Copy,
  Empty,
  Head,
  JobLink,
  Panel,
  Skeleton,
  Time,
  Trouble,
  tell,
  useNow,
} from '../ui/base.js';
import { ask, InputField } from '../ui/dialog.js';
import { standing } from '../ui/runners.js';

/** A clock that is off by so much makes log lines hard to follow. */
const SKEW_MS = 1000;
const MAX_WORKERS = 128;
const PAGE = 50;

const BADGES = { working: 'good', draining: 'paused', silent: 'bad', stopped: 'cancelled' };

export default function Runners() {
  const runners = useQuery('/v1/runners', {
    on: ['started', 'settled', 'reaped', 'runner_stopping'],
    every: 5000,
    pace: 2000,
  });
  const [toggled, toggle] = useState({});
  // The frame shows the runners as well, and reads them less often.
  const reload = () => {
    runners.reload();
    known.get().runners.reload();
  };
  const all = runners.data?.data ?? [];
  const more = runners.data?.more;
  const living = all.filter((runner) => !runner.stopped_at);
  const stopped = all.filter((runner) => runner.stopped_at);
  // Processes that run one suspect each use the workers of those that started them.
  const own = living.filter((runner) => !runner.parent);
  const sum = (name) => living.reduce((total, runner) => total + runner[name], 0);
  return html`
    <${Head}
      title="Runners"
      sub=${
        living.length > 0 &&
        `${count(own.length, more)} ${own.length === 1 ? 'runner' : 'runners'}, ` +
          `${count(sum('busy_workers'), more)} of ${count(sum('workers'), more)} workers busy`
      }
    />
    <${Trouble} error=${runners.error} retry=${runners.reload} />
    ${!runners.data && !runners.error && html`<${Skeleton} />`}
    ${
      runners.data &&
      living.length === 0 &&
      html`<${Panel} title="Living runners"><${None} stopped=${stopped.length > 0} /></${Panel}>`
    }
    <${Notes} living=${own} />
    ${
      living.length > 0 &&
      html`<section class="panel scroll" aria-label="Living runners">
        <table class="cards">
          <thead>
            <tr>
              <th>Runner</th>
              <th>Status</th>
              <th>Workers</th>
              <th>Last heartbeat</th>
              <${Allowed}>
                <th><span class="hidden-visually">Actions</span></th>
              </${Allowed}>
            </tr>
          </thead>
          <tbody>
            ${living.map(
              (runner) => html`
                <${Runner}
                  key=${runner.id}
                  runner=${runner}
                  open=${toggled[runner.id] ?? living.length <= 3}
                  toggle=${(open) => toggle((old) => ({ ...old, [runner.id]: open }))}
                  reload=${reload}
                />
              `,
            )}
          </tbody>
        </table>
      </section>`
    }
    ${stopped.length > 0 && html`<${Stopped} rows=${stopped} />`}
  `;
}

/** What is odd about them together. */
function Notes({ living }) {
  const silent = living.filter((runner) => standing(runner) === 'silent');
  const drained = living.filter((runner) => runner.draining);
  // Remote workers have versions and kinds of their own.
  const processes = living.filter((runner) => runner.via !== 'http');
  const versions = [...new Set(processes.map((runner) => runner.version))];
  const kinds = [...new Set(processes.flatMap((runner) => runner.kinds))].filter((kind) =>
    processes.some((runner) => !runner.kinds.includes(kind)),
  );
  const fast = living.filter((runner) => Math.abs(runner.clock_skew_ms ?? 0) > SKEW_MS);
  return html`
    ${
      silent.length > 0 &&
      html`<div class="note bad">
        <b>${plural(silent.length, 'runner')} ${silent.length === 1 ? 'is' : 'are'} silent.</b> The process hangs, is
        cut off from MySQL, or is gone. When its lease is over its jobs are taken away and run elsewhere. There is
        nothing to do for the jobs.
      </div>`
    }
    ${
      living.length > 0 &&
      drained.length === living.length &&
      html`<div class="note warn"><b>All runners drain: nothing starts.</b> Resume one, or start another.</div>`
    }
    ${
      versions.length > 1 &&
      html`<div class="note">
        <b>${plural(versions.length, 'version')} run side by side:</b> <span class="wrap">${versions.join(', ')}</span>.
        That is fine during a rollout.
      </div>`
    }
    ${
      kinds.length > 0 &&
      html`<div class="note">
        <b>Not every runner has every kind.</b> Only some have${' '}
        <span class="wrap">
          ${kinds.slice(0, 10).join(', ')}
          ${kinds.length > 10 && ` and ${kinds.length - 10} more`}
        </span>. Jobs of these wait for one that has.
      </div>`
    }
    ${
      fast.length > 0 &&
      html`<div class="note warn">
        <b>${plural(fast.length, 'clock')} ${fast.length === 1 ? 'is' : 'are'} off by more than a second.</b> No job
        depends on it, tickr goes by the clock of the database. Log lines of that host are hard to put in order.
      </div>`
    }
  `;
}

const skewOf = (ms) =>
  Math.abs(ms) < 1 ? 'clock in sync' : `clock ${span(Math.abs(ms))} ${ms > 0 ? 'ahead' : 'behind'}`;

function Runner({ runner, open, toggle, reload }) {
  const is = standing(runner);
  const act = async (what) => (await what(runner)) && reload();
  return html`
    <tr data-row>
      <td data-label="Runner" class="half">
        <div>
          <button
            type="button"
            class="quiet small mono wrap"
            aria-expanded=${String(open)}
            onClick=${() => toggle(!open)}
          >
            ${open ? '▾' : '▸'} ${runner.id}
          </button>
          <span class="faint clip fill" title=${runner.host ?? ''}>
            ${runner.via === 'http' && 'remote worker, '}
            version ${runner.version || '–'}${runner.host && ` on ${runner.host}`}
          </span>
        </div>
      </td>
      <td data-label="Status">
        <div>
          <${Badge} is=${BADGES[is]}>${is}</${Badge}>
          ${
            runner.parent &&
            html`
              <div class="faint wrap" title="A job whose last two runners died under it runs in a process of its own">
                runs one suspect of <span class="mono">${runner.parent}</span>
              </div>
            `
          }
          ${
            runner.draining &&
            html`<div class="faint wrap">
              ${
                runner.draining.reason &&
                html`<span class="clip slim" title=${runner.draining.reason}>${runner.draining.reason}</span>`
              }
              <span class="clip slim" title=${runner.draining.by}>
                <${Time} at=${runner.draining.at} /> by ${runner.draining.by}
              </span>
            </div>`
          }
        </div>
      </td>
      <td data-label="Workers">
        <div>
          <span class="num">
            ${runner.parent ? 'of its runner' : html`${count(runner.busy_workers)} of ${count(runner.workers)}`}
          </span>
          <div class="bar-of" aria-hidden="true">
            <i style=${{ width: `${Math.min(100, (100 * runner.busy_workers) / Math.max(1, runner.workers))}%` }}></i>
          </div>
        </div>
      </td>
      <td data-label="Last heartbeat">
        <div>
          <span class=${cls(is === 'silent' && 'bad')}><${Time} at=${runner.heartbeat_at} /></span>
          ${
            runner.clock_skew_ms !== null &&
            runner.clock_skew_ms !== undefined &&
            html`
              <div
                class=${cls('num nowrap', Math.abs(runner.clock_skew_ms) > SKEW_MS ? 'warn' : 'faint')}
                title="Its clock beside that of the database"
              >
                ${skewOf(runner.clock_skew_ms)}
              </div>
            `
          }
        </div>
      </td>
      <${Allowed}>
        <td class="right">
          ${
            runner.draining !== undefined &&
            !runner.parent &&
            (runner.draining
              ? html`
                <button type="button" class="small" aria-label=${`Resume ${runner.id}`} onClick=${() => act(resume)}>
                  Resume
                </button>
              `
              : html`<button type="button" class="small" aria-label=${`Drain ${runner.id}`} onClick=${() => act(drain)}>
                Drain
              </button>`)
          }
        </td>
      </${Allowed}>
    </tr>
    ${
      open &&
      html`<tr>
        <td colspan="5"><${Inside} runner=${runner} /></td>
      </tr>`
    }
  `;
}

const Names = ({ of, to }) =>
  of.length
    ? of.map((name) => html`<a class="tag wrap" key=${name} href=${to(name)}>${name}</a> `)
    : html`<span class="faint">none</span>`;

function Inside({ runner }) {
  const now = useNow();
  const workers = Math.min(runner.workers, MAX_WORKERS);
  return html`<div class="stack tight grow">
    ${
      workers > 0 &&
      html`<div class="workers" role="img" aria-label=${`${runner.busy_workers} of ${runner.workers} workers busy`}>
        ${Array.from(
          { length: workers },
          (_, i) => html`
            <i
              key=${i}
              class=${cls(i < Math.ceil((runner.busy_workers * workers) / Math.max(1, runner.workers)) && 'busy')}
            ></i>
          `,
        )}
      </div>`
    }
    <dl class="facts">
      <dt>Id</dt>
      <dd><span class="mono">${runner.id}</span> <${Copy} text=${runner.id} label="Copy the id" /></dd>
      <dt>Started</dt>
      <dd>
        <${Time} at=${runner.started_at} />
        ${runner.host && html` on <span class="wrap">${runner.host}</span>, process ${runner.pid ?? '–'}`}
      </dd>
      <dt>Queues</dt>
      <dd><${Names} of=${runner.queues} to=${(name) => `/queues/${seg(name)}`} /></dd>
      <dt>Kinds</dt>
      <dd><${Names} of=${runner.kinds} to=${(name) => `/jobs?q=kind%3A${seg(name)}`} /></dd>
    </dl>
    ${
      runner.jobs?.length > 0 &&
      html`<table class="cards">
        <thead>
          <tr>
            <th>Job</th>
            <th>Kind</th>
            <th>Queue</th>
            <th class="right">Attempt</th>
            <th>Runs for</th>
            <th>Progress</th>
          </tr>
        </thead>
        <tbody>
          ${runner.jobs.map(
            (job) => html`<tr key=${job.id}>
              <td data-label="Job"><${JobLink} id=${job.id} /></td>
              <td data-label="Kind">${job.kind}</td>
              <td data-label="Queue">${job.queue}</td>
              <td data-label="Attempt" class="right num">${job.attempt} / ${job.max_attempts}</td>
              <td data-label="Runs for" class="num nowrap">
                ${span(Math.max(0, now - Date.parse(job.started_at)))}
                ${job.cancel_requested_at && html` <${Badge} is="cancelled">asked to stop</${Badge}>`}
              </td>
              <td data-label="Progress">
                ${
                  job.progress
                    ? html`<span class="clip" title=${job.progress.note ?? ''}>
                      ${Math.round(job.progress.percent)} % ${job.progress.note ?? ''}
                    </span>`
                    : html`<span class="faint">–</span>`
                }
              </td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
    ${
      runner.jobs?.length === 0 &&
      html`<p class="faint">
        ${runner.busy_workers ? 'Its jobs show with its next heartbeat.' : 'It runs nothing at the moment.'}
      </p>`
    }
    ${
      (runner.more || (!runner.jobs && runner.busy_workers > 0)) &&
      html`<p>
        <a href="/jobs?q=state%3Aexecuting">${runner.jobs ? 'It runs more: all jobs that run' : 'Jobs that run'}</a>
      </p>`
    }
  </div>`;
}

const drain = (runner) =>
  ask({
    title: `Drain ${runner.id}?`,
    action: 'Drain',
    danger: true,
    values: { reason: '' },
    body: ({ values, set }) => html`
      <p>
        Within 2 s it starts no job any more.${' '}
        ${
          runner.busy_workers
            ? `The ${plural(runner.busy_workers, 'job')} that it runs may end.`
            : 'It runs nothing now.'
        }${' '}
        It goes on to answer HTTP. That ends when you resume it, or with the process.
      </p>
      <${InputField}
        label="Reason"
        id="drain-reason"
        name="reason"
        hint="Shown to other operators while the runner is idle"
        maxlength="255"
        values=${values}
        set=${set}
      />
    `,
    submit: async ({ reason }) => {
      await post(`/v1/runners/${seg(runner.id)}/drain`, reason.trim() ? { reason: reason.trim() } : {});
      tell(`${runner.id} takes no new work`);
      return true;
    },
  });

const resume = (runner) =>
  ask({
    title: `Resume ${runner.id}?`,
    action: 'Resume',
    body: () =>
      html`
        <p>It takes work again within 2 s.</p>
        ${runner.draining.reason && html`<p class="wrap soft">It was drained because: ${runner.draining.reason}</p>`}
      `,
    submit: async () => {
      await post(`/v1/runners/${seg(runner.id)}/resume`);
      tell(`${runner.id} takes work again`);
      return true;
    },
  });

function Stopped({ rows }) {
  const [most, show] = useState(PAGE);
  return html`<section class="panel" aria-label="Stopped runners">
    <details>
      <summary class="body">${plural(rows.length, 'runner')} stopped</summary>
      <table class="cards">
        <thead>
          <tr><th>Runner</th><th>Stopped</th><th>Lived for</th><th>Version</th></tr>
        </thead>
        <tbody>
          ${rows.slice(0, most).map(
            (runner) => html`<tr key=${runner.id}>
              <td data-label="Runner" class="mono wrap">${runner.id}</td>
              <td data-label="Stopped"><${Time} at=${runner.stopped_at} /></td>
              <td data-label="Lived for" class="num">
                ${span(Date.parse(runner.stopped_at) - Date.parse(runner.started_at))}
              </td>
              <td data-label="Version" class="wrap">${runner.version}</td>
            </tr>`,
          )}
        </tbody>
      </table>
      ${
        rows.length > most &&
        html`<div class="more">
          <button type="button" onClick=${() => show(most + PAGE)}>
            ${plural(rows.length - most, 'more', 'more')}
          </button>
        </div>`
      }
    </details>
  </section>`;
}

const None = ({ stopped }) => html`<${Empty} title=${stopped ? 'No runner lives' : 'No runner yet'}>
  A runner is a tickr process. It takes due jobs, runs them with its workers and answers this page.${' '}
  ${stopped && 'Jobs wait until one starts.'}
  <div>
    <pre>tickr serve --mysql-url mysql://… --redis-url redis://… \\
  --queues default,mail --workers 64</pre>
  </div>
</${Empty}>`;
