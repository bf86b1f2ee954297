// Dead letters by cause, the cause that struck last first.

import { url } from '../core/api.js';
import { errorOf, openOf, recentOf } from '../core/dead-letter-group.js';
import { html } from '../core/dom.js';
import { brief, count, plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import { Allowed, Empty, Figure, Head, JobLink, Skeleton, Time, Trouble, useMay } from '../ui/base.js';
import { bulk } from '../ui/bulk.js';
import { Spark } from '../ui/chart.js';
import { DeadLetters, failed, statuses, useSettled } from '../ui/dead-letters.js';
import { quoted } from '../ui/filter.js';
import { howFar, isReleasing, isRunning, nameOf, ofGroup, useOperations, Watched } from '../ui/operation.js';
import { Pages } from '../ui/paging.js';
import { Still, useStill } from '../ui/still.js';

const PAGE = 50;
/** What a release begins with, so that what has just come back is not pushed over again. */
export const GENTLE = 20;

export const release = (group) =>
  bulk(
    'replay',
    { fingerprint: group.fingerprint },
    {
      rate: GENTLE,
      name: 'Release',
      title: `Release ${openOf(group)}`,
      about: errorOf(group),
    },
  );
export const discard = (group) =>
  bulk('discard', { fingerprint: group.fingerprint }, { title: `Discard ${openOf(group)}`, about: errorOf(group) });

export default function DeadLettersScreen() {
  const [query, change] = useWords();
  const status = statuses.includes(query.get('status')) ? query.get('status') : 'open';
  const kind = query.get('kind') ?? '';
  const cursor = query.get('cursor') ?? '';
  const admin = useMay();
  const kinds = useQuery('/v1/kinds');
  const operations = useOperations({ limit: 50 });
  const busy = Boolean(operations.data?.data.some(isRunning));
  const auto = !cursor;
  const page = useQuery(status === 'open' ? url('/v1/dead-letters/groups', { kind, limit: PAGE, cursor }) : null, {
    on: auto && failed,
    every: auto ? (busy ? 3000 : 15000) : 0,
    pace: 2000,
  });
  const groups = page.data?.data ?? [];
  const counts = {
    open: useCount('dead_letter:open', kind, busy),
    replayed: useCount('dead_letter:replayed', kind, busy),
    discarded: useCount('dead_letter:discarded', kind, busy),
  };
  const retrying = useCount('state:retrying', kind, busy);
  const recount = () => {
    for (const count of [...Object.values(counts), retrying]) count.reload();
  };
  useSettled(busy, () => {
    page.reload();
    recount();
  });
  const known = [
    ...new Set([
      ...(kinds.data?.data.map((one) => one.kind) ?? []),
      ...groups.map((group) => group.kind),
      ...(kind ? [kind] : []),
    ]),
  ].sort();
  const all = async (action) => {
    const of = kind ? `of ${kind}` : 'of all kinds';
    const text =
      action === 'replay'
        ? { name: 'Release', title: `Release everything open ${of}`, rate: GENTLE }
        : { title: `Discard everything open ${of}` };
    if (await bulk(action, kind ? { kind } : null, text)) after();
  };
  const after = () => {
    operations.reload();
    page.reload();
    recount();
  };
  const uncounted = [...Object.values(counts), retrying].find((count) => count.error);
  return html`
    <${Head} title="Dead letters" sub="Jobs that failed for good, by cause. Release makes new jobs of them.">
      ${
        admin &&
        status === 'open' &&
        groups.length > 0 &&
        html`
          <button type="button" onClick=${() => all('replay')}>Release ${kind ? 'this kind' : 'all'}</button>
          <button type="button" class="danger" onClick=${() => all('discard')}>
            Discard ${kind ? 'this kind' : 'all'}
          </button>
        `
      }
    </${Head}>
    ${
      status === 'open' &&
      groups.length > 0 &&
      html`
        <${Summary}
          groups=${groups}
          open=${counts.open.data}
          retrying=${retrying.data}
          kind=${kind}
          first=${auto}
          more=${page.data.next_cursor}
        />
      `
    }
    ${operations.data?.data
      .filter(
        (operation) =>
          isRunning(operation) && ['replay', 'discard'].includes(operation.action) && !operation.filter.fingerprint,
      )
      .map((operation) => html`<${Watched} key=${operation.id} operation=${operation} reload=${after} />`)}
    <div class="row apart">
      <nav class="tabs grow" aria-label="Status">
        ${statuses.map(
          (word) => html`
            <a
              key=${word}
              href=${url('/dead-letters', { status: word === 'open' ? '' : word, kind })}
              aria-current=${word === status ? 'page' : undefined}
            >
              ${word}
              <span class="num" title=${count(counts[word].data?.count, counts[word].data?.capped)}>
                ${brief(counts[word].data?.count ?? null, counts[word].data?.capped)}
              </span>
            </a>
          `,
        )}
      </nav>
      <label class="row">
        <span class="soft">Kind</span>
        <select
          value=${kind}
          onChange=${(event) => change({ kind: event.target.value, cursor: null }, { replace: false })}
        >
          <option value="">all</option>
          ${known.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
        </select>
      </label>
    </div>
    ${uncounted && html`<${Trouble} error=${uncounted.error} retry=${recount} />`}
    <section class="panel" aria-label=${status === 'open' ? 'Groups of dead letters' : `Dead letters ${status}`}>
      ${
        status === 'open'
          ? html`
            <${Groups}
              page=${page}
              groups=${groups}
              listing=${`${page.loading} ${kind} ${cursor}`}
              kind=${kind}
              operations=${operations.data?.data}
              after=${after}
            />
            <${Pages} cursor=${cursor} next=${page.data?.next_cursor} change=${change} />
          `
          : html`<${DeadLetters} status=${status} kind=${kind} cursor=${cursor} change=${change} busy=${busy} />`
      }
    </section>
  `;
}

/** How many jobs a filter finds, read on its own: one count that fails hides no other. */
function useCount(q, kind, busy) {
  return useQuery(url('/v1/jobs/count', { q: kind ? `${q} kind:${quoted(kind)}` : q }), {
    on: failed,
    every: busy ? 5000 : 20000,
    pace: 5000,
  });
}

function Summary({ groups, open, retrying, kind, first, more }) {
  // One page of several knows neither the biggest group nor what all of them have.
  const whole = first && !more;
  const most = groups.reduce((one, other) => (other.open > one.open ? other : one));
  const hours = groups.map(recentOf);
  const lately = hours.every(Boolean) ? hours.reduce((sum, recent) => sum + recent.at(-1), 0) : null;
  return html`<div class="figures">
    <${Figure}
      name="Open"
      value=${brief(open?.count ?? null, open?.capped)}
      note=${whole ? `in ${plural(groups.length, 'group')}` : 'in many groups'}
    />
    ${
      first &&
      html`
        <${Figure}
          name="Latest failure"
          value=${html`<${Time} at=${groups[0].last_seen} />`}
          note=${groups[0].kind}
          to=${`/dead-letters/${groups[0].fingerprint}`}
        />
      `
    }
    ${whole && lately !== null && html`<${Figure} name="Last hour" value=${brief(lately)} note="still open" />`}
    ${
      whole &&
      html`<${Figure}
        name="Biggest group"
        value=${brief(most.open, most.capped)}
        note=${most.kind}
        to=${`/dead-letters/${most.fingerprint}`}
      />`
    }
    <${Figure}
      name="Retrying"
      value=${brief(retrying?.count ?? null, retrying?.capped)}
      note="may fail as well"
      to=${url('/jobs', { q: `state:retrying${kind ? ` kind:${quoted(kind)}` : ''}` })}
    />
  </div>`;
}

function Groups({ page, groups: latest, listing, kind, operations, after }) {
  // The list reorders with each failure, and a click must not hit another cause.
  const still = useStill(latest, listing, false, { mixed: true, idOf: (group) => group.fingerprint });
  const groups = still.rows;
  const listed = new Set(latest.map((group) => group.fingerprint));
  if (!page.data)
    return page.error ? html`<${Trouble} error=${page.error} retry=${page.reload} />` : html`<${Skeleton} />`;
  if (groups.length === 0) {
    return kind
      ? html`<${Empty} title="Nothing of this kind is open">
        <a href="/dead-letters">Dead letters of all kinds</a>
      </${Empty}>`
      : html`<${Empty} title="Nothing has failed for good">
        A job comes here when its last attempt has failed, or its handler said that no attempt will help. Those with the
        same cause make a group.
        <div><pre>curl ${location.origin}/v1/dead-letters/groups</pre></div>
      </${Empty}>`;
  }
  const drawn = groups.some(recentOf);
  return html`
  <${Trouble} error=${page.error} retry=${page.reload} />
  <${Still} still=${still} one="new cause">
    <table class="cards dense">
      <thead>
        <tr>
          <th>Cause</th>
          <th class="right">Open</th>
          ${drawn && html`<th>Last 24 h</th>`}
          <th>First</th>
          <th>Last</th>
          <th class="optional">Sample</th>
          <${Allowed}>
            <th><span class="hidden-visually">Actions</span></th>
          </${Allowed}>
        </tr>
      </thead>
      <tbody>
        ${groups.map((group) => {
          const error = errorOf(group);
          const recent = recentOf(group);
          const act = async (what) => {
            if (!(await what(group))) return;
            // The dialog has given the focus back to the button. What was to be done here is done.
            still.free();
            after();
          };
          // A cause that left the list keeps its place while the list stands still.
          const gone = !listed.has(group.fingerprint);
          return html`<tr key=${group.fingerprint} data-row data-fingerprint=${group.fingerprint}>
            <td data-label="Cause" class="cause">
              <div class="stack tighter">
                <a class="lines bold" href=${`/dead-letters/${group.fingerprint}`} title=${group.sample_error}>
                  ${group.sample_error}
                </a>
                <span class="row">
                  <a class="tag" href=${url('/dead-letters', { kind: group.kind })} title="Only this kind">
                    ${group.kind}
                  </a>
                  ${ofGroup(operations, group.fingerprint)
                    .filter(isRunning)
                    .map(
                      (
                        operation,
                      ) => html`<a key=${operation.id} class="badge running" href=${`/operations/${operation.id}`}>
                        ${nameOf(operation.action)}: ${howFar(operation)}
                      </a>`,
                    )}
                  ${
                    error !== group.sample_error &&
                    html`<span class="lines one faint grow" title=${`Common to the errors of the group: ${error}`}>
                      ${error}
                    </span>`
                  }
                </span>
              </div>
            </td>
            <td data-label="Open" class="right num bold">
              ${
                gone
                  ? html`<span class="faint" title="Not in the list any more">–</span>`
                  : count(group.open, group.capped)
              }
            </td>
            ${
              drawn &&
              html`<td data-label="Last 24 h">
                ${recent ? html`<${Spark} values=${recent} bars colour=${4} label="Failed in the last hour" />` : '–'}
              </td>`
            }
            <td data-label="First">
              <${Time} at=${group.first_seen} />
              ${group.capped && html`<span class="faint" title="Not all were counted"> or earlier</span>`}
            </td>
            <td data-label="Last"><${Time} at=${group.last_seen} /></td>
            <td data-label="Sample" class="optional"><${JobLink} id=${group.sample} /></td>
            <${Allowed}>
              <td>
                <div class="row">
                  <button
                    type="button"
                    class="small"
                    disabled=${isReleasing(operations, group)}
                    title=${isReleasing(operations, group) ? 'A release of this group is running' : undefined}
                    onClick=${() => act(release)}
                  >
                    Release
                  </button>
                  <button type="button" class="small quiet" onClick=${() => act(discard)}>Discard</button>
                </div>
              </td>
            </${Allowed}>
          </tr>`;
        })}
      </tbody>
    </table>
  </${Still}>`;
}
