// What is wrong now and where, in one sentence of links. Nothing when all is well.

import { seg, url } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { Time } from './base.js';
import { waiting } from './queues.js';

/** Parts of each sort that are named; the rest is counted. */
const MANY = 3;
/** A queue without a runner is no problem for the moment that a runner takes to start. */
const PATIENCE = 10000;

/** `parts`, with one that counts the others when there are more than `MANY`. */
function named(parts, rest) {
  return parts.length > MANY ? [...parts.slice(0, MANY), rest(parts.length - MANY)] : parts;
}

/**
 * The parts of the verdict, the worst first: `{key, bad, to, text}`. `stats`, `queues` and `groups` are answers of the
 * API, as far as they have come.
 */
export function partsOf({ stats, queues, groups, runners, ready }) {
  const parts = [];
  const late = stats?.lateness.oldest_due_ms_by_queue ?? {};
  if (ready && !ready.mysql) parts.push({ key: 'mysql', bad: true, to: '/index', text: 'MySQL does not answer' });
  const alive = runners?.data.filter((runner) => !runner.stopped_at);
  if (alive?.length === 0) parts.push({ key: 'runners', bad: true, to: '/runners', text: 'no runner is alive' });
  const all = queues?.data ?? [];
  const jobs = (queue) => `${count(waiting(queue), !queue.exact)} ${waiting(queue) === 1 ? 'job' : 'jobs'}`;
  const orphans = all
    .filter((queue) => alive?.length !== 0 && queue.runners === 0 && waiting(queue) > 0 && late[queue.name] > PATIENCE)
    .sort((a, b) => late[b.name] - late[a.name]);
  parts.push(
    ...named(
      orphans.map((queue) => ({
        key: `orphan ${queue.name}`,
        bad: true,
        to: `/queues/${seg(queue.name)}`,
        text: `${queue.name} has no runner: ${jobs(queue)}, ${span(late[queue.name])}`,
      })),
      (n) => ({ key: 'orphans', bad: true, to: '/queues', text: `${n} more queues have none` }),
    ),
  );
  const paused = all.filter((queue) => queue.paused).sort((a, b) => waiting(b) - waiting(a));
  parts.push(
    ...named(
      paused.map((queue) => ({
        key: `paused ${queue.name}`,
        to: `/queues/${seg(queue.name)}`,
        text: `${queue.name} is paused by ${queue.paused.by}${waiting(queue) > 0 ? `: ${jobs(queue)}` : ''}`,
      })),
      (n) => ({ key: 'pauses', to: '/queues', text: `${n} more queues are paused` }),
    ),
  );
  const open = stats?.open_dead_letters ?? 0;
  if (open > 0) {
    const causes = groups?.data.length;
    const from = causes
      ? ` from ${plural(causes, 'cause')}`.replace(/ cause/, groups.next_cursor ? '+ cause' : ' cause')
      : '';
    parts.push({
      key: 'dead letters',
      bad: true,
      to: '/dead-letters',
      text: `${count(open, !stats.open_dead_letters_exact)} dead ${open === 1 ? 'letter' : 'letters'}${from}`,
      at: groups?.data[0]?.last_seen,
    });
  }
  return parts;
}

/** From this on a queue that is served and not paused is behind. */
const BEHIND = 60000;

/** The queue that has been behind for longest, of those that are served and go on: `{name, ms}`. */
export function behindOf(stats, queues, least = BEHIND) {
  const going = new Set((queues?.data ?? []).filter((queue) => queue.runners > 0 && !queue.paused).map((q) => q.name));
  const late = Object.entries(stats?.lateness.oldest_due_ms_by_queue ?? {}).filter(([name]) => going.has(name));
  const [name, ms] = late.sort((a, b) => b[1] - a[1])[0] ?? [];
  return ms > least ? { name, ms } : null;
}

export function Verdict(answers) {
  const parts = partsOf(answers);
  const behind = behindOf(answers.stats, answers.queues);
  if (behind)
    parts.push({
      key: 'behind',
      to: url(`/queues/${seg(behind.name)}`),
      text: `${behind.name} is ${span(behind.ms)} behind`,
    });
  if (!parts.length) return null;
  return html`<p class=${cls('verdict', parts.some((part) => part.bad) && 'bad')} id="verdict" role="status">
    ${parts.map(
      ({ key, bad, to, text, at }, i) => html`${i > 0 && html`<span class="faint"> · </span>`}<a
          key=${key}
          class=${bad ? 'bad' : 'warn'}
          href=${to}
          >${text}${at && html`, newest <${Time} at=${at} />`}</a
        >`,
    )}
  </p>`;
}
