// What is wrong now and where, in one sentence of links. Nothing when all is well.

import { now, seg, url } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { count, plural, span, whoOf } from '../core/format.js';
import { Time } from './base.js';
import { waiting } from './queues.js';
import { drainedOf, isDrained, standing } from './runners.js';

/** Parts of each sort that are named; the rest is counted. */
const MANY = 3;
/** A queue without a runner is no problem for the moment that a runner takes to start. */
const PATIENCE = 10000;
/** The server names no more open breakers. */
const MAX_BREAKERS = 100;
/** The server counts no more rejected rows. */
const MAX_REJECTED = 10000;
/** A tick that no runner has handled for so long is late. */
const LATE_TICK = 60000;

/** `parts`, with one that counts the others when there are more than `MANY`. */
export function named(parts, rest) {
  return parts.length > MANY ? [...parts.slice(0, MANY), rest(parts.length - MANY)] : parts;
}

/** Hosts to which no calls start. Calls begin again by themselves, so this is no alarm. */
function receiversOf(breakers) {
  const parts = [...breakers]
    .sort((a, b) => Date.parse(a.since) - Date.parse(b.since))
    .map(({ limit, host, since }) => ({
      key: `breaker ${limit} ${host}`,
      to: `/limits/${seg(limit)}`,
      text: `calls to ${host} fail: its breaker has been open for ${span(now() - Date.parse(since))}`,
    }));
  return named(parts, (n) => ({
    key: 'breakers',
    to: '/limits',
    text: `${count(n, breakers.length >= MAX_BREAKERS)} more ${n === 1 ? 'host has' : 'hosts have'} an open breaker`,
  }));
}

/** What keeps jobs from being accepted or from becoming due: the outbox, order keys and schedules. */
function sourcesOf({ outbox, blocked, schedules }) {
  const parts = [];
  const keys = blocked?.data.length ?? 0;
  if (keys > 0)
    parts.push({
      key: 'order keys',
      bad: true,
      to: '/order-keys?blocked=1',
      text: `${count(keys, Boolean(blocked.next))} order ${keys === 1 ? 'key waits' : 'keys wait'} for a failed job`,
    });
  const failing = (outbox?.sources ?? []).filter((source) => source.error);
  parts.push(
    ...named(
      failing.map((source) => ({
        key: `outbox ${source.name}`,
        bad: true,
        to: '/outbox',
        text: `the outbox of ${source.name} cannot be read: ${span(now() - Date.parse(source.failing_since))}`,
      })),
      (n) => ({ key: 'outboxes', bad: true, to: '/outbox', text: `${n} more outboxes cannot be read` }),
    ),
  );
  if (outbox?.rejected > 0)
    parts.push({
      key: 'rejected',
      bad: true,
      to: '/outbox',
      text:
        `${count(outbox.rejected, outbox.rejected >= MAX_REJECTED)} rejected ` +
        `${outbox.rejected === 1 ? 'row' : 'rows'} in the outbox`,
    });
  const late = (schedules?.data ?? []).filter(
    (schedule) => !schedule.paused && schedule.next_at && now() - Date.parse(schedule.next_at) > LATE_TICK,
  );
  parts.push(
    ...named(
      late.map((schedule) => ({
        key: `schedule ${schedule.name}`,
        bad: true,
        to: `/schedules/${seg(schedule.name)}`,
        text: `the schedule ${schedule.name} is ${span(now() - Date.parse(schedule.next_at))} late`,
      })),
      (n) => ({ key: 'schedules', bad: true, to: '/schedules', text: `${n} more schedules are late` }),
    ),
  );
  return parts;
}

/** The parts of the verdict: `{key, bad, to, text}`. It takes answers of the API, as far as they have come. */
export function partsOf({ stats, queues, groups, runners, ready, ...sources }) {
  const parts = [];
  const late = stats?.lateness.oldest_due_ms_by_queue ?? {};
  if (ready && !ready.mysql) parts.push({ key: 'mysql', bad: true, to: '/index', text: 'MySQL does not answer' });
  if (ready?.held)
    parts.push({ key: 'held', bad: true, to: '/index', text: 'this process is held: it only serves the API' });
  const alive = runners?.data.filter((runner) => !runner.stopped_at);
  if (alive?.length === 0) parts.push({ key: 'runners', bad: true, to: '/runners', text: 'no runner is alive' });
  if (ready?.mysql && ready.index === 'degraded')
    parts.push({ key: 'redis', to: '/index', text: 'Redis does not answer: jobs start a little later' });
  const silent = (alive ?? [])
    .filter((runner) => standing(runner) === 'silent')
    .sort((one, other) => other.heartbeat_age_ms - one.heartbeat_age_ms);
  if (silent.length === 1)
    parts.push({
      key: 'silent',
      to: '/runners',
      text: `the runner ${silent[0].id} has been silent for ${span(silent[0].heartbeat_age_ms)}`,
    });
  // When a host is lost, all of its runners fall silent at the same time.
  else if (silent.length > 1)
    parts.push({
      key: 'silent',
      to: '/runners',
      text: `${count(silent.length)} runners are silent, one of them for ${span(silent[0].heartbeat_age_ms)}`,
    });
  const all = queues?.data ?? [];
  const jobs = (queue) => `${count(waiting(queue), !queue.exact)} ${waiting(queue) === 1 ? 'job' : 'jobs'}`;
  const drained = drainedOf(runners);
  if (drained)
    parts.push({
      key: 'drained',
      bad: true,
      to: '/runners',
      text: `${drained === 1 ? 'the only runner is' : `all ${drained} runners are`} drained: nothing starts`,
    });
  const orphans = all
    .filter((queue) => alive?.length !== 0 && queue.runners === 0 && waiting(queue) > 0 && late[queue.name] > PATIENCE)
    // That all runners are drained is said once, not for each queue.
    .filter((queue) => !(drained && isDrained(runners, queue.name)))
    .sort((a, b) => late[b.name] - late[a.name]);
  parts.push(
    ...named(
      orphans.map((queue) =>
        isDrained(runners, queue.name)
          ? {
              key: `orphan ${queue.name}`,
              bad: true,
              to: '/runners',
              text: `${queue.name} waits, its runners are drained: ${jobs(queue)}, ${span(late[queue.name])}`,
            }
          : {
              key: `orphan ${queue.name}`,
              bad: true,
              to: `/queues/${seg(queue.name)}`,
              text: `${queue.name} has no runner: ${jobs(queue)}, ${span(late[queue.name])}`,
            },
      ),
      (n) => ({ key: 'orphans', bad: true, to: '/queues', text: `${n} more queues have no runner that takes work` }),
    ),
  );
  const paused = all.filter((queue) => queue.paused).sort((a, b) => waiting(b) - waiting(a));
  parts.push(
    ...named(
      paused.map((queue) => ({
        key: `paused ${queue.name}`,
        to: `/queues/${seg(queue.name)}`,
        text: `${queue.name} is paused by ${whoOf(queue.paused.by)}${waiting(queue) > 0 ? `: ${jobs(queue)}` : ''}`,
      })),
      (n) => ({ key: 'pauses', to: '/queues', text: `${n} more queues are paused` }),
    ),
  );
  // A runner of an older version names none.
  parts.push(...receiversOf(stats?.open_breakers ?? []));
  parts.push(...sourcesOf(sources));
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

/**
 * Parts as one sentence of links; nothing without a part. To the eye it is a list, because a sentence of ten parts is
 * hard to read at night.
 */
export function Sentence({ parts, id }) {
  if (!parts.length) return null;
  return html`<p class=${cls('verdict', parts.some((part) => part.bad) && 'bad')} id=${id} role="status">
    ${parts.map(
      ({ key, bad, to, text, at }, i) => html`${i > 0 && html`<span class="hidden-visually"> · </span>`}<a
          key=${key}
          class=${bad ? 'bad' : 'warn'}
          href=${to}
          >${text}${at && html`, newest <${Time} at=${at} />`}</a
        >`,
    )}
  </p>`;
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
  // What needs an operator comes before what passes by itself or is meant.
  parts.sort((one, other) => Number(other.bad ?? false) - Number(one.bad ?? false));
  return html`<${Sentence} parts=${parts} id="verdict" />`;
}
