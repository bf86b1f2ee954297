// Queues: those with a problem first.

import { get, seg, url } from '../core/api.js';
import { html, useMemo, useRef, useState } from '../core/dom.js';
import { brief, count, plural, rate, span, whoOf } from '../core/format.js';
import { inLine, useQuery } from '../core/query.js';
import { Allowed, Empty, Head, Skeleton, Time, Trouble } from '../ui/base.js';
import { Chart, Spark } from '../ui/chart.js';
import { HeatMap } from '../ui/heat-map.js';
import { linesOf, useByQueue, useQueueHistory } from '../ui/history.js';
import { BEHIND, hasUncounted, pause, resume, Standing, troubleOf, useLate, waiting } from '../ui/queues.js';

const happens = ['accepted', 'started', 'settled', 'cancelled', 'rescheduled', 'reaped'];
const PAGE = 50;
/** Queues whose overdue jobs are counted, one bounded request each. */
const MAX_COUNTED = 20;
/** From this wait on a job is overdue, in ms. */
const OVERDUE = 10000;
const NONE = {};

/** How many jobs of the busiest queues are overdue. They are counted in turns, one queue after the other. */
function useBehind(rows, late) {
  const [behind, set] = useState({});
  const names = useRef([]);
  names.current = rows
    .filter((queue) => waiting(queue) > 0 && late[queue.name] > OVERDUE)
    .sort((a, b) => waiting(b) - waiting(a))
    .slice(0, MAX_COUNTED)
    .map((queue) => queue.name);
  const read = async (_, signal) => {
    const found = {};
    for (const name of names.current) {
      if (Object.keys(found).length > 0) await inLine();
      found[name] = await get('/v1/jobs/count', { q: `queue:${name} state:waiting due:${BEHIND}` }, signal);
      set((old) => ({ ...old, [name]: found[name] }));
    }
    set(found);
    return found;
  };
  const some = names.current.length > 0;
  useQuery(some ? '/v1/jobs/count?of=queues' : null, { every: 10000, read });
  return some ? behind : NONE;
}

const INEXACT = '. There are so many jobs that not all are counted: + means at least';
const UNCOUNTED = 'At least: there are more open dead letters in all queues together than the server counts';
const permitsOf = ({ permits, concurrency }) =>
  `${count(permits)} of ${count(concurrency)} permits are taken, all runners together`;

export default function Queues() {
  const queues = useQuery('/v1/queues', { on: happens, every: 10000, pace: 2000 });
  const five = useQueueHistory('5m');
  const histories = useByQueue(five);
  const [word, setWord] = useState('');
  const [most, showMost] = useState(PAGE);
  const all = queues.data?.data ?? [];
  const late = useLate();
  const behind = useBehind(all, late);
  const rows = useMemo(
    () =>
      all
        .filter((queue) => queue.name.includes(word.trim().toLowerCase()))
        .map((queue) => ({ queue, trouble: troubleOf(queue, behind[queue.name]) }))
        .sort(
          (a, b) =>
            b.trouble - a.trouble || waiting(b.queue) - waiting(a.queue) || a.queue.name.localeCompare(b.queue.name),
        ),
    [queues.data, behind, word],
  );
  const bad = rows.filter((row) => row.trouble > 0).length;
  const inexact = queues.data?.exact ? '' : INEXACT;
  const shown = rows.slice(0, most);
  const act = async (what, queue) => (await what(queue)) && queues.reload();
  return html`
    <${Head}
      title="Queues"
      sub=${
        queues.data &&
        all.length > 0 &&
        `${plural(all.length, 'queue')}, ${bad ? `${bad} with a problem` : 'all well'}${inexact}`
      }
    >
      ${
        all.length > 10 &&
        html`<label>
          <span class="hidden-visually">Find a queue</span>
          <input type="search" placeholder="Find a queue" value=${word} onInput=${(e) => setWord(e.target.value)} />
        </label>`
      }
    </${Head}>
    <${Trouble} error=${queues.error} retry=${queues.reload} />
    ${all.length > 0 && html`<${HeatMap} five=${five} rows=${all.length} />`}
    ${!queues.data && !queues.error && html`<${Skeleton} />`}
    ${
      queues.data &&
      html`<section class="panel scroll" aria-label="Queues found">
        ${
          all.length === 0
            ? html`<${None} />`
            : rows.length === 0
              ? html`<${Empty} title="No queue has such a name" />`
              : html`<table class="cards">
                <thead>
                  <tr>
                    <th>Queue</th>
                    <th>Status</th>
                    <th class="right">Waiting</th>
                    <th class="right">Running</th>
                    <th class="right roomy">Completed</th>
                    <th class="right">Runners</th>
                    ${histories && html`<th class="roomy">Finished, 5 min</th><th class="roomy">Lateness, 5 min</th>`}
                    <${Allowed}>
                      <th><span class="hidden-visually">Actions</span></th>
                    </${Allowed}>
                  </tr>
                </thead>
                <tbody>
                  ${shown.map(
                    ({ queue }) => html`<tr key=${queue.name} data-row>
                      <td data-label="Queue">
                        <span class="named">
                          <a class="bold" href=${`/queues/${seg(queue.name)}`}>${queue.name}</a>
                          ${
                            queue.priority !== 5 &&
                            html`
                              ${' '}
                              <span class="faint" title="Priority: 0 runs first, 9 last">p${queue.priority}</span>
                            `
                          }
                        </span>
                      </td>
                      <td data-label="Status">
                        <div>
                          <${Standing} queue=${queue} behind=${behind[queue.name]} />
                          ${
                            queue.paused &&
                            html`<div class="faint wrap">
                              ${
                                queue.paused.reason &&
                                html`<span class="clip thin" title=${queue.paused.reason}>
                                  ${queue.paused.reason}
                                </span>`
                              }
                              <span class="clip thin" title=${queue.paused.by}>
                                <${Time} at=${queue.paused.at} /> by ${whoOf(queue.paused.by)}
                              </span>
                            </div>`
                          }
                          ${
                            late[queue.name] > 0 &&
                            html`<div class="faint">longest wait ${span(late[queue.name])}</div>`
                          }
                        </div>
                      </td>
                      <td data-label="Waiting" class="right num">
                        <div>
                          <a href=${jobs(queue, 'waiting')}>${brief(queue.states.waiting ?? 0, !queue.exact)}</a>
                          ${
                            queue.states.retrying > 0 &&
                            html`<div>
                              <a class="warn" href=${jobs(queue, 'retrying')}>
                                ${brief(queue.states.retrying, !queue.exact)} retrying
                              </a>
                            </div>`
                          }
                        </div>
                      </td>
                      <td data-label="Running" class="right num">
                        <div>
                          <a href=${jobs(queue, 'executing')}>${brief(queue.states.executing ?? 0, !queue.exact)}</a>
                          ${
                            queue.concurrency !== null &&
                            html`<div class="faint" title=${permitsOf(queue)}>of ${brief(queue.concurrency)}</div>`
                          }
                        </div>
                      </td>
                      <td data-label="Completed" class="right num roomy">
                        <div>
                          ${brief(queue.states.completed ?? 0)}
                          ${
                            (queue.open_dead_letters > 0 || (hasUncounted(queue) && queue.states.failed > 0)) &&
                            html`<div>
                              <a
                                class="bad"
                                href=${`/jobs?q=queue:${queue.name} dead_letter:open`}
                                title=${hasUncounted(queue) ? UNCOUNTED : undefined}
                              >
                                ${brief(queue.open_dead_letters, hasUncounted(queue))} open dead letters
                              </a>
                            </div>`
                          }
                          ${
                            queue.states.failed > 0 &&
                            html`<div>
                              <a class="faint" href=${jobs(queue, 'failed')}>
                                ${brief(queue.states.failed)} failed in all
                              </a>
                            </div>`
                          }
                        </div>
                      </td>
                      <td data-label="Runners" class="right num"><a href="/runners">${queue.runners}</a></td>
                      ${histories && html`<${Recent} points=${histories.get(queue.name)} name=${queue.name} />`}
                      <${Allowed}>
                        <td class="right">
                          ${
                            queue.paused
                              ? html`
                                <button
                                  type="button"
                                  class="small"
                                  aria-label=${`Resume ${queue.name}`}
                                  onClick=${() => act(resume, queue)}
                                >
                                  Resume
                                </button>
                              `
                              : html`
                                <button
                                  type="button"
                                  class="small"
                                  aria-label=${`Pause ${queue.name}`}
                                  onClick=${() => act(pause, queue)}
                                >
                                  Pause
                                </button>
                              `
                          }
                        </td>
                      </${Allowed}>
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

/** How many jobs of a queue ended, and how late, as lines in cells. */
function Recent({ points, name }) {
  const late = useMemo(() => points && linesOf(points).late, [points]);
  const none = html`<span class="faint">–</span>`;
  const [p50, p99] = late?.map(({ values }) => values.findLast((value) => value !== null)) ?? [];
  return html`
    <td data-label="Finished, 5 min" class="roomy spare">
      ${
        points
          ? html`<div>
            <${Spark} values=${points.ended} label=${`Jobs of ${name} that ended per second`} />
            <span class="faint num">${rate(points.ended.at(-1))}/s</span>
          </div>`
          : none
      }
    </td>
    <td data-label="Lateness, 5 min" class="roomy spare">
      ${
        p99 !== undefined
          ? html`<div>
            <${Chart} axes=${false} x=${points.at_ms} series=${late} format=${span} label=${`Lateness of ${name}`} />
            <span class="faint num">${span(p50)} · ${span(p99)}</span>
          </div>`
          : none
      }
    </td>
  `;
}

const jobs = (queue, state) => url('/jobs', { q: `queue:${queue.name} state:${state}` });

const None = () => html`<${Empty} title="No queue yet">
  A queue is a line of jobs. It comes with its first job, and runs once a runner serves it:
  <div>
    <pre>curl -X POST ${location.origin}/v1/jobs -H 'Content-Type: application/json' \\
  -d '{"kind": "…", "queue": "mail", "payload": {…}}'
tickr serve --queues default,mail</pre>
  </div>
</${Empty}>`;
