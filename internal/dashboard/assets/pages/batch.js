// One batch: how its jobs ended, what follows from that, and the batches around it.

import { post, seg, url } from '../core/api.js';
import { html, useEffect, useState } from '../core/dom.js';
import { brief, plural, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Acts } from '../ui/acts.js';
import {
  Allowed,
  Badge,
  Copy,
  Empty,
  Figure,
  Head,
  JobLink,
  Panel,
  Skeleton,
  Time,
  Trouble,
  tell,
} from '../ui/base.js';
import { BatchLink, isOver, jobsOf, NamedBatch, nameOf, Progress, useJobs } from '../ui/batches.js';
import { follow } from '../ui/bulk.js';
import { ask, confirm } from '../ui/dialog.js';
import { useOperation, Watched } from '../ui/operation.js';

/** Each callback, when it is enqueued, and the time that says so. */
const callbacks = [
  ['on_success', 'When all jobs have completed', 'succeeded_at'],
  ['on_complete', 'When all jobs have ended', 'completed_at'],
  ['on_failure', 'When a job fails for good', 'failed_at'],
];

const meaning = {
  open: ['', 'It is open', 'Jobs are added to it, and it does not end before it is closed.'],
  running: ['', 'It is closed', 'It ends with its last job. Until then its jobs may add others.'],
  cancelling: ['warn', 'It was cancelled', 'Jobs that waited will never start; running ones were asked to stop.'],
  succeeded: ['good', 'It has succeeded', 'All of its jobs have completed.'],
  failed: ['bad', 'It has failed', 'All of its jobs had ended, and some had not completed.'],
  cancelled: ['warn', 'It was cancelled', 'All of its jobs have ended.'],
};

export default function Batch({ params: [id] }) {
  const [retried, follows] = useState(null);
  const found = useBatch(id, retried);
  if (found.error?.status === 404 || found.error?.status === 422) {
    return html`
      <${Head} title="Batch" />
      <${Empty} title="There is no such batch">
        <span class="mono wrap">${id}</span><br />Its jobs may be deleted, or their retention may have ended.${' '}
        <a href="/batches">All batches</a>
      </${Empty}>
    `;
  }
  if (!found.data)
    return found.error ? html`<${Trouble} error=${found.error} retry=${found.reload} />` : html`<${Skeleton} />`;
  const it = found.data;
  const [kind, title, text] = meaning[it.state] ?? ['', it.state, ''];
  return html`
    <${Head}
      title=${html`${it.name ?? 'Batch'} <${Badge} is=${it.state} />`}
      sub=${html`<span class="row">
          <span class="mono wrap">${it.id}</span>
          <${Copy} text=${it.id} label="Copy the id" />
        </span>`}
    >
      <${Actions} batch=${it} reload=${found.reload} retried=${follows} />
    </${Head}>
    ${found.error && html`<${Trouble} error=${found.error} retry=${found.reload} />`}
    ${retried && html`<${Retried} id=${retried} />`}
    <div class=${`note ${kind}`} id="meaning">
      <b>${title}</b>
      <p>
        ${text}
        ${it.completed_at && it.pending > 0 && ` Jobs of it run again: ${plural(it.pending, 'job')} unfinished.`}
      </p>
    </div>
    <${Panel} title="Progress" side=${html`<a href=${jobsOf(it.id)}>Jobs of the batch</a>`}>
      <${Progress} batch=${it} />
    </${Panel}>
    <div class="figures">
      <${Figure} name="Jobs" value=${brief(it.total)} note="a nested batch counts as one" to=${jobsOf(it.id)} />
      <${Figure} name="Completed" value=${brief(it.completed)} to=${jobsOf(it.id, 'completed')} />
      <${Figure} name="Failed" value=${brief(it.failed)} bad=${it.failed > 0} to=${jobsOf(it.id, 'failed')} />
      <${Figure} name="Cancelled" value=${brief(it.cancelled)} to=${jobsOf(it.id, 'cancelled')} />
      <${Figure} name="Unfinished" value=${brief(it.pending)} note="wait, run or will be retried" />
    </div>
    <div class="grid wide">
      <div class="stack">
        <${Callbacks} batch=${it} />
        <${Around} batch=${it} />
      </div>
      <div class="stack">
        <${Panel} title="Details"><${Facts} batch=${it} /></${Panel}>
        <${Acts} target=${it.id} of="batch" />
      </div>
    </div>
  `;
}

/** A batch, followed closely while it has unfinished jobs. */
function useBatch(id, retried) {
  const [over, set] = useState(false);
  // The counts follow the jobs a moment later: at the event of a job it would be too early to read them.
  const found = useQuery(`/v1/batches/${seg(id)}`, { on: [], every: over ? (retried ? 2000 : 10000) : 1000 });
  useEffect(() => set(found.data ? isOver(found.data) : found.error?.status === 404), [found.data, found.error]);
  return found;
}

function Actions({ batch, reload, retried }) {
  const path = `/v1/batches/${seg(batch.id)}`;
  const done = (text) => {
    tell(text);
    reload();
    return true;
  };
  return html`<${Allowed}>
    <div class="row">
      ${
        batch.failed > 0 &&
        html`<button type="button" class="primary" onClick=${() => retry(batch, path, retried)}>
          Retry failed jobs
        </button>`
      }
      ${
        !batch.closed_at &&
        html`<button
          type="button"
          onClick=${() =>
            confirm(
              'Close this batch?',
              'No job is added to it from outside any more, and it ends with its last job. It cannot be opened again.',
              'Close the batch',
              async () => {
                await post(`${path}/close`);
                return done('The batch is closed');
              },
            )}
        >
          Close
        </button>`
      }
      ${
        !batch.completed_at &&
        html`<button
          type="button"
          class="danger"
          disabled=${Boolean(batch.cancelled_at)}
          onClick=${() =>
            confirm(
              'Cancel this batch?',
              `It has ${plural(batch.pending, 'unfinished job')} (a nested batch counts as one). Jobs that wait will ` +
                'never start, running ones are asked to stop, and nested batches are cancelled as well.',
              'Cancel the batch',
              async () => {
                const { state } = await post(`${path}/cancel`);
                return done(state === 'cancelled' ? 'The batch was cancelled' : 'The batch is being cancelled');
              },
              { danger: true },
            )}
        >
          ${batch.cancelled_at ? 'Being cancelled' : 'Cancel'}
        </button>`
      }
    </div>
  </${Allowed}>`;
}

/** Ask, and retry its failed jobs in the background. */
async function retry(batch, path, retried) {
  const operation = await ask({
    title: 'Retry the failed jobs of this batch?',
    action: 'Retry',
    body: () => html`<${Failed} id=${batch.id} />`,
    submit: (_, once) => once(`${path}/retry`),
  });
  if (!operation) return;
  tell('The retry has begun', 'good', { href: `/operations/${operation.id}`, text: 'Follow it' });
  retried(operation.id);
  follow(operation.id);
}

/** The jobs that a retry means. Those of nested batches are retried as well, and only the server finds them. */
function Failed({ id }) {
  const { data, error } = useQuery(url('/v1/jobs/count', { q: `batch:${id} state:failed` }));
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Skeleton} />`;
  return html`
    <p>
      ${data.capped && 'At least '}<b>${plural(data.count, 'failed job')}</b> will get a new life, with a full set of
      attempts.
    </p>
    <p class="soft">So will the failed jobs of its nested batches, which are not in this number.</p>
  `;
}

function Retried({ id }) {
  const found = useOperation(id);
  if (!found.data) return html`<${Trouble} error=${found.error} retry=${found.reload} />`;
  return html`<${Watched} operation=${found.data} reload=${found.reload} />`;
}

function Callbacks({ batch }) {
  const asked = callbacks.filter(([event]) => batch[event]);
  // The job of a callback exists from the moment of its event on.
  const begun = asked.filter(([, , at]) => batch[at]).map(([event]) => batch[event].job_id);
  const jobs = useJobs(begun, 5000);
  return html`<${Panel} title="Callbacks">
    ${
      asked.length === 0
        ? html`<p class="faint">It has none.</p>`
        : html`<ul class="plain-list loose">
          ${asked.map(([event, when, at]) => {
            const callback = batch[event];
            const job = jobs.data?.get(callback.job_id);
            const never = event === 'on_success' && batch.cancelled_at;
            return html`<li key=${event}>
              <div class="row apart">
                <span><b>${when}</b> <span class="faint mono">${event}</span></span>
                <span class="row tight">
                  ${
                    !batch[at]
                      ? html`<span class="faint">${never ? 'will not start' : 'not started'}</span>`
                      : job
                        ? html`<${JobLink} id=${job.id} /><${Badge} is=${job.state} />`
                        : html`<span class="faint">${jobs.loading ? '…' : 'not kept any more'}</span>`
                  }
                </span>
              </div>
              <p class="soft wrap">
                ${callback.kind} in the queue <a href=${`/queues/${seg(callback.queue)}`}>${callback.queue}</a>
              </p>
            </li>`;
          })}
        </ul>`
    }
  </${Panel}>`;
}

/** The batch that it is nested in, and those that are nested in it, as a tree. */
function Around({ batch }) {
  const nested = useNested(batch.id);
  if (!batch.parent && !nested.data?.data.length) return null;
  const own = html`<li>
    <div class="row tight"><b class="wrap">${nameOf(batch)}</b> <span class="faint">this batch</span></div>
    <${Level} page=${nested} of=${batch.id} />
  </li>`;
  return html`<${Panel} title="Nested batches">
    <ul class="tree">
      ${
        batch.parent
          ? html`<li>
            <div class="row tight"><${NamedBatch} id=${batch.parent} every=${5000} /></div>
            <ul>${own}</ul>
          </li>`
          : own
      }
    </ul>
  </${Panel}>`;
}

const useNested = (parent, cursor) =>
  useQuery(url('/v1/batches', { parent, cursor, limit: 50 }), { on: ['accepted'], every: 5000, pace: 2000 });

const Nested = ({ of, cursor, says }) => html`<${Level} page=${useNested(of, cursor)} of=${of} says=${says} />`;

/** One page of the batches that are nested in one, and the next page once it is asked for. */
function Level({ page, of, says }) {
  const [more, show] = useState(false);
  if (!page.data) return html`<${Trouble} error=${page.error} retry=${page.reload} />`;
  const next = page.data.next_cursor;
  if (page.data.data.length === 0) return says ? html`<p class="faint">${says}</p>` : null;
  return html`
    <ul>${page.data.data.map((batch) => html`<${Branch} key=${batch.id} batch=${batch} />`)}</ul>
    ${next && !more && html`<button type="button" class="quiet small" onClick=${() => show(true)}>Older</button>`}
    ${next && more && html`<${Nested} of=${of} cursor=${next} />`}
  `;
}

function Branch({ batch }) {
  const [open, toggle] = useState(false);
  return html`<li>
    <div class="row">
      <button
        type="button"
        class="quiet small"
        aria-expanded=${String(open)}
        aria-label=${`Batches in ${nameOf(batch)}`}
        onClick=${() => toggle(!open)}
      >
        ${open ? '▾' : '▸'}
      </button>
      <${BatchLink} batch=${batch} />
      <${Badge} is=${batch.state} />
      <div class="branch"><${Progress} batch=${batch} /></div>
    </div>
    ${open && html`<${Nested} of=${batch.id} says="No batch is nested in it." />`}
  </li>`;
}

function Facts({ batch }) {
  const fact = (name, at, rest) => at && html`<dt>${name}</dt><dd><${Time} at=${at} />${rest}</dd>`;
  const after = (at) => `, after ${span(Date.parse(at) - Date.parse(batch.created_at))}`;
  return html`<dl class="facts">
    ${fact('Created', batch.created_at)}
    ${fact('Closed', batch.closed_at)}
    ${fact('First failure', batch.failed_at)}
    ${fact('Cancelled', batch.cancelled_at)}
    ${fact('Ended', batch.completed_at, batch.completed_at && after(batch.completed_at))}
    ${fact('Succeeded', batch.succeeded_at, batch.succeeded_at && after(batch.succeeded_at))}
  </dl>`;
}
