// Schedules: jobs that come by the clock.

import { call, get, seg, url } from '../core/api.js';
import { html, useMemo } from '../core/dom.js';
import { plural } from '../core/format.js';
import { readAll, useQuery } from '../core/query.js';
import { go, useWords } from '../core/route.js';
import { Allowed, Badge, Empty, Head, JobLink, Skeleton, Time, Trouble, useMay, useNow } from '../ui/base.js';
import { confirm } from '../ui/dialog.js';
import { ScheduleDay } from '../ui/schedule-day.js';
import { Outcome, pause, resume, ScheduleForm, trigger, Why } from '../ui/schedules.js';

const PAGE = 50;
/** Schedules of a search that are shown. */
const SHOWN = 200;

export default function Schedules() {
  const [query, change] = useWords();
  const admin = useMay('admin');
  if (query.get('new') && admin)
    return html`
      <${ScheduleForm}
        done=${(name) => (name ? go(`/schedules/${seg(name)}`, { replace: true }) : change({ new: null }))}
      />
    `;
  return html`<${List} query=${query} change=${change} />`;
}

/** The newest tick of each of these, where the listing does not say. */
function useLast(rows) {
  const names = rows.filter((schedule) => schedule.last_tick === undefined).map((schedule) => schedule.name);
  const read = async (_, signal) => {
    const found = {};
    const left = [...names];
    // A few at a time: a browser has six connections, one of which is the stream of events.
    await Promise.all(
      [1, 2, 3].map(async () => {
        for (let name = left.shift(); name; name = left.shift()) {
          const ticks = await get(`/v1/schedules/${seg(name)}/ticks`, { limit: 1 }, signal).catch(() => null);
          found[name] = ticks?.data[0] ?? null;
        }
      }),
    );
    return found;
  };
  return useQuery(names.length ? url('/v1/schedules', { ticks: names.join() }) : null, { every: 15000, read });
}

function List({ query, change }) {
  const word = query.get('q') ?? '';
  const cursor = query.get('cursor') ?? '';
  const page = useQuery(word ? '/v1/schedules?all' : url('/v1/schedules', { limit: PAGE, cursor }), {
    every: 10000,
    read: word ? readAll : null,
  });
  const all = page.data?.data ?? [];
  const fitting = useMemo(() => {
    const words = word.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (s) =>
      [
        s.name,
        s.description,
        s.cron,
        s.zone,
        s.kind,
        s.queue,
        s.paused && 'paused',
        s.origin === 'config' && 'configuration',
      ]
        .join(' ')
        .toLowerCase();
    return all.filter((schedule) => words.every((part) => text(schedule).includes(part)));
  }, [page.data, word]);
  const rows = fitting.slice(0, SHOWN);
  const last = useLast(rows.slice(0, PAGE));
  const admin = useMay('admin');
  const act = async (what, schedule) => {
    if (!(await what(schedule))) return;
    page.reload();
    last.reload();
  };
  const find = (event) => change({ q: event.target.value, cursor: null });
  const none = page.data && all.length === 0 && !cursor && !word && !page.data.unreadable?.length;
  return html`
    <${Head} title="Schedules" sub="Jobs that come by the clock. Every tick fires exactly once, or says why not.">
      ${
        !none &&
        html`<label>
          <span class="hidden-visually">Find a schedule</span>
          <input
            type="search"
            placeholder="Find a schedule"
            title="By name, kind, queue, or: paused"
            value=${word}
            onInput=${find}
          />
        </label>`
      }
      <${Allowed}><a class="button" href="/schedules?new=1">New schedule</a></${Allowed}>
    </${Head}>
    <${Trouble} error=${page.error} retry=${page.reload} />
    <${Unreadable} of=${page.data?.unreadable} reload=${page.reload} />
    <${ScheduleDay} names=${rows.slice(0, PAGE).map((schedule) => schedule.name)} />
    ${!page.data && !page.error && html`<${Skeleton} />`}
    ${
      page.data &&
      html`<section class="panel scroll" aria-label="Schedules found">
        ${
          none
            ? html`<${None} admin=${admin} />`
            : rows.length === 0
              ? html`<${Empty} title="No schedule matches">
                ${word && html`All words must be in its name, its times, its kind or its queue. `}
                <a href="/schedules">Show all schedules</a>
              </${Empty}>`
              : html`<table class="cards">
                <thead>
                  <tr>
                    <th>Schedule</th>
                    <th>When</th>
                    <th>Next run</th>
                    <th>Last tick</th>
                    <th class="roomy">Makes</th>
                    ${admin && html`<th><span class="hidden-visually">Actions</span></th>`}
                  </tr>
                </thead>
                <tbody>
                  ${rows.map(
                    (schedule) => html`<tr key=${schedule.name} data-row>
                      <td data-label="Schedule">
                        <span class="named">
                          <a class="bold" href=${`/schedules/${seg(schedule.name)}`}>${schedule.name}</a>
                          ${
                            schedule.origin === 'config' &&
                            html`
                              ${' '}
                              <span class="faint" title="Declared in a configuration file, which alone may change it">
                                config
                              </span>
                            `
                          }
                        </span>
                      </td>
                      <td data-label="When">
                        <div class="wrap">
                          ${schedule.description}
                          ${schedule.cron && html` <code class="faint nowrap">${schedule.cron}</code>`}
                        </div>
                      </td>
                      <td data-label="Next run"><${Next} schedule=${schedule} /></td>
                      <td data-label="Last tick">
                        <${Last}
                          tick=${schedule.last_tick ?? last.data?.[schedule.name]}
                          known=${schedule.last_tick !== undefined || Boolean(last.data)}
                        />
                      </td>
                      <td data-label="Makes" class="roomy">
                        <span>
                          ${schedule.kind}${' '}
                          <span class="faint">
                            in <a href=${`/queues/${seg(schedule.queue)}`}>${schedule.queue}</a>
                          </span>
                        </span>
                      </td>
                      ${
                        admin &&
                        html`<td class="right">
                          <div class="row tight end item">
                            <button
                              type="button"
                              class="small"
                              aria-label=${`Trigger ${schedule.name}`}
                              onClick=${() => act(trigger, schedule)}
                            >
                              Trigger
                            </button>
                            ${
                              schedule.paused
                                ? html`
                                  <button
                                    type="button"
                                    class="small"
                                    aria-label=${`Resume ${schedule.name}`}
                                    onClick=${() => act(resume, schedule)}
                                  >
                                    Resume
                                  </button>
                                `
                                : html`
                                  <button
                                    type="button"
                                    class="small"
                                    aria-label=${`Pause ${schedule.name}`}
                                    onClick=${() => act(pause, schedule)}
                                  >
                                    Pause
                                  </button>
                                `
                            }
                          </div>
                        </td>`
                      }
                    </tr>`,
                  )}
                </tbody>
              </table>`
        }
        ${
          !word &&
          (cursor || page.data.next_cursor) &&
          html`<div class="more row">
            ${cursor && html`<button type="button" onClick=${() => history.back()}>Before</button>`}
            ${
              page.data.next_cursor &&
              html`<button type="button" onClick=${() => change({ cursor: page.data.next_cursor }, { replace: false })}>
                More
              </button>`
            }
          </div>`
        }
        ${
          fitting.length > SHOWN &&
          html`<p class="more faint">The first ${SHOWN} of ${plural(fitting.length, 'schedule')} that match.</p>`
        }
        ${
          word &&
          page.data.next_cursor &&
          html`<p class="more faint">Only the first ${plural(all.length, 'schedule')} were looked through.</p>`
        }
      </section>`
    }
  `;
}

function Next({ schedule }) {
  const now = useNow();
  if (schedule.paused)
    return html`<div>
      <${Badge} is="paused" />
      ${
        schedule.paused.reason &&
        html`<span class="clip thin faint" title=${schedule.paused.reason}>${schedule.paused.reason}</span>`
      }
    </div>`;
  if (!schedule.next_at) return html`<span class="faint">never again</span>`;
  const late = now - Date.parse(schedule.next_at) > schedule.misfire_grace_ms + 5000;
  return html`<span>
    <${Time} at=${schedule.next_at} />
    ${
      late &&
      html`
        ${' '}
        <${Badge} is="bad" title="No runner fires it: none lives that has its kind, or MySQL is slow">late</${Badge}>
      `
    }
  </span>`;
}

function Last({ tick, known }) {
  if (!tick) return html`<span class="faint">${known ? 'none yet' : '…'}</span>`;
  return html`<div>
    <span class="row tight">
      <${Outcome} tick=${tick} />
      <${Time} at=${tick.due_at} />
      ${tick.job_id && html`<${JobLink} id=${tick.job_id} />`}
    </span>
    ${
      tick.outcome === 'skipped' &&
      tick.reason &&
      html`<span class="clip thin faint" title=${tick.reason}><${Why} tick=${tick} /></span>`
    }
  </div>`;
}

function Unreadable({ of, reload }) {
  if (!of?.length) return null;
  const remove = ({ name }) =>
    confirm(
      `Delete the schedule ${name}?`,
      'This runner cannot understand it, but a newer one may.',
      'Delete',
      async () => {
        await call('DELETE', `/v1/schedules/${seg(name)}`);
        reload();
        return true;
      },
      { danger: true },
    );
  return html`<div class="note warn">
    <b>This runner cannot understand ${plural(of.length, 'schedule')}.</b> A newer one wrote them, or they were changed
    by hand. They do not tick here.
    <ul>
      ${of.map(
        (one) => html`<li key=${one.name} class="wrap">
          <b>${one.name}</b>: ${one.reason}${' '}
          <${Allowed}><button type="button" class="small" onClick=${() => remove(one)}>Delete</button></${Allowed}>
        </li>`,
      )}
    </ul>
  </div>`;
}

const None = ({ admin }) => html`<${Empty} title="No schedule yet">
  A schedule makes a job at each tick of a cron expression or an interval, in a time zone of your choice.
  <div>
    <pre>curl -X PUT ${location.origin}/v1/schedules/nightly -H 'Content-Type: application/json' \\
  -d '{"cron": "30 2 * * *", "zone": "Europe/Warsaw", "kind": "http", "payload": {"url": "…"}}'</pre>
  </div>
  ${admin && html`<a href="/schedules?new=1">Or fill in a form</a>, which shows the next runs as you type.`} A
  configuration file declares them as <code>[schedules.nightly]</code>.
</${Empty}>`;
