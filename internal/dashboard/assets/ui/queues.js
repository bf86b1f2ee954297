// What is wrong with a queue, and what may be done about it.

import { call, callTagged, post, seg } from '../core/api.js';
import { html } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { known } from '../core/known.js';
import { useObservable } from '../core/observable.js';
import { Badge, tell, tellProblem } from './base.js';
import { ask, InputField } from './dialog.js';
import { isDrained } from './runners.js';

/** Jobs that have been due for longer than this are no longer on their way. */
export const BEHIND = '<-10s';

/** How long the oldest due job of each queue has waited, in ms, as the frame knows it. */
export const useLate = () => useObservable(known).stats.data?.lateness.oldest_due_ms_by_queue ?? {};

export const waiting = (queue) => (queue.states.waiting ?? 0) + (queue.states.retrying ?? 0);
/** Has it more open dead letters than the server counts? A server of an older version does not say it. */
export const hasUncounted = (queue) => queue.open_dead_letters_exact === false;
/** How many jobs wait, in words. */
const waiters = (queue) => `${plural(waiting(queue), 'job')}${queue.exact ? '' : ' or more'}`;
export const full = (queue) => queue.concurrency !== null && queue.permits >= queue.concurrency && waiting(queue) > 0;
const alone = (queue) => queue.runners === 0 && waiting(queue) > 0;

/** How much is wrong with a queue. `behind` is `{count, capped}` of the jobs that are overdue, if that is known. */
export const troubleOf = (queue, behind) =>
  (alone(queue) ? 8 : 0) + (queue.paused ? 4 : 0) + (full(queue) ? 2 : 0) + (behind?.count ? 1 : 0);

/** That no runner takes its jobs, as a badge: the frame knows whether there are drained ones. */
export function NoRunner({ queue }) {
  const drained = isDrained(useObservable(known).runners.data, queue.name);
  const word = drained ? 'drained' : 'no runner';
  if (!alone(queue)) return html`<${Badge}>idle, ${word}</${Badge}>`;
  const title = drained ? 'It has jobs, and its runners are drained' : 'It has jobs, and no living runner serves it';
  return html`<${Badge} is="bad" title=${title}>${word}</${Badge}>`;
}

/** Its standing as badges, the worst first. */
export function Standing({ queue, behind }) {
  const all = [
    alone(queue) && html`<${NoRunner} queue=${queue} />`,
    queue.paused && html`<${Badge} is="paused" />`,
    full(queue) && html`<${Badge} is="warn" title="As many of its jobs run as may">limit reached</${Badge}>`,
    behind?.count > 0 &&
      html`<${Badge} is="warn" title="Jobs that have been due for more than 10 s">
        ${count(behind.count, behind.capped)} overdue
      </${Badge}>`,
  ].filter(Boolean);
  if (!all.length)
    all.push(queue.runners ? html`<span class="soft">running</span>` : html`<${NoRunner} queue=${queue} />`);
  return html`<span class="row tight">${all}</span>`;
}

export function pause(queue) {
  return ask({
    title: queue.paused ? `Why is ${queue.name} paused?` : `Pause the queue ${queue.name}?`,
    action: queue.paused ? 'Keep it paused' : 'Pause',
    danger: !queue.paused,
    values: { reason: queue.paused?.reason ?? '' },
    body: ({ values, set }) => html`
      <p>
        ${
          queue.paused
            ? 'It stays paused. Only the reason changes.'
            : `Within 2 s no runner starts a job of it any more. What runs goes on; ${waiters(queue)} will wait.`
        }
      </p>
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
      const body = reason.trim() ? { reason } : {};
      await post(`/v1/queues/${seg(queue.name)}/pause`, body);
      tell(queue.paused ? 'The reason was changed' : `${queue.name} is paused: nothing of it starts any more`);
      return true;
    },
  });
}

export function resume(queue) {
  return ask({
    title: `Resume the queue ${queue.name}?`,
    action: 'Resume',
    body: () => html`
      <p>Its jobs start again as workers become free: ${waiters(queue)} ${waiting(queue) === 1 ? 'waits' : 'wait'}.</p>
      ${queue.paused?.reason && html`<p class="wrap soft">It was paused because: ${queue.paused.reason}</p>`}
      ${
        queue.runners === 0 &&
        html`<p class="warn">
          ${
            isDrained(known.get().runners.data, queue.name)
              ? 'Its runners are drained, so nothing will start until one is resumed.'
              : 'No living runner serves it, so nothing will start until one does.'
          }
        </p>`
      }
    `,
    submit: async () => {
      await post(`/v1/queues/${seg(queue.name)}/resume`);
      tell(`${queue.name} is resumed`);
      return true;
    },
  });
}

/** Ask for another priority or limit. What another operator changed meanwhile is not overwritten. */
export async function setUp(name) {
  const path = `/v1/queues/${seg(name)}`;
  let seen;
  try {
    seen = await callTagged('GET', path);
  } catch (problem) {
    if (problem.status !== 404) {
      tellProblem(problem);
      return undefined;
    }
    // It has no settings and no jobs.
    seen = { body: { priority: 5, concurrency: null }, tag: '"0"' };
  }
  const { body: queue, tag } = seen;
  return ask({
    title: `Limit and priority of ${name}`,
    action: 'Save',
    values: { concurrency: String(queue.concurrency ?? ''), priority: String(queue.priority) },
    body: ({ values, set }) => html`
      <div class="fields">
        <${InputField}
          label="Jobs at the same time"
          id="queue-limit"
          name="concurrency"
          hint="All runners together. Empty: no limit. To start nothing, pause the queue."
          type="number"
          min="1"
          max="100000"
          values=${values}
          set=${set}
        />
        <${InputField}
          label="Priority"
          id="queue-priority"
          name="priority"
          hint="0 runs first, 9 last. It goes before the priority of jobs."
          type="number"
          min="0"
          max="9"
          required
          values=${values}
          set=${set}
        />
      </div>
      <p class="faint">Effective on every runner within 2 s. A lower limit stops nothing that runs.</p>
    `,
    ready: (values) =>
      values.priority !== '' &&
      (values.concurrency !== String(queue.concurrency ?? '') || values.priority !== String(queue.priority)),
    submit: async (values) => {
      const body = {};
      if (values.concurrency !== String(queue.concurrency ?? ''))
        body.concurrency = values.concurrency === '' ? null : Number(values.concurrency);
      if (values.priority !== String(queue.priority)) body.priority = Number(values.priority);
      await call('PATCH', path, { body, headers: { 'if-match': tag } });
      tell(`${name} was changed`);
      return true;
    },
  });
}
