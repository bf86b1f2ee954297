// A release as a canary: the dialog that asks for one, its steps with the outcomes of the released jobs, and its
// pauses.

import { post } from '../core/api.js';
import { errorOf, openOf } from '../core/dead-letter-group.js';
import { cls, html } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { tell } from './base.js';
import { follow, Preview } from './bulk.js';
import { ask, InputField } from './dialog.js';

/** The rates of the steps that a canary has when the operator changes nothing, in jobs per second. */
const RATES = [5, 20, 100];

const TEN_SECONDS = 'A step releases the jobs of ten seconds, and the last one the rest.';
const SAME_STEPS = 'A step whose rate you keep releases as many jobs as before.';

const ratesOf = (text) =>
  text
    .split(/[^0-9]+/)
    .filter(Boolean)
    .map(Number);

/**
 * The canary that the values of the dialog ask for. A text without a number asks for the usual steps. A step that keeps
 * its rate keeps its number of jobs too, and the last one has none.
 */
function bodyOf({ rates, pct }, { steps: before = [], min_outcomes: least } = {}) {
  const asked = ratesOf(rates);
  const steps = asked.map((rate, i) => {
    const jobs = before[i]?.rate === rate && i < asked.length - 1 ? before[i].jobs : null;
    return jobs ? { rate, jobs } : { rate };
  });
  const canary = { max_failure_pct: Number(pct) };
  if (steps.length) canary.steps = steps;
  if (least) canary.min_outcomes = least;
  return canary;
}

/** Ask for a canary that releases the open dead letters of a group. Resolves with the operation, or undefined. */
export const releaseAsCanary = (group) =>
  askForCanary(
    `Release ${openOf(group)} as a canary`,
    { fingerprint: group.fingerprint },
    { rates: RATES, pct: 20, about: errorOf(group) },
  );

/** Ask for a canary with the steps of one that has ended. `filter` is that of `POST /v1/operations`, null for all. */
export const repeatCanary = ({ canary }, filter) =>
  askForCanary('Release as a canary again', filter, {
    rates: canary.steps.map((step) => step.rate),
    pct: canary.max_failure_pct,
    before: canary,
  });

/** Ask, show a preview, and start it. */
async function askForCanary(title, filter, { rates, pct: most, about, before }) {
  const operation = await ask({
    title,
    action: 'Release as a canary',
    broad: true,
    values: { rates: rates.join(', '), pct: String(most), reason: '' },
    ready: ({ pct }) => pct !== '' && Number(pct) >= 0 && Number(pct) <= 100,
    submit: (values, once) =>
      once('/v1/operations', {
        action: 'replay',
        ...(filter === null ? { all: true } : { filter }),
        canary: bodyOf(values, before),
        ...(values.reason.trim() ? { reason: values.reason.trim() } : {}),
      }),
    body: ({ values, set }) => html`
      <p>
        The release begins slowly. It speeds up when each released job has an outcome, and stops by itself when too many
        of them fail again. ${before ? SAME_STEPS : TEN_SECONDS}
      </p>
      ${about && html`<div class="error">${about}</div>`}
      <div class="fields">
        <${InputField}
          label="Jobs per second in each step"
          id="canary-rates"
          name="rates"
          hint="From the first step to the last"
          inputmode="numeric"
          pattern="[\\s,;→]*([1-9][0-9]*([\\s,;→]+|$))*"
          title="Whole numbers, such as 5, 20, 100"
          values=${values}
          set=${set}
        />
        <${InputField}
          label="Stop above, % of a step"
          id="canary-pct"
          name="pct"
          hint="Jobs that fail again"
          type="number"
          min="0"
          max="100"
          required
          values=${values}
          set=${set}
        />
        <${InputField}
          label="Reason"
          id="canary-reason"
          name="reason"
          hint="Kept with the operation"
          maxlength="500"
          values=${values}
          set=${set}
        />
      </div>
      <${Preview} action="replay" filter=${filter} values=${{}} />
    `,
  });
  if (operation) {
    tell('The canary has begun', 'good', { href: `/operations/${operation.id}`, text: 'Follow it' });
    follow(operation.id);
  }
  return operation;
}

/** The pace of a canary: `5 → 20 → 100/s`. */
export const canaryPace = ({ steps }) => `${steps.map((step) => count(step.rate)).join(' → ')}/s`;

/** The place of a step: done, under way, stopped, still to come, or behind the last job. */
function placeOf({ canary, state }, position) {
  if (position < canary.step) return 'over';
  if (position > canary.step) return state === 'done' ? 'spared' : 'ahead';
  return canary.stopped ? 'failed' : state === 'running' ? 'now' : 'over';
}

const said = {
  over: 'done',
  now: 'under way',
  failed: 'stopped here',
  ahead: 'not begun',
  spared: 'not needed: none was left',
};

/** The steps of a canary, and how the jobs of the present one ended. */
export function CanaryProgress({ operation }) {
  const { canary } = operation;
  if (!canary) return null;
  const running = operation.state === 'running';
  const { passed, failed, retrying, waiting, cancelled } = canary.outcomes;
  const outcomes = passed + failed + retrying;
  const pct = outcomes ? Math.round(((failed + retrying) / outcomes) * 100) : 0;
  return html`
    <div class="stack tight" data-canary>
      <ol class="steps" aria-label="Steps of the canary">
        ${canary.steps.map((step, i) => {
          const place = placeOf(operation, i + 1);
          return html`<li key=${i} class=${place} aria-current=${place === 'now' ? 'step' : undefined}>
            <b class="num">${count(step.rate)}/s</b>
            <span class="num">${step.jobs === null ? 'the rest' : plural(step.jobs, 'job')}</span>
            <span class="soft">${said[place]}</span>
          </li>`;
        })}
      </ol>
      <div class="num" role="status">
        <b>Step ${canary.step}</b>${running ? '' : ' at its end'}: ${count(canary.released)} released →${' '}
        ${count(passed)} passed ·${' '}
        <span class=${cls(failed + retrying > 0 && 'bad bold')}>${count(failed + retrying)} failed again</span>
        ${retrying > 0 && ` (${count(retrying)} of them will be tried again)`} · ${count(waiting)} waiting
        ${cancelled > 0 && ` · ${count(cancelled)} cancelled`}
        <span class="soft">
          ${outcomes > 0 && ` · ${pct} % failed`}, stops above ${canary.max_failure_pct} %
        </span>
      </div>
      ${
        running &&
        canary.awaits_outcomes &&
        !operation.paused_at &&
        html`<p class="soft">Waits for the outcome of ${plural(waiting, 'released job')} before it goes on.</p>`
      }
    </div>
  `;
}

/** Hold a running operation, or let it go on. */
export async function pauseOrResume(operation, reload) {
  const verb = operation.paused_at ? 'resume' : 'pause';
  await post(`/v1/operations/${operation.id}/${verb}`);
  tell(verb === 'pause' ? 'The operation is paused' : 'The operation runs again');
  reload?.();
}
