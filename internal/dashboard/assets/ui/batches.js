// Batches where they are named or shown in little room, and the states of the jobs that other things name.

import { get, seg, url } from '../core/api.js';
import { html, useState } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Badge, JobLink } from './base.js';

const ends = ['completed', 'failed', 'cancelled'];
/** Ids of jobs in one filter, which has at most 2,000 bytes. */
const IDS = 40;
/** Jobs in a list before the reader asks for more. */
const FEW = 10;

/** Has it ended, and was no job of it retried since? */
export const isOver = (batch) => Boolean(batch.completed_at) && batch.pending <= 0;

export const nameOf = (batch) => batch.name ?? `…${batch.id.slice(-8)}`;

export const jobsOf = (batch, state) => url('/jobs', { q: state ? `batch:${batch} state:${state}` : `batch:${batch}` });

/** How its jobs have ended, as one bar. */
export function Progress({ batch }) {
  const total = Math.max(1, batch.total);
  const ended = batch.total - batch.pending;
  const parts = ends.filter((end) => batch[end] > 0);
  const label = [`${count(ended)} of ${plural(batch.total, 'job')} ended`]
    .concat(parts.map((end) => `${count(batch[end])} ${end}`))
    .join(', ');
  return html`<div class="stack tighter">
    <div class="bar-of parts" role="img" aria-label=${label} title=${label}>
      ${parts.map(
        (end) =>
          html`<i key=${end} class=${end} style=${{ width: `${Math.min(100, (100 * batch[end]) / total)}%` }}></i>`,
      )}
    </div>
    <span class="row apart soft num">
      <span>${count(ended)} of ${count(batch.total)}</span>
      ${batch.failed > 0 && html`<span class="bad">${count(batch.failed)} failed</span>`}
    </span>
  </div>`;
}

export const BatchLink = ({ batch }) =>
  html`<a class=${batch.name ? 'wrap' : 'mono nowrap'} href=${`/batches/${seg(batch.id)}`} title=${batch.id}>
    ${nameOf(batch)}
  </a>`;

/** A batch that only its id names. */
export function NamedBatch({ id, every = 0 }) {
  const found = useQuery(`/v1/batches/${seg(id)}`, { every });
  if (found.error?.status === 404) return html`<span class="faint">…${id.slice(-8)}, not kept any more</span>`;
  const batch = found.data ?? { id, name: null };
  return html`<${BatchLink} batch=${batch} /> ${batch.state && html`<${Badge} is=${batch.state} />`}`;
}

/** The jobs with these ids, as far as they exist: id, kind and state, by id. */
export function useJobs(ids, every) {
  const read = async (_, signal) => {
    const parts = [];
    for (let at = 0; at < ids.length; at += IDS) parts.push(ids.slice(at, at + IDS).map((id) => `id:${id}`));
    const pages = await Promise.all(parts.map((words) => get('/v1/jobs', { q: words.join(' '), limit: 50 }, signal)));
    return new Map(pages.flatMap((page) => page.data).map((job) => [job.id, job]));
  };
  // A name for what is read; the requests are those above.
  const path = ids.length > 0 ? `/v1/jobs?ids=${ids.join()}` : null;
  return useQuery(path, { on: (event) => ids.some((id) => event.data?.includes(id)), every, pace: 1000, read });
}

/** Jobs that another one names, those that did not complete first. One without a state is gone. */
export function JobList({ jobs, more }) {
  const [shown, show] = useState(false);
  const sorted = [...jobs].sort((a, b) => (a.state === 'completed') - (b.state === 'completed'));
  const few = shown ? sorted : sorted.slice(0, FEW);
  return html`
    <ul class="plain-list">
      ${few.map(
        (job) => html`<li key=${job.id} class="row tight">
          <${JobLink} id=${job.id} />
          ${job.kind && html`<span class="wrap">${job.kind}</span>`}
          ${job.state ? html`<${Badge} is=${job.state} />` : html`<span class="faint">not kept any more</span>`}
        </li>`,
      )}
    </ul>
    ${
      sorted.length > few.length &&
      html`<button type="button" class="quiet small" onClick=${() => show(true)}>
        ${plural(sorted.length - few.length, 'more', 'more')}
      </button>`
    }
    ${more && few.length === sorted.length && html`<p class="faint">There are more.</p>`}
  `;
}
