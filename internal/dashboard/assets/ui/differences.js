// The traits that failed jobs have more often than jobs of the same kinds that passed at the same time.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { count } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Panel, Skeleton, Trouble } from './base.js';

const names = {
  kind: 'kind',
  queue: 'queue',
  host: 'host',
  unique_key: 'unique key',
  order_key: 'order key',
  limit_key: 'limit key',
  tag: 'tag',
  runner: 'runner',
  runner_host: 'machine of the runner',
  version: 'version of the runner',
  attempts: 'attempts used',
};

const percent = (share) => `${Math.round(share * 100)} %`;
const jobs = ({ jobs: n, capped }) => `${count(n, capped)} ${n === 1 ? 'job' : 'jobs'}`;

/** Two bars to one scale: the share among failed jobs, and the share among those that passed. */
const Shares = ({ it }) => html`
  <span class="shares" aria-hidden="true">
    <i class="failed" style=${{ width: `${100 * it.failed_share}%` }}></i>
    <i class="passed" style=${{ width: `${100 * it.passed_share}%` }}></i>
  </span>
`;

function Value({ it, within }) {
  if (it.lacking) return html`<span class="soft">none</span>`;
  const text = String(it.value);
  return it.q
    ? html`<a class="wrap" href=${url('/jobs', { q: `${within} ${it.q}` })}>${text}</a>`
    : html`<bdi class="wrap">${text}</bdi>`;
}

const Row = ({ it, within }) => html`
  <tr data-difference=${it.attribute}>
    <td data-label="Trait">${names[it.attribute] ?? html`<bdi>${it.attribute}</bdi>`}</td>
    <td data-label="Value" class="bold"><${Value} it=${it} within=${within} /></td>
    <td data-label="Share" class="optional"><${Shares} it=${it} /></td>
    <td data-label="Of the failed" class="right num" title=${`${count(it.failed)} jobs`}>
      ${percent(it.failed_share)}
    </td>
    <td data-label="Of the passed" class="right num" title=${`${count(it.passed)} jobs`}>
      ${percent(it.passed_share)}
    </td>
    <td data-label="At least" class="right num">+${Math.round(it.at_least * 100)} points</td>
  </tr>
`;

function Found({ answer, within }) {
  const { differences, failed, passed, compared } = answer;
  const basis = html`${jobs(failed)} that failed and ${jobs(passed)} of the same kind that passed at the same time`;
  if (passed.jobs < 10 || failed.jobs < 10)
    return html`<p class="soft">Too few jobs to compare: ${basis}. Ten of each are needed.</p>`;
  if (differences.length === 0)
    return html`<p class="soft">Nothing stands out among ${count(compared)} compared traits of ${basis}.</p>`;
  return html`
    <table class="cards dense">
      <thead>
        <tr>
          <th>Trait</th>
          <th>Value</th>
          <th class="optional">Share</th>
          <th class="right">Of the failed</th>
          <th class="right">Of the passed</th>
          <th class="right" title="The least difference that agrees with the samples, with a confidence of 99 %">
            At least
          </th>
        </tr>
      </thead>
      <tbody>
        ${differences.map((it) => html`<${Row} key=${`${it.attribute} ${it.q}`} it=${it} within=${within} />`)}
      </tbody>
    </table>
    <p class="soft">Compared: ${basis}. Chance alone shows one of these in a hundred comparisons.</p>
  `;
}

/** What is different about the failures that `path` compares. `within` are the words of the filter that finds them. */
export function DifferencesPanel({ path, within }) {
  const found = useQuery(path, { every: 0 });
  return html`
    <${Panel}
      title="What is different about them"
      side=${
        found.data && html`<button type="button" class="quiet small" onClick=${found.reload}>Compare again</button>`
      }
      flush
    >
      <div class="differences">
        ${
          found.data
            ? html`<${Found} answer=${found.data} within=${within} />`
            : found.error
              ? html`<${Trouble} error=${found.error} retry=${found.reload} />`
              : html`<${Skeleton} />`
        }
      </div>
    </${Panel}>
  `;
}
