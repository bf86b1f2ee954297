// One operation: how far it is, how fast, and what came of it.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { brief, count, rate, span } from '../core/format.js';
import { go } from '../core/route.js';
import { Allowed, Badge, Copy, Empty, Figure, Head, Panel, Skeleton, Time, Trouble, useNow } from '../ui/base.js';
import { actions } from '../ui/bulk.js';
import { CanaryProgress } from '../ui/canary.js';
import { filterText, requestOf } from '../ui/filter-text.js';
import {
  again,
  FilterLink,
  isRunning,
  Made,
  nameOf,
  outcome,
  PauseButton,
  Paused,
  Progress,
  paceOf,
  stateOf,
  stop,
  toneOf,
  useMade,
  useOperation,
} from '../ui/operation.js';

export default function Operation({ params: [id] }) {
  const found = useOperation(id);
  const now = useNow();
  const made = useMade(found.data);
  if (found.error?.status === 404 || found.error?.status === 422) {
    return html`
      <${Head} title="Operation" />
      <${Empty} title="There is no such operation">
        <span class="mono wrap">${id}</span><br />Those that are over are forgotten after a while.${' '}
        <a href="/operations">All operations</a>
      </${Empty}>
    `;
  }
  if (!found.data)
    return found.error ? html`<${Trouble} error=${found.error} retry=${found.reload} />` : html`<${Skeleton} />`;
  const it = found.data;
  const on = isRunning(it);
  const took = it.started_at ? (it.ended_at ? Date.parse(it.ended_at) : now) - Date.parse(it.started_at) : null;
  const repeat = async () => {
    const operation = await again(it);
    if (operation) go(`/operations/${operation.id}`);
  };
  // A copy of a part of the filter would find other jobs.
  const text = requestOf(it.filter) === undefined ? '' : filterText(it.filter);
  return html`
    <${Head}
      title=${html`${nameOf(it.action)} <${Badge} is=${stateOf(it)} />`}
      sub=${html`<span class="row">
          <span class="mono wrap">${it.id}</span>
          <${Copy} text=${it.id} label="Copy the id" />
        </span>`}
    >
      <${Allowed}>
        ${
          on
            ? html`
              <${PauseButton} operation=${it} reload=${found.reload} />
              <button type="button" class="danger" onClick=${() => stop(it, found.reload)}>Stop</button>
            `
            : html`<button type="button" onClick=${repeat}>Start it again</button>`
        }
      </${Allowed}>
    </${Head}>
    ${found.error && html`<${Trouble} error=${found.error} retry=${found.reload} />`}
    ${
      !on &&
      html`
        <div class=${`note ${toneOf(it, made.data)}`} id="outcome">
          <b>
            ${
              it.canary?.stopped
                ? 'It stopped by itself'
                : ({ done: 'Finished', cancelled: 'Stopped', failed: 'It could not go on' }[it.state] ?? it.state)
            }
          </b>
          <p>
            ${outcome(it)}${took !== null && `, in ${span(took)}`}.${' '}
            ${
              made.data?.failed > 0 &&
              html`<b class="bad">
                ${count(made.data.failed, made.data.failed_capped)} of the released jobs failed again.
              </b>`
            }
            ${made.data?.failed > 0 && ' '}
            ${it.state !== 'done' && 'What was not reached was left as it is.'}
          </p>
        </div>
      `
    }
    <${Panel}
      title="Progress"
      side=${
        on &&
        html`<span class="soft">
          ${
            it.runner
              ? html`by <span class="mono wrap">${it.runner}</span>`
              : it.paused_at
                ? 'paused'
                : 'waits for a runner'
          }
        </span>`
      }
    >
      <div class="stack tight">
        <${Progress} operation=${it} />
        <${Paused} operation=${it} />
        <${CanaryProgress} operation=${it} />
        <${Made} operation=${it} made=${made} />
      </div>
    </${Panel}>
    <div class="figures">
      <${Figure} name="Done" note=${actions[it.action]?.name.toLowerCase()} value=${brief(it.done)} />
      <${Figure} name="Skipped" note="in a state that it is not for" value=${brief(it.skipped)} />
      <${Figure}
        name="Errors"
        value=${brief(it.failed)}
        note=${it.failed > 0 ? 'the last error is below' : 'no errors'}
        bad=${it.failed > 0}
      />
      <${Figure} name="Measured rate" note=${paceOf(it)} value=${it.paused_at ? '–' : `${rate(it.measured_rate)}/s`} />
      ${
        on
          ? html`
            <${Figure}
              name="Time left"
              note=${
                it.paused_at ? 'paused' : it.estimate_capped ? 'not known: more jobs than were counted' : 'at this rate'
              }
              value=${it.eta_s === null || it.paused_at ? '–' : span(it.eta_s * 1000)}
            />
          `
          : html`<${Figure} name="Took" note="from start to end" value=${span(took)} />`
      }
    </div>
    ${
      it.last_error &&
      html`<${Panel}
        title=${it.canary?.stopped ? 'Why it stopped' : 'Last error'}
        side=${html`<${Copy} text=${it.last_error} label="Copy the error" />`}
      >
        <div class="error">${it.last_error}</div>
      </${Panel}>`
    }
    <${Panel} title="Request">
      <dl class="facts">
        <dt>Jobs</dt>
        <dd><${FilterLink} operation=${it} /></dd>
        ${
          text &&
          html`
            <dt>Filter</dt>
            <dd>
              <span class="row">
                <code class="lines">${text}</code>
                <${Copy} text=${text} label="Copy the filter" />
              </span>
            </dd>
          `
        }
        <dt>Counted</dt>
        <dd class="num">${count(it.estimate, it.estimate_capped)} at the start</dd>
        <dt>Pace</dt>
        <dd>${paceOf(it)}</dd>
        ${it.canary && html`<dt>Canary</dt><dd>stops above ${it.canary.max_failure_pct} % of a step</dd>`}
        ${it.priority !== null && html`<dt>Priority</dt><dd>${it.priority}</dd>`}
        ${it.execute_at && html`<dt>Due</dt><dd><${Time} at=${it.execute_at} /></dd>`}
        ${it.reason && html`<dt>Reason</dt><dd>${it.reason}</dd>`}
        <dt>Requested by</dt>
        <dd><bdi>${it.asked_by}</bdi>, <${Time} at=${it.created_at} /></dd>
        ${it.started_at && html`<dt>Started</dt><dd><${Time} at=${it.started_at} /></dd>`}
        ${it.ended_at && html`<dt>Ended</dt><dd><${Time} at=${it.ended_at} /></dd>`}
        <dt>Audit</dt>
        <dd><a href=${url('/audit', { target: it.id })}>What was done to this operation</a></dd>
      </dl>
    </${Panel}>
  `;
}
