// What is done to many jobs: first a dry run that shows what would become of them, then an operation to follow.

import { dryRun, get, isOut } from '../core/api.js';
import { html, useEffect, useRef, useState } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { announce } from '../core/live.js';
import { Badge, JobLink, Skeleton, Trouble, tell } from './base.js';
import { ask, InputField } from './dialog.js';

/** Actions by their words in the API. */
export const actions = {
  retry: { name: 'Retry', what: 'Failed and cancelled jobs run again, with all of their attempts.' },
  run_now: { name: 'Run now', what: 'Waiting jobs become due at once.' },
  cancel: { name: 'Cancel', danger: true, what: 'Waiting jobs will never start; running ones are asked to stop.' },
  reschedule: { name: 'Reschedule', what: 'Waiting jobs get another due time.' },
  set_priority: { name: 'Set the priority', what: 'Waiting jobs become more or less urgent.' },
  delete: {
    name: 'Delete',
    danger: true,
    what: 'Jobs that have ended are removed, with their attempts and results. That cannot be undone.',
  },
  replay: { name: 'Replay', what: 'Each open dead letter becomes a new job with fresh attempts, linked both ways.' },
  discard: {
    name: 'Discard',
    danger: true,
    reason: true,
    what: 'Open dead letters leave the list with a reason, and are purged after their retention.',
  },
};

/** The body of a request for an operation. Only a filter that is null means all jobs. */
function bodyOf(action, filter, values) {
  const body = { action };
  if (filter === null) body.all = true;
  else body.filter = filter;
  if (values.rate) body.rate = Number(values.rate);
  if (values.reason) body.reason = values.reason;
  if (action === 'reschedule' && values.when) body.execute_at = new Date(values.when).toISOString();
  if (action === 'set_priority') body.priority = Number(values.priority || 5);
  return body;
}

const complete = (action, values) =>
  (action !== 'reschedule' || values.when) &&
  (action !== 'set_priority' || values.priority !== '') &&
  (!actions[action].reason || values.reason?.trim());

/** A dry run waits so long for the user to go on typing, in ms. */
const TYPING = 300;
/** The server asks for a dry run again so many times in a row before the dialog says so. */
const PATIENCE = 5;
/** Longest wait before a dry run is asked for again, in ms; up to as much again is random. */
const MAX_WAIT = 15000;
/** A dry run that the server or MySQL was out for is asked for so much later, in ms; up to as much again is random. */
const OUT = 5000;

/** What an operation would do, as a dry run says. */
export function Preview({ action, filter, values }) {
  const [state, set] = useState({});
  // Taken once. A request with the present time would be another one at each drawing, and would be sent each time.
  const due = useRef(null);
  due.current ??= new Date(Date.now() + 3600e3).toISOString();
  // What a dry run says does not depend on pace, reason or priority, but it wants a request that could be made.
  const asked = JSON.stringify(
    bodyOf(action, filter, { reason: 'preview', when: values.when || due.current, rate: null, priority: null }),
  );
  const begun = useRef(false);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const read = (refused) =>
      dryRun('/v1/operations', { ...JSON.parse(asked), dry_run: true }, abort.signal).then(
        (found) => abort.signal.aborted || set({ found }),
        (error) => {
          if (abort.signal.aborted) return;
          // A server with too many heavy reads answers a later one.
          const again = error.code === 'overloaded';
          const wait = Math.min(1000 * 2 ** refused, MAX_WAIT) * (1 + Math.random());
          if (again) timer = setTimeout(read, wait, refused + 1);
          else if (isOut(error)) timer = setTimeout(read, OUT * (1 + Math.random()), 0);
          if (!again || refused >= PATIENCE) set({ error });
        },
      );
    set({});
    timer = setTimeout(read, begun.current ? TYPING : 0, 0);
    begun.current = true;
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [asked]);
  if (state.error) return html`<${Trouble} error=${state.error} />`;
  if (!state.found) return html`<${Skeleton} />`;
  const { found } = state;
  const skipped = found.would_skip ?? [];
  return html`<div class="stack tight" data-preview>
    <p>
      ${found.capped && 'At least '}<b>${count(found.count)}</b> ${found.count === 1 ? 'job matches' : 'jobs match'}.
      ${
        skipped.length > 0 &&
        html`
          ${' '}<b>${count(found.would_change, found.capped)}</b> would change.${' '}
          <span class="soft">
            The others would be left as they are:${' '}
            ${skipped.map((group) => `${count(group.jobs, found.capped)} ${group.reason}`).join(', ')}.
          </span>
        `
      }
      ${
        values.rate > 0 &&
        found.count > 0 &&
        html`
          ${' '}
          <span class="soft">
            At ${count(Number(values.rate))} per second that takes ${found.capped ? 'more than' : 'about'}${' '}
            ${span(((found.would_change ?? found.count) / values.rate) * 1000)}.
          </span>
        `
      }
    </p>
    ${
      found.sample.length > 0 &&
      html`<div class="scroll panel">
        <table class="cards">
          <thead>
            <tr><th>Job</th><th>Kind</th><th>Is</th><th>Would be</th></tr>
          </thead>
          <tbody>
            ${found.sample.map(
              (job) => html`<tr key=${job.id}>
                <td data-label="Job"><${JobLink} id=${job.id} away /></td>
                <td data-label="Kind">${job.kind}</td>
                <td data-label="Is"><${Badge} is=${job.state} /></td>
                <td data-label="Would be">
                  ${
                    job.would_be
                      ? html`<${Badge} is=${job.would_be} />`
                      : html`<span class="faint">left as it is</span>`
                  }
                </td>
              </tr>`,
            )}
          </tbody>
        </table>
      </div>`
    }
    ${
      found.count > found.sample.length &&
      html`<p class="faint">and ${count(found.count - found.sample.length, found.capped)} more</p>`
    }
  </div>`;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Let every screen read again each time that an operation has changed some jobs, until it ends. */
export async function follow(id) {
  let seen = '';
  for (let wait = 250; ; wait = Math.min(5000, wait * 2.5)) {
    await pause(wait);
    if (document.hidden) continue;
    try {
      const { state, done, skipped, failed } = await get(`/v1/operations/${id}`);
      const now = `${state} ${done} ${skipped} ${failed}`;
      if (now !== seen) announce({ type: 'operation', data: id });
      seen = now;
      if (state !== 'running') return;
    } catch (problem) {
      // A server that cannot be reached comes back; an operation that may not be read does not.
      if (problem.status >= 400 && problem.status < 500) return;
    }
  }
}

/** The jobs that the filter of a request means, for the title of its dialog. */
const subjectOf = (filter) =>
  filter === null ? 'all jobs' : filter.ids ? plural(filter.ids.length, 'selected job') : 'all jobs that match';

/** A moment as a field of the browser has it, in local time. */
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

/**
 * Ask, show a preview, and start. `filter` is that of `POST /v1/operations`, or null for all jobs. `about` is the cause
 * that the jobs share; `priority` and `due` are what the fields begin with. Resolves with the operation, or undefined.
 */
export async function bulk(
  action,
  filter,
  { rate = '', name = actions[action].name, title = `${name}: ${subjectOf(filter)}`, about, priority = 5, due } = {},
) {
  const { what, danger, reason } = actions[action];
  const operation = await ask({
    title,
    action: name,
    danger,
    // Two buttons of one name would be one too many.
    cancel: action === 'cancel' ? 'Close' : undefined,
    broad: true,
    values: { rate: String(rate), reason: '', when: due ? local(Date.parse(due)) : '', priority: String(priority) },
    ready: (values) => complete(action, values),
    submit: (values, once) => once('/v1/operations', bodyOf(action, filter, values)),
    body: ({ values, set }) => html`
      <p>${what}</p>
      ${about && html`<div class="error">${about}</div>`}
      <div class="fields">
        ${
          action === 'reschedule' &&
          html`
            <${InputField}
              label="Due at (your local time)"
              id="bulk-when"
              name="when"
              type="datetime-local"
              required
              values=${values}
              set=${set}
            />
          `
        }
        ${
          action === 'set_priority' &&
          html`
            <${InputField}
              label="Priority"
              id="bulk-priority"
              name="priority"
              hint="0 runs first, 9 last"
              type="number"
              min="0"
              max="9"
              required
              values=${values}
              set=${set}
            />
          `
        }
        <${InputField}
          label="Jobs per second"
          id="bulk-rate"
          name="rate"
          hint="Empty: as fast as it goes"
          type="number"
          min="1"
          max="10000"
          values=${values}
          set=${set}
        />
        <${InputField}
          label=${reason ? 'Reason (needed)' : 'Reason'}
          id="bulk-reason"
          name="reason"
          hint="Kept with the operation"
          maxlength="500"
          required=${Boolean(reason)}
          values=${values}
          set=${set}
        />
      </div>
      <${Preview} action=${action} filter=${filter} values=${values} />
    `,
  });
  if (operation) {
    tell(`${name} has begun`, 'good', { href: `/operations/${operation.id}`, text: 'Follow it' });
    follow(operation.id);
  }
  return operation;
}
