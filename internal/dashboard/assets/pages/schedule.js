// One schedule: when it runs, the outcome of its ticks, and what may be done.

import { call, callTagged, seg, url } from '../core/api.js';
import { html, useState } from '../core/dom.js';
import { backoff, count, plural, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { go, useWords } from '../core/route.js';
import { Acts } from '../ui/acts.js';
import {
  Allowed,
  Badge,
  Copy,
  Empty,
  Head,
  JobLink,
  Panel,
  Segment,
  Skeleton,
  Time,
  Trouble,
  tell,
  useMay,
} from '../ui/base.js';
import { confirm } from '../ui/dialog.js';
import { Json, useSchema } from '../ui/json.js';
import { Pages } from '../ui/paging.js';
import { Outcome, pause, policies, Runs, resume, ScheduleForm, trigger, Why } from '../ui/schedules.js';

const TICKS = 20;

export default function SchedulePage({ params: [name] }) {
  const [query, change] = useWords();
  const admin = useMay('admin');
  const path = `/v1/schedules/${seg(name)}`;
  const schedule = useQuery(path, { every: 5000 });
  const schema = useSchema(schedule.data?.kind);
  // Also what was made by hand or by another operator is shown at once.
  const [round, again] = useState(0);
  const it = schedule.data;
  if (query.get('edit') && admin && it?.origin === 'api')
    return html`
      <${ScheduleForm}
        name=${name}
        done=${() => {
          change({ edit: null });
          schedule.reload();
          again((n) => n + 1);
        }}
      />
    `;
  if (schedule.error && [404, 422].includes(schedule.error.status)) {
    return html`
      <${Head} title="Schedule" />
      <section class="panel">
        <${Empty} title="There is no such schedule">
          <span class="mono wrap">${name}</span><br />It may have been deleted. <a href="/schedules">All schedules</a>
        </${Empty}>
      </section>
      ${schedule.error.status === 404 && html`<${Ticks} path=${path} gone /><${Acts} target=${name} of="schedule" />`}
    `;
  }
  if (!it)
    return schedule.error
      ? html`<${Trouble} error=${schedule.error} retry=${schedule.reload} />`
      : html`<${Skeleton} />`;
  const act = async (what) => {
    if (!(await what(it))) return;
    schedule.reload();
    again((n) => n + 1);
  };
  const declared = it.origin === 'config';
  return html`
    <${Head}
      title=${html`<span class="wrap">${it.name}</span> ${it.paused && html`<${Badge} is="paused" />`}`}
      sub=${html`<span class="wrap">${it.description}</span>`}
    >
      <${Allowed}>
        <div class="row">
          <button type="button" onClick=${() => act(trigger)}>Trigger</button>
          ${
            it.paused
              ? html`<button type="button" class="primary" onClick=${() => act(resume)}>Resume</button>`
              : html`<button type="button" onClick=${() => act(pause)}>Pause</button>`
          }
          ${
            !declared &&
            html`<button type="button" onClick=${() => change({ edit: 1 }, { replace: false })}>Edit</button>`
          }
          <button type="button" class="danger" onClick=${() => remove(it, path)}>Delete</button>
        </div>
      </${Allowed}>
    </${Head}>
    <${Trouble} error=${schedule.error} retry=${schedule.reload} />
    ${
      declared &&
      html`<div class="note">
        <b>Declared in a configuration file</b>, which alone says what it asks for: change${' '}
        <code class="wrap">[schedules.${it.name}]</code> there and restart the runners. Here it can be triggered, paused
        and resumed.
      </div>`
    }
    ${
      it.paused &&
      html`<div class="note warn">
        <b>Paused</b> <${Time} at=${it.paused.at} /> by <span class="wrap">${it.paused.by}</span>. Its ticks pass
        without firing.
        ${it.paused.reason && html`<p class="wrap">${it.paused.reason}</p>`}
      </div>`
    }
    <div class="grid wide">
      <div class="stack">
        <${Panel} title=${it.paused ? 'Ticks to come, which pass while it is paused' : 'Next runs'} flush>
          <${Runs} runs=${it.next_runs} zone=${it.zone} />
        </${Panel}>
        <${Ticks} path=${path} round=${round} />
      </div>
      <div class="stack">
        <${Panel} title="Details"><${Facts} it=${it} round=${round} /></${Panel}>
        <${Panel} title="Payload of its jobs">
          <${Json} value=${it.payload} schema=${schema} label="payload" />
        </${Panel}>
        <${Acts} key=${round} target=${name} of="schedule" />
      </div>
    </div>
  `;
}

function remove(it, path) {
  const declared = it.origin === 'config';
  return confirm(
    `Delete the schedule ${it.name}?`,
    declared
      ? 'This is for what is left over when no configuration declares it any more. ' +
          'A runner whose file still does makes it anew when it starts; one that declares it itself refuses.'
      : 'It fires no more. Its jobs stay, and the record of its ticks stays until its retention ends.',
    'Delete',
    async () => {
      // What was changed since it was looked at is not deleted unseen.
      const { body, tag } = await callTagged('GET', path);
      if (body.updated_at !== it.updated_at)
        throw new Error('Another operator changed it meanwhile. Look at it again first.');
      await call('DELETE', url(path, { undeclared: declared || null }), { headers: { 'if-match': tag } });
      tell(`${it.name} was deleted`);
      go('/schedules');
      return true;
    },
    { danger: true },
  );
}

/** Read once more after each action of this page: `round` counts them. */
function useRounds(round, reload) {
  const [seen, see] = useState(round);
  if (seen === round) return;
  see(round);
  reload();
}

function Facts({ it, round }) {
  // Servers that have no filter for schedules yet say 422.
  const made = useQuery(url('/v1/jobs/count', { q: `schedule:${it.name}` }), { every: 10000 });
  useRounds(round, made.reload);
  const policy = (word, of) => html`<dd><b>${of}</b> <span class="soft">${policies[word][of]}</span></dd>`;
  return html`<dl class="facts">
    <dt>When</dt>
    <dd>
      ${
        it.cron
          ? html`<span class="row tight">
            <code>${it.cron}</code>
            <${Copy} text=${it.cron} label="Copy the expression" />
          </span>`
          : `every ${span(it.every_ms)}, counted from `
      }
      ${it.anchor && html`<${Time} at=${it.anchor} />`}
    </dd>
    <dt>Time zone</dt>
    <dd>${it.zone}</dd>
    ${it.dst && html`<dt>Clocks turned</dt>${policy('dst', it.dst)}`}
    <dt>Overlap</dt>
    ${policy('overlap', it.overlap)}
    <dt>Missed ticks</dt>
    ${policy('misfire', it.misfire)}
    <dt>Missed after</dt>
    <dd>${span(it.misfire_grace_ms)}</dd>
    <dt>Kind</dt>
    <dd>${it.kind}</dd>
    <dt>Queue</dt>
    <dd><a href=${`/queues/${seg(it.queue)}`}>${it.queue}</a></dd>
    <dt>Priority</dt>
    <dd>${it.priority} (0 runs first, 9 last)</dd>
    ${it.max_attempts && html`<dt>Attempts</dt><dd>${it.max_attempts}</dd>`}
    ${it.timeout_ms && html`<dt>Time limit</dt><dd>${span(it.timeout_ms)}</dd>`}
    ${it.retry && html`<dt>Retries</dt><dd>${backoff(it.retry)}</dd>`}
    ${
      it.order_key &&
      html`
        <dt>Order key</dt>
        <dd>
          <span class="mono wrap">${it.order_key}</span>${' '}
          <span class="soft">a failed job ${it.on_failure === 'skip' ? 'is skipped' : 'blocks those behind it'}</span>
        </dd>
      `
    }
    ${it.limit_key && html`<dt>Limit key</dt><dd class="mono wrap">${it.limit_key}</dd>`}
    ${it.expires_in_ms && html`<dt>Expires after</dt><dd>${span(it.expires_in_ms)}</dd>`}
    ${
      it.tags?.length > 0 &&
      html`<dt>Tags</dt><dd>${it.tags.map((tag) => html`<span key=${tag} class="tag">${tag}</span> `)}</dd>`
    }
    <dt>Last job</dt>
    <dd><${JobLink} id=${it.last_job} /></dd>
    ${
      made.data &&
      html`
        <dt>Jobs</dt>
        <dd><a href=${url('/jobs', { q: `schedule:${it.name}` })}>${count(made.data.count, made.data.capped)}</a></dd>
      `
    }
    <dt>Made</dt>
    <dd><${Time} at=${it.created_at} /> by ${it.created_by}</dd>
    <dt>Last changed</dt>
    <dd><${Time} at=${it.updated_at} /> by ${it.updated_by}</dd>
  </dl>`;
}

const outcomes = [
  ['', 'All'],
  ['fired', 'Fired'],
  ['skipped', 'Skipped'],
];

/** Its ticks with their results, page by page. */
function Ticks({ path, gone, round }) {
  const [query, change] = useWords();
  const asked = query.get('outcome') ?? '';
  const outcome = outcomes.some(([word]) => word === asked) ? asked : '';
  const cursor = query.get('cursor') ?? '';
  const ticks = useQuery(url(`${path}/ticks`, { outcome, limit: TICKS, cursor }), { every: cursor ? 0 : 5000 });
  useRounds(round, ticks.reload);
  const rows = ticks.data?.data ?? [];
  if (gone && ticks.error) return null;
  const turn = (word) => change({ outcome: word, cursor: null });
  return html`
    <${Panel} title="Ticks" flush side=${html`<${Segment} label="Outcome" of=${outcomes} is=${outcome} on=${turn} />`}>
      <${Trouble} error=${ticks.error} retry=${ticks.reload} />
      ${!ticks.data && !ticks.error && html`<${Skeleton} />`}
      ${
        ticks.data &&
        rows.length === 0 &&
        (ticks.data.next_cursor
          ? html`<p class="body faint">None in this stretch. Older ones may be there.</p>`
          : html`<${Empty} title=${outcome || cursor ? 'No such tick' : 'No tick yet'}>
            Each tick leaves a line here: the job that it made, or why it made none.
          </${Empty}>`)
      }
      ${
        rows.length > 0 &&
        html`<table class="cards">
          <thead>
            <tr>
              <th>Due</th>
              <th>Outcome</th>
              <th>Job</th>
              <th>Why</th>
              <th>Handled by</th>
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (tick) => html`<tr key=${`${tick.due_at} ${tick.recorded_at}`} data-row>
                <td data-label="Due"><${Time} at=${tick.due_at} /></td>
                <td data-label="Outcome">
                  <span class="row tight">
                    <${Outcome} tick=${tick} />
                    ${
                      tick.ticks > 1 &&
                      html`<span class="faint" title="After an outage ticks share a line">
                        ${tick.ticks >= 10000 ? 'at least ' : ''}
                        ${plural(tick.ticks, 'tick')}
                      </span>`
                    }
                  </span>
                </td>
                <td data-label="Job" class="nowrap"><${JobLink} id=${tick.job_id} /></td>
                <td data-label="Why">
                  ${
                    tick.reason
                      ? html`<span class="clamp" title=${tick.reason}><${Why} tick=${tick} /></span>`
                      : html`<span class="faint">–</span>`
                  }
                </td>
                <td data-label="Handled by">
                  <span>
                    <span class="clip thin faint" title=${tick.recorded_by}>${tick.recorded_by}</span>
                    ${
                      Date.parse(tick.recorded_at) - Date.parse(tick.due_at) > 2000 &&
                      html`<span class="faint">
                        ${span(Date.parse(tick.recorded_at) - Date.parse(tick.due_at))} after
                      </span>`
                    }
                  </span>
                </td>
              </tr>`,
            )}
          </tbody>
        </table>`
      }
      <${Pages} cursor=${cursor} next=${ticks.data?.next_cursor} change=${change} />
    </${Panel}>
  `;
}
