// Events that charts mark: starts and losses of runners, pauses, releases, losses of Redis. A chart shows them as thin
// lines, and a list beneath the charts tells each of them to readers of screens and to the keyboard.

import { seg, url } from '../core/api.js';
import { cls, html, useMemo } from '../core/dom.js';
import { plural, utc, whoOf } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Time } from './base.js';

const happens = ['queue_paused', 'queue_resumed', 'index_health', 'rebuilt'];
/** Marks that are closer than this share one line, in percent of the width. */
const CLOSE = 1.2;
/** A flag beyond this place stands on the left of its line. */
const FLIP = 82;

/** The marks of a span, `{marks, more}`; only those of a queue, if one is named. */
export function useMarks(over, queue) {
  const { data } = useQuery(url('/v1/history/marks', { span: over, queue }), {
    on: happens,
    every: over === '5m' ? 10000 : 30000,
    pace: 3000,
  });
  return useMemo(() => ({ marks: readMarks(data), more: data?.more }), [data]);
}

/** The marks of an answer, with their moments in ms and as words. */
export const readMarks = (data) =>
  (data?.marks ?? []).map((mark) => ({ ...mark, ...told(mark), at: Date.parse(mark.at) }));

const releases = { replay: 'release', retry: 'bulk retry', run_now: 'run at once' };
const lost = {
  redis_lost: ['Redis lost', 'Redis was lost'],
  redis_back: ['Redis back', 'Redis was back'],
  redis_emptied: ['Redis emptied', 'Redis had lost its data'],
};

/** A mark in a word or two, in a sentence, with a link, and whether it is about a trouble. */
function told(mark) {
  const { type, runners, version } = mark;
  const by = mark.by && whoOf(mark.by);
  if (type === 'runners_started') {
    const before = mark.previous_version ? ` Before that, version ${mark.previous_version} ran.` : '';
    const started = `${plural(runners, 'runner')} of version ${version} started.`;
    return { short: before ? `version ${version}` : 'start', text: started + before, href: '/runners' };
  }
  if (type === 'runners_lost') {
    const text =
      runners === 1 ? `The runner ${mark.runner} was lost.` : `${runners} runners were lost, ${mark.runner} first.`;
    return { short: 'runner lost', text, href: '/runners', bad: true };
  }
  if (type === 'queue_paused') {
    const reason = mark.reason ? `: ${mark.reason}` : '.';
    const href = `/queues/${seg(mark.queue)}`;
    return { short: `${mark.queue} paused`, text: `${by} paused the queue ${mark.queue}${reason}`, href, bad: true };
  }
  if (type === 'queue_resumed') {
    const href = `/queues/${seg(mark.queue)}`;
    return { short: `${mark.queue} resumed`, text: `${by} resumed the queue ${mark.queue}.`, href };
  }
  if (type === 'operation_started') {
    const what = mark.canary ? 'canary' : (releases[mark.action] ?? mark.action);
    const text = mark.action === 'run_now' ? `${by} ran jobs at once, in bulk.` : `${by} began a ${what}.`;
    return { short: what, text, href: `/operations/${mark.operation}` };
  }
  const [short, text] = lost[type] ?? [type, type];
  const seen = runners ? `, as ${plural(runners, 'runner')} saw it.` : '.';
  return { short, text: text + seen, href: '/index', bad: type !== 'redis_back' };
}

/** Marks as lines: `{left, room, flip, low, marks}` with places in percent. Marks that are close share a line. */
function linesOf(marks, from, to) {
  const lines = [];
  for (const mark of marks) {
    if (mark.at < from) continue;
    const left = Math.min(100, (100 * (mark.at - from)) / Math.max(1, to - from));
    const last = lines.at(-1);
    if (last && left - last.left < CLOSE) last.marks.push(mark);
    else lines.push({ left, flip: left > FLIP, marks: [mark] });
  }
  // Flags stand in two rows in turn. Each has the room up to the next line with a flag in its row, or half of it if
  // that flag comes from the other side.
  for (const [i, line] of lines.entries()) {
    const [before, after] = [lines[i - 2], lines[i + 2]];
    line.low = i % 2 === 1;
    const shared = (one, other) => (one.flip === other.flip ? 1 : 0.5);
    const next = line.flip ? before : after;
    const gap = next ? Math.abs(next.left - line.left) * shared(line, next) : 100;
    line.room = Math.min(gap, line.flip ? line.left : 100 - line.left);
  }
  return lines;
}

/** The lines over a chart whose plot goes from `from` to `to`, in ms. The list says the same, so they are not read. */
export function MarkLines({ marks, from, to }) {
  const lines = useMemo(() => linesOf(marks, from, to), [marks, from, to]);
  if (!lines.length) return null;
  return html`<div class="marks" aria-hidden="true">
    ${lines.map(({ left, room, flip, low, marks: here }) => {
      const one = here.find((mark) => mark.bad) ?? here.at(-1);
      return html`<a
        key=${one.at}
        class=${cls('mark', flip && 'flip', low && 'low', one.bad && 'bad')}
        style=${{ left: `${left}%`, '--room': room }}
        href=${one.href}
        tabindex="-1"
        title=${here.map(({ at, text }) => `${utc(at)}: ${text}`).join('\n')}
      >
        <span>${one.short}${here.length > 1 && ` +${here.length - 1}`}</span>
      </a>`;
    })}
  </div>`;
}

/** The marks of the charts above, the newest first. */
export function MarkList({ marks, more }) {
  if (!marks.length) return null;
  return html`<details class="panel mark-list">
    <summary>${plural(marks.length, 'event')}${more && ' or more'} marked above</summary>
    <ul class="plain-list">
      ${[...marks].reverse().map(
        ({ at, text, href }) => html`<li key=${`${at}${text}`}>
          <${Time} at=${at} /> <a class="wrap" href=${href}>${text}</a>
        </li>`,
      )}
    </ul>
    ${
      more &&
      html`<p class="faint">
        Older events of this time are left out. The audit has all changes of operators.
      </p>`
    }
  </details>`;
}
