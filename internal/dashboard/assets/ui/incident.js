// What happened in a range of time: the story that the page of an incident tells, and the same as Markdown. It is made
// of answers of the API alone and has no relative times, so a link tells the same tomorrow.

import { seg, url } from '../core/api.js';
import { errorOf } from '../core/dead-letter-group.js';
import { legible } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { named } from './verdict.js';

const DAY = 86400000;
/** Longest range of the page, and of its queues, in ms: the server reads no longer one. */
export const MAX_RANGE = 7 * DAY;
export const MAX_RANGE_OF_QUEUES = DAY;
/** From this lateness on a queue is listed, and from the second one on the verdict names it, in ms. */
const LATE = 10000;
const VERY_LATE = 60000;
/** Characters of a text in the Markdown. */
const LONG = 300;

/** A moment in UTC to the second. The day is left out where it is that of `day`. */
export function momentOf(ms, day = null) {
  const [date, time] = new Date(ms).toISOString().slice(0, 19).split('T');
  return day !== null && new Date(day).toISOString().startsWith(date) ? time : `${date} ${time}`;
}

/** A range in UTC. */
export const wordsOf = ({ from, to }) => `${momentOf(from)} – ${momentOf(to, from)} UTC`;

/** The time of something that began before the range, or went on after it, where a moment is null. */
export function whenOf({ from, to }, range) {
  const long = span((to ?? range.to) - (from ?? range.from));
  if (from === null && to === null) return `during the whole range, ${long}`;
  if (from === null) return `until ${momentOf(to, range.from)}, ${long} of the range`;
  if (to === null) return `from ${momentOf(from, range.from)} on, ${long} of the range`;
  return `${momentOf(from, range.from)} – ${momentOf(to, range.from)}, ${long}`;
}

const lengthOf = ({ from, to }, range) => (to ?? range.to) - (from ?? range.from);

/** A count from rates: `last` is what has passed of the last step, in ms. */
const sumOf = (rates, step, last) =>
  Math.round(rates.reduce((sum, rate, i) => sum + (rate * (i + 1 < rates.length ? step : last)) / 1000, 0));

/** The highest of the values with its moment, or null. */
function worstOf(values, moments) {
  let at = -1;
  values.forEach((ms, i) => {
    if (ms !== null && (at < 0 || ms > values[at])) at = i;
  });
  return at < 0 ? null : { ms: values[at], at: moments[at] };
}

const totalsOf = (columns, moments, step, last) => ({
  accepted: sumOf(columns.accepted, step, last),
  completed: sumOf(columns.completed, step, last),
  failed: sumOf(columns.failed, step, last),
  worst: worstOf(columns.lateness_p99_ms, moments),
  started: columns.lateness_p99_ms.some((ms) => ms !== null),
});

/** What happened by all runners. The counts are exact when the range consists of whole steps. */
function figuresOf({ points, step_ms: step, last_ms: last }, range) {
  const exact = range.from % step === 0 && range.to % step === 0 && last === step;
  return { ...totalsOf(points, points.at_ms, step, last), exact };
}

/**
 * The pauses of queues: `{queue, from, to, by, reason}`. A moment outside of the range is null. `before` are those that
 * began before it.
 */
function pausesOf(before, marks) {
  const pauses = before.map(({ queue, by, reason }) => ({ queue, from: null, to: null, by, reason: reason ?? '' }));
  for (const { type, queue, at, by, reason } of marks) {
    const last = pauses.findLast((pause) => pause.queue === queue);
    const open = last?.to === null ? last : null;
    if (type === 'queue_paused') {
      if (open) open.reason = reason || open.reason;
      else pauses.push({ queue, from: at, to: null, by, reason: reason ?? '' });
    } else if (type === 'queue_resumed' && open) open.to = at;
  }
  return pauses;
}

/** When Redis was lost, as `{from, to}`. A moment outside of the range is null. `more`: the first marks are missing. */
function outagesOf(marks, more) {
  const outages = [];
  for (const { type, at } of marks) {
    const last = outages.at(-1);
    const open = last?.to === null ? last : null;
    if (type === 'redis_lost' && !open) outages.push({ from: at, to: null });
    if (type === 'redis_back' && open) open.to = at;
    else if (type === 'redis_back' && !last && !more) outages.push({ from: null, to: at });
  }
  return outages;
}

/** The queues that stood still, started jobs late or had failures, the one that stood longest first. */
function queuesOf(history, pauses, range, only) {
  const rows = new Map();
  for (const queue of history.queues) {
    const totals = totalsOf(queue, history.at_ms, history.step_ms, history.last_ms);
    rows.set(queue.queue, { name: queue.queue, ...totals, pauses: [] });
  }
  for (const pause of pauses) {
    const none = { name: pause.queue, accepted: 0, completed: 0, failed: 0, worst: null, started: false, pauses: [] };
    if (!rows.has(pause.queue)) rows.set(pause.queue, none);
    rows.get(pause.queue).pauses.push(pause);
  }
  return [...rows.values()]
    .map((row) => ({
      ...row,
      own: row.name !== '_other',
      stood: row.pauses.reduce((sum, pause) => sum + lengthOf(pause, range), 0),
      still: row.accepted > 0 && !row.started && row.completed === 0,
    }))
    .filter((row) => !only || row.name === only)
    .filter((row) => row.pauses.length || row.still || row.failed > 0 || row.worst?.ms >= LATE)
    .sort((a, b) => b.stood - a.stood || (b.worst?.ms ?? 0) - (a.worst?.ms ?? 0) || a.name.localeCompare(b.name));
}

const sources = {
  history: 'figures, charts and queues',
  failed: 'failed jobs and their causes',
  audit: 'what operators did and pauses of queues',
  runners: 'starts and losses of runners',
  redis: 'losses of Redis',
};

/** What has been removed since, as sentences without a moment. */
function removedOf(kept, range) {
  const of = (some) =>
    Object.keys(sources)
      .filter((name) => range.from < Date.parse(kept[name]) && some(Date.parse(kept[name])))
      .map((name) => sources[name])
      .join('; ');
  const whole = of((at) => range.to <= at);
  const part = of((at) => range.to > at);
  return [
    whole && `Not kept any more for this range: ${whole}.`,
    part && `Kept for the later part of this range only: ${part}.`,
  ].filter(Boolean);
}

/**
 * The story of a range. `history`, `queues`, `marks`, `audit` and `causes` are answers of the API, `marks.read` its
 * marks as words, `marks.before` the pauses that began before the range, and `marks.more` says that marks are missing;
 * `only` has the queue, the kind and the cause of the address.
 */
export function storyOf({ range, only, history, queues, marks, audit, causes }) {
  const acts = [...audit.data]
    .reverse()
    .filter((act) => !only.queue || !act.action.startsWith('queue.') || act.target === only.queue);
  const pauses = pausesOf(marks.before, marks.read);
  const queuesFrom = Math.max(range.from, range.to - MAX_RANGE_OF_QUEUES);
  const story = {
    range,
    only,
    figures: figuresOf(history, range),
    causes: causes.data.map((cause) => ({
      ...cause,
      first: Date.parse(cause.first_at),
      last: Date.parse(cause.last_at),
      isNew: Date.parse(cause.known_since) >= range.from,
    })),
    causesCapped: causes.capped,
    causesMore: causes.more,
    queues: queuesOf(queues, pauses, range, only.queue),
    queuesMore: queues.more,
    lost: marks.read.filter((mark) => mark.type === 'runners_lost'),
    outages: outagesOf(marks.read, marks.more),
    emptied: marks.read.filter((mark) => mark.type === 'redis_emptied'),
    started: marks.read.filter((mark) => mark.type === 'runners_started' && mark.previous_version),
    acts: acts.map((act) => ({ ...act, at: Date.parse(act.at), operation: act.detail?.operation })),
    actsMore: audit.more,
    queuesFrom,
    notes: [
      queuesFrom > range.from && 'Queues are judged by the last 24 hours of this range only.',
      ...removedOf(marks.kept, range),
      marks.more && 'Not all events of runners, Redis and queues were read: starts or the earliest ones are missing.',
    ].filter(Boolean),
  };
  story.failed = story.causes.reduce((sum, cause) => sum + cause.failed, 0);
  story.parts = partsOf(story);
  return story;
}

/** The verdict on a range: its parts, the worst first, as `Sentence` shows them. */
function partsOf(story) {
  const { range, figures, failed, causes, causesCapped, causesMore } = story;
  const { queues, queuesFrom, lost, outages, emptied } = story;
  const parts = [];
  if (failed > 0) {
    const fresh = causes.filter((cause) => cause.isNew).length;
    parts.push({
      key: 'failed',
      bad: true,
      to: url('/jobs', { q: `state:failed ${failedOf(story)}` }),
      text:
        `${count(failed, causesCapped || causesMore)} ${failed === 1 ? 'job' : 'jobs'} failed for good from ` +
        `${count(causes.length, causesMore)} ${causes.length === 1 ? 'cause' : 'causes'}` +
        `${fresh ? `, ${fresh} of them new` : ''}`,
    });
  }
  for (const { runner, runners, at } of lost)
    parts.push({
      key: `lost ${at}`,
      bad: true,
      to: '/runners',
      text: runners === 1 ? `the runner ${runner} was lost` : `${runners} runners were lost, ${runner} first`,
    });
  for (const outage of outages)
    parts.push({
      key: `redis ${outage.from}`,
      to: '/index',
      text: `Redis was lost for ${span(lengthOf(outage, range))}`,
    });
  if (emptied.length) parts.push({ key: 'emptied', to: '/index', text: 'Redis lost its data' });
  const link = (row) => (row.own ? `/queues/${seg(row.name)}` : '/queues');
  const some = (rows, key, bad, text, rest) =>
    named(
      rows.map((row) => ({ key: `${key} ${row.name}`, bad, to: link(row), text: text(row) })),
      (n) => ({ key, bad, to: '/queues', text: `${n} more ${n === 1 ? 'queue' : 'queues'} ${rest}` }),
    );
  parts.push(
    ...some(
      queues.filter((row) => row.pauses.length),
      'paused',
      false,
      (row) => `${nameOf(row)} was paused for ${span(row.stood)}`,
      'were paused',
    ),
    ...some(
      queues.filter((row) => row.still && !row.pauses.length),
      'still',
      true,
      (row) => `${nameOf(row)} started none of ${plural(row.accepted, 'new job')}`,
      'started none of their new jobs',
    ),
    ...some(
      queues.filter((row) => row.worst?.ms >= VERY_LATE).sort((a, b) => b.worst.ms - a.worst.ms),
      'late',
      false,
      (row) => `${nameOf(row)} started jobs up to ${span(row.worst.ms)} late`,
      'started jobs late',
    ),
  );
  // No queue is known to have been late before its history begins.
  if (figures.worst?.ms >= VERY_LATE && figures.worst.at < queuesFrom)
    parts.push({ key: 'late jobs', to: '/queues', text: `jobs started up to ${span(figures.worst.ms)} late` });
  return parts;
}

/** The name of a queue, or of those without a history of their own. */
export const nameOf = (row) => (row.own ? row.name : 'other queues');

/** A word of a filter: the jobs that ended in a range. */
const finished = ({ from, to }) => `finished:${new Date(from).toISOString()}..${new Date(to).toISOString()}`;

/** A filter: the jobs of the story that ended in its range, those of one cause if it is named. */
export const failedOf = ({ range, only }, cause = only.cause) =>
  [only.queue && `queue:${only.queue}`, only.kind && `kind:${only.kind}`, cause && `group:${cause}`, finished(range)]
    .filter(Boolean)
    .join(' ');

/** A text of a job or of an operator as code, which no reader of Markdown takes for anything else. */
function code(text) {
  const line = legible(String(text)).replace(/\s+/g, ' ').trim();
  const short = line.length > LONG ? `${line.slice(0, LONG)}…` : line;
  const fence = '`'.repeat(1 + Math.max(0, ...(short.match(/`+/g) ?? []).map((run) => run.length)));
  return fence === '`' && short ? `\`${short}\`` : `${fence} ${short} ${fence}`;
}

/** The story as Markdown, for a post-mortem. */
export function markdownOf(story, link) {
  const { range, only, figures } = story;
  const at = (ms) => momentOf(ms, range.from);
  const about = figures.exact ? '' : 'about ';
  const cap = (n) => count(n, story.causesCapped);
  const lines = [`## Incident ${wordsOf(range)}`, '', `Page: <${link}>`, ''];
  const chapter = (title, entries) => {
    if (entries.length) lines.push(`### ${title}`, '', ...entries.map((entry) => `- ${entry}`), '');
  };
  const filters = Object.entries(only).filter(([, value]) => value);
  if (filters.length) lines.push(`Only ${filters.map(([word, value]) => `${word} ${code(value)}`).join(', ')}.`, '');
  lines.push(story.parts.length ? 'What was wrong:' : 'Nothing stood out in this range.', '');
  for (const part of story.parts) lines.push(`- ${escaped(part.text)}`);
  if (story.parts.length) lines.push('');
  chapter('Figures', [
    `${about}${plural(figures.accepted, 'job')} accepted, ${count(figures.completed)} completed, ` +
      `${plural(figures.failed, 'attempt')} failed`,
    figures.worst
      ? `worst lateness (p99) ${span(figures.worst.ms)}, in the step from ${at(figures.worst.at)}`
      : 'no job started',
  ]);
  chapter(
    'Causes of failures',
    story.causes.map(
      (cause) =>
        `${cap(cause.failed)} × ${code(cause.kind)}: ${code(errorOf(cause))}; first ${at(cause.first)}` +
        `${story.causesCapped ? ' or earlier' : ''}, last ${at(cause.last)}; ` +
        `${cause.isNew ? 'new' : `${cap(cause.failed_before)} in the same time before`} ` +
        `(${cause.fingerprint})`,
    ),
  );
  chapter(
    'Queues',
    story.queues.map((row) => `${row.own ? code(row.name) : nameOf(row)}: ${saidOf(row, range).join('; ')}`),
  );
  chapter('Runners and Redis', eventsOf(story));
  chapter(
    'What operators did',
    story.acts.map((act) => {
      const what = act.operation ? `${plural(act.jobs, 'job')} by operation ${code(act.operation)}` : code(act.target);
      const reason = typeof act.detail?.reason === 'string' && act.detail.reason;
      return `${at(act.at)} ${code(act.actor)} ${code(act.action)} ${what}${reason ? `: ${code(reason)}` : ''}`;
    }),
  );
  if (story.actsMore) lines.push('The audit has earlier actions of this range.', '');
  if (story.causesMore) lines.push('There are other causes with fewer failures.', '');
  if (story.queuesMore) lines.push('Only the hundred busiest queues were searched.', '');
  for (const sentence of story.notes) lines.push(sentence, '');
  lines.push('All times are in UTC.', '');
  return lines.join('\n');
}

/** What is to say of a queue, as Markdown. */
function saidOf(row, range) {
  return [
    ...row.pauses.map((pause) => {
      const by = pause.by ? ` by ${code(pause.by)}` : '';
      return `paused ${whenOf(pause, range)}${by}${pause.reason ? `, ${code(pause.reason)}` : ''}`;
    }),
    ...(row.still ? [`started none of ${plural(row.accepted, 'new job')}`] : []),
    ...(row.worst?.ms >= LATE
      ? [`started jobs up to ${span(row.worst.ms)} late (p99, ${momentOf(row.worst.at, range.from)})`]
      : []),
    ...(row.failed > 0 ? [`${plural(row.failed, 'failed attempt')}`] : []),
  ];
}

/** What happened to runners and Redis, as Markdown. */
function eventsOf({ range, lost, outages, emptied, started }) {
  const told = [
    ...[...lost, ...started, ...emptied].map(({ at, text }) => [at, `${momentOf(at, range.from)} ${escaped(text)}`]),
    ...outages.map((outage) => [outage.from ?? range.from, `Redis was lost: ${whenOf(outage, range)}`]),
  ];
  return told.sort((a, b) => a[0] - b[0]).map(([, text]) => text);
}

/** A sentence with names in it: what Markdown would take for a sign has a backslash. */
const escaped = (text) =>
  legible(text)
    .replace(/\s+/g, ' ')
    .replace(/[\\`*_[\]<>|#~@!]/g, '\\$&');
