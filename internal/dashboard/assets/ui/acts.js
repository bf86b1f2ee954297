// What operators did, in words: to one thing, newest first, and each action of the audit.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { writeExact } from '../core/exact.js';
import { count, plural, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Panel, Time } from './base.js';
import { canaryPace } from './canary.js';
import { filterWords } from './filter-text.js';

const done = {
  'api_key.create': 'Made API key',
  'api_key.revoke': 'Revoked API key',
  'batch.cancel': 'Cancelled batch',
  'batch.close': 'Closed batch',
  'index.rebuild': 'Rebuilt the index',
  'job.cancel': 'Cancelled',
  'job.change': 'Changed',
  'job.delete': 'Deleted',
  'job.discard': 'Discarded',
  'job.replace': 'Replaced',
  'job.replay': 'Replayed',
  'job.reschedule': 'Rescheduled',
  'job.retry': 'Retried',
  'job.run_now': 'Made due',
  'job.set_priority': 'Set the priority',
  'kind.declare': 'Declared kind',
  'kind.remove': 'Removed kind',
  'limit.close_breaker': 'Closed breaker',
  'limit.remove': 'Removed limit',
  'limit.set': 'Set limit',
  'operation.cancel': 'Stopped operation',
  'operation.pause': 'Paused operation',
  'operation.resume': 'Resumed operation',
  'operation.start': 'Started operation',
  'operation.stop': 'Operation stopped by itself',
  'outbox.discard': 'Discarded row',
  'outbox.replay': 'Replayed row',
  'queue.change': 'Changed queue',
  'queue.pause': 'Paused queue',
  'queue.resume': 'Resumed queue',
  'runner.drain': 'Drained runner',
  'runner.resume': 'Resumed runner',
  'schedule.delete': 'Deleted schedule',
  'schedule.pause': 'Paused schedule',
  'schedule.put': 'Declared schedule',
  'schedule.resume': 'Resumed schedule',
  'schedule.trigger': 'Triggered schedule',
  'verify.start': 'Started a check',
};

/** An action in words; one of a newer server as the audit names it. */
export const actionWords = (action) => done[action] ?? action;

/** Parts of a detail that have words of their own. */
const parts = {
  action: (action) => action.replaceAll('_', ' '),
  filter: ({ created_before: _, ...filter }) => filterWords(filter),
  canary: (canary) => `canary ${canaryPace(canary)}`,
  params: (params) => told(params),
  reason: (reason) => reason,
  overrides: (overrides) => plural(Object.keys(overrides).length, 'override'),
  breaker: ({ failures, pause_ms: pause }) => `breaker after ${plural(failures, 'failure')}, for ${span(pause)}`,
  rate: (rate) =>
    typeof rate === 'object' ? `${count(rate.starts)} in ${span(rate.period_ms)}` : `at most ${count(rate)}/s`,
  shared_by: (by) => `shared by ${by}`,
};

const empty = (value) =>
  value === null || value === false || (typeof value === 'object' && Object.keys(value).length === 0);

function part(name, value) {
  if (Object.hasOwn(parts, name)) return parts[name](value);
  const word = name.replace(/_ms$/, '').replaceAll('_', ' ');
  if (value === true) return word;
  const text = Array.isArray(value)
    ? value.join(', ')
    : typeof value === 'object'
      ? writeExact(value)
      : name.endsWith('_ms')
        ? span(Number(value))
        : value;
  return `${word} ${text}`;
}

/** The details of an action in words. What is empty or off is left out. */
export const told = (detail) =>
  Object.entries(detail ?? {})
    .filter(([, value]) => !empty(value))
    .map(([name, value]) => part(name, value))
    .join(' · ');

/** Names of queues, schedules and keys may be the same: `of` says which of them is meant. */
export function Acts({ target, of }) {
  const acts = useQuery(url('/v1/audit', { target, limit: 50 }), { every: 30000 });
  const mine = acts.data?.data.filter((act) => act.action.startsWith(`${of}.`)) ?? [];
  if (!mine.length) return null;
  return html`<${Panel} title="What operators did" side=${html`<a href=${url('/audit', { target })}>Audit</a>`}>
    <ul class="plain-list">
      ${mine.slice(0, 8).map((act) => {
        const text = told(act.detail);
        return html`<li key=${act.id} class="wrap">
          <b title=${act.action}>${actionWords(act.action)}</b> by ${act.actor}${' '}
          <span class="soft"><${Time} at=${act.at} /></span>
          ${text && html`<div class="faint clamp" title=${text}>${text}</div>`}
        </li>`;
      })}
    </ul>
  </${Panel}>`;
}
