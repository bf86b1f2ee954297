// The page of an incident: what went wrong in a range of time, for an address that is sent to others. The range is two
// moments, so that the address means the same tomorrow.

import { now, seg, url } from '../core/api.js';
import { errorOf } from '../core/dead-letter-group.js';
import { html, useEffect, useMemo, useState } from '../core/dom.js';
import { brief, count, plural, rate, span, utc, whoOf } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { rangeOf, spans, toRange } from '../core/range.js';
import { useWords } from '../core/route.js';
import { actionWords } from '../ui/acts.js';
import { Badge, Empty, Figure, Head, JobLink, Panel, Skeleton, Trouble, tell } from '../ui/base.js';
import { Chart } from '../ui/chart.js';
import { linesOf } from '../ui/history.js';
import {
  failedOf,
  MAX_RANGE,
  MAX_RANGE_OF_QUEUES,
  markdownOf,
  momentOf,
  nameOf,
  storyOf,
  whenOf,
  wordsOf,
} from '../ui/incident.js';
import { MarkList, readMarks } from '../ui/marks.js';
import { RangeChoice } from '../ui/range.js';
import { Sentence } from '../ui/verdict.js';
import { Detail, Target } from './audit.js';

const HOUR = 3600000;
const units = { s: 1000, m: 60000, h: HOUR, d: 24 * HOUR, w: 7 * 24 * HOUR };
/** Ranges that the page offers. The server has records of a week for all of its parts. */
const offered = spans.filter(([span]) => ['15m', '1h', '24h', '7d'].includes(span));
/** So long after its end a range still changes: runners write late, and a lost one is found after a while. In ms. */
const SETTLES = 300000;

/** The two moments that an address means now, if it does not name them. */
function absolute({ span: words, from, to }) {
  const [, many, unit] = /^(\d+)([smhdw])$/.exec(words) ?? [];
  const long = many ? Math.min(MAX_RANGE, many * units[unit]) : HOUR;
  const end = to ?? Math.ceil(now() / 1000) * 1000;
  return { from: from ?? end - long, to: end };
}

export default function Incident() {
  const [query, change] = useWords();
  const [told, tellStory] = useState({ key: null, text: null });
  const asked = rangeOf(query);
  const fixed = asked.from !== null && asked.to !== null;
  useEffect(() => {
    if (!fixed) change(toRange(absolute(asked)));
  }, [fixed, query]);
  if (!fixed) return html`<${Head} title="Incident" /><${Skeleton} />`;
  const range = { from: asked.from, to: asked.to };
  const choose = (next) => change(toRange(absolute({ span: '', from: null, to: null, ...next })), { replace: false });
  const only = { queue: query.get('queue') ?? '', kind: query.get('kind') ?? '', cause: query.get('cause') ?? '' };
  const named = { span: '', ...range };
  const link = location.href;
  const key = `${range.from} ${range.to} ${Object.values(only)}`;
  const reversed = range.from >= range.to;
  const fits = !reversed && range.to - range.from <= MAX_RANGE;
  const narrow = (words) => url('/incident', { ...toRange(range), ...only, ...words });
  // The choice of the range stays the same element while the page of another range takes the place of this one.
  return html`
    <${Head} title="Incident" sub=${fits && html`<span class="num" data-range>${wordsOf(range)}</span>`}>
      ${
        fits &&
        html`<div class="row">
          <${CopyText} text=${link}>Copy link</${CopyText}>
          <${CopyText} text=${told.key === key ? told.text : null}>Copy as Markdown</${CopyText}>
        </div>`
      }
    </${Head}>
    <div class="row">
      <${RangeChoice} range=${named} shown=${range} on=${choose} offered=${offered} />
      ${Object.entries(only)
        .filter(([, value]) => value)
        .map(
          ([word, value]) => html`<span key=${word} class="tag wrap">
            ${word}: ${value}${' '}
            <a href=${narrow({ [word]: '' })} aria-label=${`Without the ${word} ${value}`}>✕</a>
          </span>`,
        )}
    </div>
    ${
      fits
        ? html`<${Page}
          key=${key}
          range=${range}
          only=${only}
          link=${link}
          narrow=${narrow}
          tell=${(text) => tellStory({ key, text })}
        />`
        : html`<section class="panel">
          ${
            reversed
              ? html`<${Empty} title="The range ends before it begins">Choose a beginning before its end.</${Empty}>`
              : html`<${Empty} title="The page shows at most 7 days">
                <a href=${url('/incident', { ...toRange({ from: range.to - MAX_RANGE, to: range.to }), ...only })}>
                  The 7 days before the end of this range
                </a>
              </${Empty}>`
          }
        </section>`
    }
  `;
}

/** What went wrong in the range. `tell` takes the Markdown of it, for the heading. */
function Page({ range, only, link, narrow, tell: tellText }) {
  const { from, to } = toRange(range);
  const { queue, kind, cause } = only;
  const settles = range.to > now() - SETTLES;
  const again = { every: settles ? 15000 : 0 };
  const late = toRange({ from: Math.max(range.from, range.to - MAX_RANGE_OF_QUEUES), to: range.to });
  const history = useQuery(url('/v1/history', { from, to, queue }), again);
  const queues = useQuery(url('/v1/history/queues', { from: late.from, to: late.to }), again);
  const marks = useQuery(url('/v1/history/marks', { from, to, queue }), again);
  const audit = useQuery(url('/v1/audit', { from, to, fold: true, limit: 200 }), again);
  const causes = useQuery(url('/v1/dead-letters/causes', { from, to, queue, kind, fingerprint: cause }), again);
  const reads = [history, queues, marks, audit, causes];
  const answers = reads.map((read) => read.data);
  const read = useMemo(() => readMarks(marks.data), [marks.data]);
  const story = useMemo(
    () =>
      answers.every(Boolean)
        ? storyOf({
            range,
            only,
            history: history.data,
            queues: queues.data,
            marks: { read, before: marks.data.paused_before, kept: marks.data.kept, more: marks.data.more },
            audit: audit.data,
            causes: causes.data,
          })
        : null,
    answers,
  );
  const drawn = useMemo(
    () => [...read, ...(audit.data ? settingsOf(audit.data.data, queue) : [])].sort((a, b) => a.at - b.at),
    [read, audit.data],
  );
  const lines = useMemo(() => history.data && linesOf(history.data.points), [history.data]);
  const text = useMemo(() => story && markdownOf(story, link), [story, link]);
  useEffect(() => tellText(text), [text]);
  const wrong = reads.find((one) => one.error);
  return html`
    <${Trouble} error=${wrong?.error} retry=${() => wrong.reload()} />
    ${!story && !wrong && html`<${Skeleton} />`}
    ${
      story &&
      html`
        ${
          story.parts.length
            ? html`<${Sentence} parts=${story.parts} id="incident-verdict" />`
            : html`<p class="verdict" id="incident-verdict" role="status">Nothing stood out in this range.</p>`
        }
        ${
          story.notes.length > 0 &&
          html`<div class="note warn">
            ${story.notes.map((sentence) => html`<p key=${sentence}>${sentence}</p>`)}
          </div>`
        }
        <${Figures} story=${story} />
        <div class="grid">
          <${Panel} title="Jobs per second" side=${html`<span class="faint">in your local time</span>`}>
            <${Chart}
              label="Jobs per second"
              x=${history.data.points.at_ms}
              series=${lines.flow}
              format=${rate}
              marks=${drawn}
            />
          </${Panel}>
          <${Panel} title="Lateness" side=${html`<span class="faint">start after due, in your local time</span>`}>
            <${Chart}
              label="Lateness"
              x=${history.data.points.at_ms}
              series=${lines.late}
              format=${span}
              marks=${drawn}
            />
          </${Panel}>
        </div>
        <${MarkList} marks=${drawn} more=${marks.data.more} />
        <${Causes} story=${story} narrow=${narrow} />
        <${Queues} story=${story} narrow=${narrow} short=${range.to - range.from > MAX_RANGE_OF_QUEUES} />
        <${Events} story=${story} />
        <${Actions} story=${story} />
        <details class="panel mark-list" id="incident-text">
          <summary>Markdown for a post-mortem</summary>
          <pre class="body" tabindex="0" role="region" aria-label="The Markdown" id="incident-markdown">${text}</pre>
        </details>
      `
    }
  `;
}

/** Settings that operators changed, as marks. */
const settings = {
  'limit.set': ['limit set', 'set the limit', (name) => `/limits/${seg(name)}`],
  'limit.remove': ['limit removed', 'removed the limit', () => '/limits'],
  'queue.change': ['queue changed', 'changed the queue', (name) => `/queues/${seg(name)}`],
  'runner.drain': ['drained', 'drained the runner', () => '/runners'],
  'runner.resume': ['runner resumed', 'resumed the runner', () => '/runners'],
};

const settingsOf = (acts, queue) =>
  acts
    .filter((act) => settings[act.action] && !(queue && act.action === 'queue.change' && act.target !== queue))
    .map(({ action, actor, target, at }) => {
      const [short, text, to] = settings[action];
      return { short, text: `${actor} ${text} ${target}.`, href: to(target), at: Date.parse(at) };
    });

/** A moment in UTC; the day only where it is another one. */
const At = ({ ms, range }) => html`<time class="nowrap num" datetime=${new Date(ms).toISOString()} title=${utc(ms)}>
  ${momentOf(ms, range.from)}
</time>`;

function CopyText({ text, children }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell('Copied');
    } catch {
      tell('The browser did not allow to copy; mark the text by hand', 'bad');
    }
  };
  return html`<button type="button" disabled=${!text} onClick=${copy}>${children}</button>`;
}

function Figures({ story }) {
  const { figures, failed, causesCapped, causesMore, range } = story;
  const about = (n) => `${figures.exact ? '' : '≈ '}${brief(n)}`;
  const whole = figures.exact ? 'by all runners' : 'in the steps of the charts';
  return html`<div class="figures">
    <${Figure} name="Accepted" value=${about(figures.accepted)} title=${count(figures.accepted)} note=${whole} />
    <${Figure} name="Completed" value=${about(figures.completed)} title=${count(figures.completed)} note=${whole} />
    <${Figure} name="Failed attempts" value=${about(figures.failed)} title=${count(figures.failed)} note=${whole} />
    <${Figure}
      name="Failed for good"
      value=${brief(failed, causesCapped || causesMore)}
      note="jobs, still failed"
      to=${url('/jobs', { q: `state:failed ${failedOf(story)}` })}
      bad=${failed > 0}
    />
    <${Figure}
      name="Worst lateness"
      value=${span(figures.worst?.ms)}
      note=${figures.worst ? `p99, from ${momentOf(figures.worst.at, range.from)}` : 'no job started'}
    />
  </div>`;
}

function Causes({ story, narrow }) {
  const { range, causes, causesCapped, causesMore } = story;
  return html`<${Panel}
    title="Causes of failures"
    flush
    side=${
      causesCapped && html`<span class="faint" title="The newest 50,000 failures are counted">+ means at least</span>`
    }
  >
    ${
      causes.length === 0 &&
      html`<p class="body faint">No job failed for good in this range. One that was retried since is not counted.</p>`
    }
    ${
      causes.length > 0 &&
      html`<table class="cards dense">
        <thead>
          <tr><th>Cause</th><th class="right">Failed</th><th class="right">Before</th><th>First</th><th>Last</th></tr>
        </thead>
        <tbody>
          ${causes.map(
            (cause) => html`<tr key=${cause.fingerprint} data-row data-fingerprint=${cause.fingerprint}>
              <td data-label="Cause" class="cause">
                <div class="stack tighter">
                  <a class="lines bold" href=${`/dead-letters/${cause.fingerprint}`} title=${errorOf(cause)}>
                    ${errorOf(cause)}
                  </a>
                  <span class="row tight">
                    <a class="tag" href=${narrow({ kind: cause.kind })} title="Only this kind">${cause.kind}</a>
                    ${
                      cause.isNew &&
                      html`<${Badge} is="bad" title="It is not known from before this range">new</${Badge}>`
                    }
                    <${JobLink} id=${cause.sample} />
                  </span>
                </div>
              </td>
              <td data-label="Failed" class="right num bold">
                <a href=${url('/jobs', { q: failedOf(story, cause.fingerprint) })}>
                  ${count(cause.failed, causesCapped)}
                </a>
              </td>
              <td data-label="Before" class="right num" title="In the time before that is as long">
                ${count(cause.failed_before, causesCapped)}
              </td>
              <td data-label="First">
                <${At} ms=${cause.first} range=${range} />
                ${causesCapped && html`<span class="faint"> or earlier</span>`}
              </td>
              <td data-label="Last"><${At} ms=${cause.last} range=${range} /></td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
    ${causesMore && html`<p class="body faint">There are other causes with fewer failures.</p>`}
  </${Panel}>`;
}

function Queues({ story: { range, queues, queuesMore }, narrow, short }) {
  return html`<${Panel} title="Queues that stood still, were late or had failures" flush>
    ${queues.length === 0 && html`<p class="body faint">None.</p>`}
    ${
      queues.length > 0 &&
      html`<table class="cards dense">
        <thead>
          <tr>
            <th>Queue</th>
            <th>What happened</th>
            <th class="right">Accepted</th>
            <th class="right">Failed attempts</th>
            <th class="right">Worst lateness</th>
          </tr>
        </thead>
        <tbody>
          ${queues.map(
            (row) => html`<tr key=${row.name} data-row>
              <td data-label="Queue">
                ${
                  row.own
                    ? html`<span class="row tight">
                      <a class="wrap" href=${`/queues/${seg(row.name)}`}>${row.name}</a>
                      <a
                        class="soft nowrap"
                        href=${narrow({ queue: row.name })}
                        aria-label=${`only this queue: ${row.name}`}
                      >
                        only this queue
                      </a>
                    </span>`
                    : nameOf(row)
                }
              </td>
              <td data-label="What happened">
                <div class="stack tighter">
                  ${row.pauses.map(
                    (pause) => html`<span key=${pause.from} class="wrap">
                      <${Badge} is="paused" /> ${whenOf(pause, range)}${pause.by && ` by ${whoOf(pause.by)}`}
                      ${pause.reason && html`<span class="soft">: ${pause.reason}</span>`}
                    </span>`,
                  )}
                  ${row.still && html`<span class="bad">started no job</span>`}
                  ${!row.pauses.length && !row.still && html`<span class="faint">–</span>`}
                </div>
              </td>
              <td data-label="Accepted" class="right num">${count(row.accepted)}</td>
              <td data-label="Failed attempts" class="right num">${count(row.failed)}</td>
              <td data-label="Worst lateness" class="right num nowrap">
                ${span(row.worst?.ms)}
                ${row.worst && html`<span class="faint"> from <${At} ms=${row.worst.at} range=${range} /></span>`}
              </td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
    ${short && html`<p class="body faint">Counts and lateness are those of the last 24 hours of the range.</p>`}
    ${queuesMore && html`<p class="body faint">Only the hundred busiest queues were searched.</p>`}
  </${Panel}>`;
}

function Events({ story: { range, lost, outages, emptied, started } }) {
  const rows = [
    ...[...lost, ...started, ...emptied].map(({ at, text, href, bad }) => ({ at, text, href, bad })),
    ...outages.map((outage) => ({
      at: outage.from ?? range.from,
      text: `Redis was lost: ${whenOf(outage, range)}.`,
      href: '/index',
      bad: true,
    })),
  ].sort((a, b) => a.at - b.at);
  if (!rows.length) return null;
  return html`<${Panel} title="Runners and Redis">
    <ul class="plain-list">
      ${rows.map(
        ({ at, text, href, bad }) => html`<li key=${`${at}${text}`}>
          <${At} ms=${at} range=${range} />${' '}
          <a class=${bad ? 'bad wrap' : 'wrap'} href=${href}>${text}</a>
        </li>`,
      )}
    </ul>
  </${Panel}>`;
}

function Actions({ story: { range, acts, actsMore } }) {
  return html`<${Panel} title="What operators did" flush side=${html`<a href="/audit">Audit</a>`}>
    ${acts.length === 0 && html`<p class="body faint">Nothing in this range.</p>`}
    ${
      acts.length > 0 &&
      html`<table class="cards dense">
        <thead>
          <tr><th>When</th><th>Who</th><th>Action</th><th>Target</th><th>Details</th></tr>
        </thead>
        <tbody>
          ${acts.map(
            (act) => html`<tr key=${act.id} data-row>
              <td data-label="When"><${At} ms=${act.at} range=${range} /></td>
              <td data-label="Who" class="who"><span class="lines" title=${act.actor}>${act.actor}</span></td>
              <td data-label="Action">
                <span class="bold nowrap" title=${act.action}>${actionWords(act.action)}</span>
              </td>
              <td data-label="Target">${act.jobs > 1 ? plural(act.jobs, 'job') : html`<${Target} act=${act} />`}</td>
              <td data-label="Details" class="cause"><${Detail} detail=${act.detail} operation=${act.operation} /></td>
            </tr>`,
          )}
        </tbody>
      </table>`
    }
    ${actsMore && html`<p class="body faint">The audit has earlier actions of this range.</p>`}
  </${Panel}>`;
}
