// The overview: is work flowing, what stands still, what is to come.

import { seg } from '../core/api.js';
import { errorOf } from '../core/dead-letter-group.js';
import { html, useMemo } from '../core/dom.js';
import { brief, count, plural, rate, span, whoOf } from '../core/format.js';
import { known } from '../core/known.js';
import { useObservable } from '../core/observable.js';
import { readAll, useQuery } from '../core/query.js';
import { Badge, Empty, Figure, Head, JobLink, Panel, Skeleton, Time, Trouble, useNow } from '../ui/base.js';
import { Chart, ChartToCome } from '../ui/chart.js';
import { HistoryCharts } from '../ui/history.js';
import { NoRunner } from '../ui/queues.js';
import { behindOf, Verdict } from '../ui/verdict.js';

const states = ['waiting', 'executing', 'retrying', 'completed', 'failed', 'cancelled'];
/** Of these the server counts a hundred thousand. */
const unfinished = ['waiting', 'executing', 'retrying'];
/** Groups of dead letters that are counted. */
const CAUSES = 100;
const EXAMPLE = [
  `curl -X POST ${location.origin}/v1/jobs -H 'Content-Type: application/json'`,
  `-d '{"kind": "…", "payload": {…}}'`,
].join(' ');

export default function Overview() {
  const { stats, ready, runners } = useObservable(known);
  const groups = useQuery(`/v1/dead-letters/groups?limit=${CAUSES}`, {
    on: (event) => event.type === 'settled' && event.data.includes('"failed"'),
    every: 20000,
    pace: 5000,
  });
  const queues = useQuery('/v1/queues', { on: true, every: 15000, pace: 4000 });
  // An operator opens these screens when something is wrong there, and learns of it from the verdict.
  const outbox = useQuery('/v1/outbox', { every: 30000 });
  const blocked = useQuery('/v1/order-keys?blocked=true', { every: 30000 });
  const schedules = useQuery('/v1/schedules?all', { every: 60000, read: readAll });
  const minute = useQuery('/v1/history?span=5m', { every: 5000 });
  if (!stats.data)
    return stats.error ? html`<${Trouble} error=${stats.error} retry=${stats.reload} />` : html`<${Skeleton} />`;
  const { states: by, lateness, rates } = stats.data;
  const worst = Object.entries(lateness.oldest_due_ms_by_queue).sort((one, other) => other[1] - one[1])[0];
  const all = minute.data && lastMinute(minute.data.points);
  const late = all ?? { p50: lateness.p50_ms, p99: lateness.p99_ms };
  const none = states.every((word) => !by[word]);
  const atLeast = (word) => !stats.data.exact && unfinished.includes(word);
  return html`
    <${Head} title="Overview" />
    <${Trouble} error=${stats.error} retry=${stats.reload} />
    <${Verdict}
      stats=${stats.data}
      queues=${queues.data}
      groups=${groups.data}
      runners=${runners.data}
      ready=${ready.data}
      outbox=${outbox.data}
      blocked=${blocked.data}
      schedules=${schedules.data}
    />
    <div class="figures">
      <${Figure}
        name="Enqueued"
        value=${`${rate(all ? all.accepted : rates.accepted_per_second)}/s`}
        note=${all ? 'accepted, last minute' : 'accepted by this runner, last minute'}
        to="/jobs"
      />
      <${Figure}
        name="Finished"
        value=${`${rate(all ? all.ended : rates.ended_per_second)}/s`}
        note=${all ? 'ended, last minute' : 'attempts ended here, last minute'}
        to="/jobs?q=finished:<10m"
      />
      <${Figure}
        name="Lateness p50 · p99"
        broad
        value=${html`<span class="nowrap">${span(late.p50)}</span> · <span class="nowrap">${span(late.p99)}</span>`}
        note=${all ? 'start after due, worst 5 s of the last minute' : 'start after due here, last minute'}
      />
      <${Figure}
        name="Longest wait"
        value=${span(lateness.oldest_due_ms)}
        note=${worst ? `in ${worst[0]}, past its due time` : 'nothing is overdue'}
        to=${worst ? `/queues/${seg(worst[0])}` : '/queues'}
        bad=${Boolean(behindOf(stats.data, queues.data))}
      />
      <${Figure}
        name="Next due"
        value=${html`<${NextDue} at=${lateness.next_due_at} />`}
        note="soonest waiting job"
        to="/jobs?q=state:waiting"
      />
    </div>
    ${
      none &&
      html`<section class="panel">
        <${Empty} title="Nothing has been enqueued yet">
          A job is a kind and a payload. <a href="/enqueue">Enqueue the first</a>, or from any program:
          <div><pre>${EXAMPLE}</pre></div>
        </${Empty}>
      </section>`
    }
    <${HistoryCharts} first="5m" />
    <div class="grid"><${Problems} queues=${queues} /><${Newest} groups=${groups} /></div>
    <div class="grid wide">
      <${Ahead} />
      <${Panel}
        title="Jobs by state"
        flush
        side=${
          !stats.data.exact &&
          html`<span class="faint" title="There are more unfinished jobs than the server counts">
            + means at least
          </span>`
        }
      >
        <table>
          <tbody>
            ${states.map(
              (word) => html`<tr key=${word}>
                <td>
                  <a href=${`/jobs?q=state:${word}`}><${Badge} is=${word} /></a>
                </td>
                <td class="right num bold" title=${`${atLeast(word) ? 'at least ' : ''}${count(by[word] ?? 0)}`}>
                  ${brief(by[word] ?? 0, atLeast(word))}
                  ${
                    word === 'failed' &&
                    stats.data.open_dead_letters > 0 &&
                    html`
                      ${' '}
                      <a class="bad" href="/dead-letters">
                        ${brief(stats.data.open_dead_letters, !stats.data.open_dead_letters_exact)} open
                      </a>
                    `
                  }
                </td>
              </tr>`,
            )}
          </tbody>
        </table>
      </${Panel}>
    </div>
  `;
}

/** When the next job is due. The figures of a moment ago may name one that is due by now. */
function NextDue({ at }) {
  const now = useNow();
  if (!at) return '–';
  return Date.parse(at) <= now ? 'now' : html`<${Time} at=${at} />`;
}

/** What all runners did in the twelve steps before the one that is open: means, and the worst lateness of a step. */
function lastMinute(points) {
  const minute = (values) => values.slice(-13, -1);
  const mean = (values) => minute(values).reduce((sum, value) => sum + value, 0) / 12;
  const worst = (values) =>
    minute(values).reduce((most, value) => (value === null ? most : Math.max(most ?? 0, value)), null);
  return {
    accepted: mean(points.accepted),
    ended: mean(points.ended),
    p50: worst(points.lateness_p50_ms),
    p99: worst(points.lateness_p99_ms),
  };
}

const waiting = (queue) => (queue.states.waiting ?? 0) + (queue.states.retrying ?? 0);
/** How much is wrong with a queue; the worst comes first. */
const trouble = (queue) =>
  (queue.paused ? 4 : 0) +
  (queue.runners === 0 && waiting(queue) > 0 ? 8 : 0) +
  (queue.concurrency !== null && queue.permits >= queue.concurrency ? 2 : 0);

function Problems({ queues }) {
  const rows = useMemo(
    () => [...(queues.data?.data ?? [])].sort((a, b) => trouble(b) - trouble(a) || waiting(b) - waiting(a)).slice(0, 8),
    [queues.data],
  );
  return html`<${Panel} title="Queues, problems first" flush side=${html`<a href="/queues">All queues</a>`}>
    <${Trouble} error=${queues.error} retry=${queues.reload} />
    ${
      rows.length === 0 &&
      queues.data &&
      html`<${Empty} title="No queue yet">A queue comes with its first job.</${Empty}>`
    }
    ${
      rows.length > 0 &&
      html`<table class="cards">
        <thead>
          <tr><th>Queue</th><th>Status</th><th class="right">Waiting</th><th class="right">Running</th></tr>
        </thead>
        <tbody>
          ${rows.map(
            (queue) => html`<tr key=${queue.name} data-row>
              <td data-label="Queue">
                <a href=${`/queues/${seg(queue.name)}`}><span class="clip">${queue.name}</span></a>
              </td>
              <td data-label="Status">${standing(queue)}</td>
              <td data-label="Waiting" class="right num" title=${queue.exact ? undefined : 'at least'}>
                ${brief(waiting(queue), !queue.exact)}
              </td>
              <td data-label="Running" class="right num">${brief(queue.states.executing ?? 0, !queue.exact)}</td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
  </${Panel}>`;
}

function standing(queue) {
  if (queue.runners === 0 && waiting(queue) > 0) return html`<${NoRunner} queue=${queue} />`;
  if (queue.paused)
    return html`
      <${Badge} is="paused" title=${queue.paused.reason ?? ''}>paused</${Badge}>${' '}
      <span class="faint">by ${whoOf(queue.paused.by)}, <${Time} at=${queue.paused.at} /></span>
    `;
  if (queue.concurrency !== null && queue.permits >= queue.concurrency)
    return html`<${Badge} is="warn">limit of ${queue.concurrency} reached</${Badge}>`;
  return queue.runners === 0 ? html`<${NoRunner} queue=${queue} />` : html`<span class="soft">running</span>`;
}

const sumOf = (hours, what) => hours.reduce((sum, hour) => sum + (hour[what] ?? 0), 0);

/** What becomes due in the next 24 hours. */
function Ahead() {
  const forecast = useQuery('/v1/forecast', { every: 60000 });
  const hours = forecast.data?.hours;
  const shown = useMemo(
    () =>
      hours && {
        x: hours.map((hour) => Date.parse(hour.from)),
        series: [{ name: 'jobs due', values: hours.map((hour) => hour.jobs), colour: 1, bars: true }],
      },
    [hours],
  );
  return html`
    <${Panel} title="Due in the next 24 hours" side=${html`<a href="/jobs?q=state:waiting due:<24h">Jobs</a>`}>
      ${
        shown
          ? html`<${Chart} label="Jobs due by hour" x=${shown.x} series=${shown.series} format=${brief} />`
          : forecast.error
            ? html`<${Trouble} error=${forecast.error} retry=${forecast.reload} />`
            : html`<${ChartToCome} />`
      }
      ${
        hours &&
        html`<p class="faint">
          ${plural(sumOf(hours, 'jobs'), 'job')}
          ${hours.some((hour) => hour.more) ? ' or more' : ''}${
            /* Schedules make their jobs when they tick. There are far more ticks than jobs, so no axis shows both. */
            sumOf(hours, 'ticks') > 0 && html` and ${plural(sumOf(hours, 'ticks'), 'tick')} of schedules`
          } within 24 hours.
        </p>`
      }
    </${Panel}>
  `;
}

/** The newest groups of dead letters. */
function Newest({ groups }) {
  const rows = (groups.data?.data ?? []).slice(0, 6);
  return html`<${Panel} title="Newest dead letters" flush side=${html`<a href="/dead-letters">All dead letters</a>`}>
    <${Trouble} error=${groups.error} retry=${groups.reload} />
    ${
      groups.data &&
      rows.length === 0 &&
      html`<${Empty} title="No open dead letters">
        Jobs that failed for good are gathered here by their cause.
      </${Empty}>`
    }
    ${
      rows.length > 0 &&
      html`<table class="cards">
        <thead>
          <tr><th>Error</th><th class="right">Open</th><th>Last</th><th>Sample</th></tr>
        </thead>
        <tbody>
          ${rows.map(
            (group) => html`<tr key=${group.fingerprint} data-row>
              <td data-label="Error" class="cause most">
                <a class="lines" href=${`/dead-letters/${group.fingerprint}`} title=${errorOf(group)}>
                  ${group.kind}: ${group.sample_error}
                </a>
              </td>
              <td data-label="Open" class="right num bold">${brief(group.open, group.capped)}</td>
              <td data-label="Last"><${Time} at=${group.last_seen} /></td>
              <td data-label="Sample"><${JobLink} id=${group.sample} /></td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
  </${Panel}>`;
}
