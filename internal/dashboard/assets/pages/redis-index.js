// The Redis index: its health beside MySQL, and whether everything is as promised.

import { now, post, readiness } from '../core/api.js';
import { html, useEffect, useState } from '../core/dom.js';
import { count, plural, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Allowed, Badge, Field, Head, JobLink, Panel, Skeleton, Time, Trouble, tell } from '../ui/base.js';
import { ask } from '../ui/dialog.js';

const CAUSES = {
  start: 'the runner started',
  lost_state: 'Redis had lost its state',
  outage: 'Redis was out',
  asked: 'an operator asked for it',
};

/** Reads what an older server does not have: `missing` then, and it is not asked again. */
function useIfThere(path, options) {
  const [missing, set] = useState(false);
  const found = useQuery(missing ? null : path, options);
  useEffect(() => {
    if (found.error?.status === 404) set(true);
  }, [found.error]);
  return { ...found, missing };
}

export default function RedisIndex() {
  const ready = useQuery('/readyz', {
    on: ['index_health', 'runner_stopping', 'rebuilt'],
    every: 5000,
    read: readiness,
  });
  const stats = useQuery('/v1/stats', { every: 10000 });
  const index = useIfThere('/v1/index', {
    on: ['index_health', 'rebuilt', 'accepted', 'started'],
    every: 5000,
    pace: 2000,
  });
  const [asked, setAsked] = useState(null);
  const it = index.data;
  const done = asked && it?.last_rebuild && Date.parse(it.last_rebuild.at) > Date.parse(asked.asked_at);
  const rebuild = async () => {
    const answer = await ask({
      title: 'Feed Redis again from MySQL?',
      action: 'Rebuild',
      submit: () => post('/v1/index/rebuild'),
      body: () => html`
        <p>
          What Redis holds is forgotten, and all that is due within the horizon is fed again. That takes seconds. Jobs
          run meanwhile, a little later than usual; none runs twice and none is lost.
        </p>
        <p class="soft">It is seldom needed: what Redis loses comes back within 6 s without an operator's help.</p>
      `,
    });
    if (!answer) return;
    setAsked(answer);
    tell(answer.started ? 'Redis is being fed again' : 'A rebuild was under way already');
    index.reload();
  };
  return html`
    <${Head}
      title="Index health"
      sub="MySQL holds everything. Redis says what is due soon, so that jobs start at once; it can be lost at any time."
    >
      ${
        it &&
        html`<${Allowed}>
          <button
            type="button"
            disabled=${it.health === 'degraded'}
            title=${it.health === 'degraded' ? 'Redis does not answer; it is fed when it does' : undefined}
            onClick=${rebuild}
          >
            Rebuild now
          </button>
        </${Allowed}>`
      }
    </${Head}>
    ${
      done &&
      html`<div class="note good" role="status">
        <b>Rebuilt.</b> ${plural(it.last_rebuild.jobs, 'job')} ${it.last_rebuild.jobs === 1 ? 'was' : 'were'} missing.
        It took ${span(it.last_rebuild.took_ms)}.
      </div>`
    }
    ${!index.missing && html`<${Trouble} error=${index.error} retry=${index.reload} />`}
    <${Panel} title="Health">
      ${
        ready.data || ready.error
          ? html`<${Lights} ready=${ready} health=${it?.health ?? stats.data?.index?.health} index=${it} />`
          : html`<${Skeleton} />`
      }
    </${Panel}>
    ${it && html`<div class="grid"><${Sides} it=${it} /><${Facts} it=${it} /></div>`}
    ${
      index.missing &&
      stats.data &&
      html`<${Panel} title="What MySQL owes">
        <div class="figures">
          ${['waiting', 'retrying', 'executing'].map(
            (state) => html`<a class="figure" key=${state} href=${`/jobs?q=state%3A${state}`}>
              <div class="name">${state}</div>
              <div class="value">${count(stats.data.states[state] ?? 0, !stats.data.exact)}</div>
            </a>`,
          )}
        </div>
        <p class="soft">
          This server does not tell what Redis holds. The command line does: <code>tickr verify</code> compares,${' '}
          <code>tickr rebuild</code> feeds Redis again.
        </p>
      </${Panel}>`
    }
    <${Verify} />
  `;
}

function Light({ is, title, children }) {
  return html`<li class="row top item">
    <span class=${`dot big ${is}`} aria-hidden="true"></span>
    <div class="grow"><b>${title}</b><div class="soft wrap">${children}</div></div>
  </li>`;
}

/** What each light means, and what to do when it is not green. */
function Lights({ ready, health, index }) {
  const { data: it, error } = ready;
  if (!it)
    return html`<ul class="plain-list">
      <${Light} is="bad" title="No answer from this server">
        ${error.message}. Jobs run on other runners, if there are any. Look at the process and its log.
      </${Light}>
    </ul>`;
  const weakness = index?.weakness ?? it.index_weakness;
  const problem = index?.problem ?? it.index_problem;
  const drift = index?.drift;
  return html`<ul class="plain-list loose">
    ${
      it.mysql
        ? html`<${Light} is="good" title="MySQL answers">
          It takes writes. It alone knows what was accepted and what was done.
        </${Light}>`
        : html`<${Light} is="bad" title="MySQL is out">
          Nothing is accepted and nothing starts. What was accepted is safe, and what runs may end. Bring MySQL back:
          runners find it without a restart.
        </${Light}>`
    }
    ${
      it.durable === true &&
      html`<${Light} is="good" title="Commits survive a power cut">
        A job is on disk before its producer hears that it was accepted.
      </${Light}>`
    }
    ${
      it.durable === false &&
      html`<${Light} is="warn" title="Commits may not survive a power cut">
        A job that was accepted may be gone when the machine of MySQL loses power. Change these of its settings:${' '}
        <code>${(it.weaknesses ?? []).join(', ') || 'unknown'}</code>
      </${Light}>`
    }
    ${
      it.status === 'stopping' &&
      html`<${Light} is="warn" title="This runner stops">
        It finishes what it runs. Another one answers soon.
      </${Light}>`
    }
    ${
      it.held &&
      html`<${Light} is="warn" title="This process is held">
        It serves the API and starts nothing. Start it without <code>held</code> to let jobs run.
      </${Light}>`
    }
    ${
      it.takes_jobs === false &&
      it.status !== 'stopping' &&
      !it.held &&
      html`<${Light} is="warn" title="This runner drains">
        It was asked to take no new work. <a href="/runners">To the runners</a>
      </${Light}>`
    }
    ${
      health === 'fast' &&
      html`<${Light} is="good" title="Redis is fast">
        It answers and holds what it should. Due jobs start within milliseconds.
      </${Light}>`
    }
    ${
      health === 'rebuilding' &&
      !it.held &&
      html`<${Light} is="warn" title="Redis is being fed from MySQL">
        ${index?.rebuilding && `Because ${CAUSES[index.rebuilding] ?? index.rebuilding}. `}Jobs run meanwhile, a little
        later. There is nothing to do: it takes seconds. If it lasts for minutes, MySQL is slow.
      </${Light}>`
    }
    ${
      health === 'degraded' &&
      html`<${Light} is="warn" title="Redis does not answer">
        Jobs run without it: runners read due work from MySQL, which costs up to a second of lateness and makes MySQL
        work more. Bring Redis back. It is fed again without being asked.
        ${problem && html`${' '}The last failure: <code>${problem}</code>`}
      </${Light}>`
    }
    ${
      weakness &&
      html`<${Light} is="warn" title="Redis forgets more than it must">
        ${weakness}. What it forgets comes back within 6 s, but those jobs start late. Give tickr a Redis with${' '}
        <code>maxmemory-policy noeviction</code> and enough memory.
      </${Light}>`
    }
    ${
      index &&
      !drift &&
      html`<${Light} is="" title="Not compared yet">
        Each runner compares Redis with MySQL every few seconds.
      </${Light}>`
    }
    ${
      drift &&
      (drift.jobs === 0
        ? html`<${Light} is="good" title="No drift">
          Redis held all that it should when they were compared, <${Time} at=${drift.at} />.
        </${Light}>`
        : html`
          <${Light}
            is="warn"
            title=${`${plural(drift.jobs, 'job')} ${drift.jobs === 1 ? 'was' : 'were'} missing from Redis`}
          >
            They were brought back <${Time} at=${drift.at} />. Once, after a restart or failover of Redis, that is
            normal. If it stays so, something takes entries away: evictions, an old replica, or another program with the
            same prefix.
          </${Light}>
        `)
    }
  </ul>`;
}

function Sides({ it }) {
  const { store, redis } = it;
  const row = (name, mysql, held, about) =>
    html`<tr>
      <td data-label="Jobs"><span title=${about}>${name}</span></td>
      <td data-label="MySQL" class="right num">${mysql}</td>
      <td data-label="Redis" class="right num">${held}</td>
    </tr>`;
  const held = (n) => (redis ? count(n) : html`<span class="faint">no answer</span>`);
  return html`<${Panel} title="Redis vs. MySQL" flush>
    <table class="cards">
      <thead>
        <tr><th>Jobs</th><th class="right">MySQL</th><th class="right">Redis</th></tr>
      </thead>
      <tbody>
        ${row(
          'Due, not started',
          count(store.due, store.more),
          held(redis?.ready),
          'In Redis: in ready lists, and not taken yet',
        )}
        ${row(
          `Due within ${span(it.horizon_ms)}`,
          count(store.upcoming, store.more),
          held(redis?.waiting),
          'In Redis: scheduled',
        )}
        ${row('Running', count(store.executing, store.more), html`<span class="faint">not kept there</span>`)}
      </tbody>
    </table>
    <p class="body faint">
      The two are not counted at one moment, and jobs on their way to a worker are in neither. Small differences are
      normal; drift is what was missing twice.
      ${
        redis?.full_lists > 0 &&
        html`
          ${' '}${plural(redis.full_lists, 'ready list')} ${redis.full_lists === 1 ? 'is' : 'are'} full: the rest stays
          in MySQL until there is room.
        `
      }
    </p>
  </${Panel}>`;
}

function Facts({ it }) {
  const last = it.last_rebuild;
  return html`<${Panel} title="Details">
    <dl class="facts">
      <dt>Health</dt>
      <dd><${Badge} is=${it.health} /> since <${Time} at=${it.since} /></dd>
      ${it.server && html`<dt>Server</dt><dd class="mono">${it.server} (${it.mode})</dd>`}
      <dt>Last rebuild</dt>
      <dd>${last ? html`<${Time} at=${last.at} />, because ${CAUSES[last.cause] ?? last.cause}` : 'none yet'}</dd>
      ${last && html`<dt>Restored</dt><dd>${plural(last.jobs, 'job')} in ${span(last.took_ms)}</dd>`}
      <dt>Seen by</dt>
      <dd class="mono">${it.runner}</dd>
      ${
        it.redis?.epoch &&
        html`
          <dt>Epoch</dt>
          <dd class="mono" title="Another one whenever Redis has lost its state">${it.redis.epoch}</dd>
        `
      }
    </dl>
  </${Panel}>`;
}

/** A check of everything, and what it found. One is made at a time, for all operators. */
function Verify() {
  const [fast, setFast] = useState(false);
  const found = useIfThere('/v1/verify', { every: fast ? 1500 : 15000 });
  const { running, last } = found.data ?? {};
  useEffect(() => setFast(Boolean(running)), [running]);
  const begin = async () => {
    const begun = await ask({
      title: 'Verify everything?',
      action: 'Verify',
      values: { since: '' },
      body: ({ values, set }) => html`
        <p>
          Every promise is checked against MySQL, page by page, beside the running system and without locks, and against
          Redis. It only reads, at half speed, for two minutes at the most.
        </p>
        <${Field}
          label="Look at"
          id="verify-since"
          hint="What is looked at is the oldest first: on large tables take the young ones"
        >
          <select id="verify-since" value=${values.since} onChange=${(e) => set({ since: e.target.value })}>
            <option value="">all jobs</option>
            <option value="3600">jobs of the last hour</option>
            <option value="86400">jobs of the last day</option>
            <option value="604800">jobs of the last week</option>
          </select>
        </${Field}>
      `,
      submit: ({ since }) =>
        post('/v1/verify', since ? { since: new Date(now() - Number(since) * 1000).toISOString() } : {}),
    });
    if (!begun) return;
    tell(begun.started ? 'The check has begun' : 'A check was under way already');
    found.reload();
  };
  return html`
    <${Panel}
      title="Verify"
      side=${
        found.data &&
        html`<${Allowed}>
          <button type="button" disabled=${running} onClick=${begin}>${running ? 'Under way…' : 'Verify now'}</button>
        </${Allowed}>`
      }
    >
      ${
        found.missing
          ? html`<p class="soft">
            Is everything still as promised? <code>tickr verify</code> answers from the tables, beside the running
            system.
          </p>`
          : html`<${Trouble} error=${found.error} retry=${found.reload} />`
      }
      <div class="stack">
        ${
          running &&
          html`<div class="note" role="status">
            <b>Under way.</b> <${Asked} of=${running} /> It takes some seconds at least: what Redis seems to lack must
            stay missing to count.
          </div>`
        }
        ${
          last
            ? html`<${Verification} of=${last} />`
            : found.data &&
              !running &&
              html`<p class="soft">
                Is everything still as promised: nothing lost, nothing done twice, Redis in step? No check was requested
                yet. <code>tickr verify</code> does the same on the command line.
              </p>`
        }
      </div>
    </${Panel}>
  `;
}

const Asked = ({ of: it }) =>
  html`<span class="soft">
    Asked for by <span class="wrap">${it.by}</span> <${Time} at=${it.started_at} />
    ${it.since && html`, of jobs since <${Time} at=${it.since} />`}.
  </span>`;

function Verification({ of: it }) {
  const { report } = it;
  if (!report)
    return html`<div class="note bad">
      <b>The last check came to nothing:</b> <span class="wrap">${it.failure}.</span> <${Asked} of=${it} />
    </div>`;
  const those = (verdict) => report.checks.filter((check) => check.verdict === verdict);
  const [broken, skipped, holds] = ['broken', 'skipped', 'holds'].map(those);
  const faults = broken.reduce((sum, check) => sum + check.faults, 0);
  return html`<div class="stack tight">
    <div class=${`note ${{ kept: 'good', unchecked: 'warn' }[report.verdict] ?? 'bad'}`}>
      <b>
        ${
          {
            kept: 'Everything is as promised.',
            unchecked: 'What could be looked at is as promised, and that was not all.',
          }[report.verdict] ?? `${plural(faults, 'fault')}: a promise was broken.`
        }
      </b>${' '}
      ${plural(report.checks.length - skipped.length, 'check')} of ${plural(report.looked_at.jobs, 'job')} and${' '}
      ${plural(report.looked_at.attempts, 'attempt')} in ${span(it.took_ms)}. <${Asked} of=${it} />
      ${
        report.verdict === 'broken' &&
        html`<p>
          Keep this report, and look at the jobs below: their timeline, and the log of their runners. A rebuild mends
          what Redis gets wrong.
        </p>`
      }
    </div>
    ${broken.map(
      (check) => html`<article key=${check.name}>
        <div class="row">
          <${Badge} is="bad">${plural(check.faults, 'fault')}</${Badge}>
          <b>${check.name}</b>
          <span class="faint">${check.guarantee}</span>
        </div>
        <p class="soft wrap">What should hold: ${check.meaning}</p>
        <ul>
          ${check.examples.map(
            (example, i) => html`<li key=${i} class="wrap">
              ${example.job && html`<${JobLink} id=${example.job} /> `}
              ${example.what}
            </li>`,
          )}
        </ul>
      </article>`,
    )}
    ${skipped.map(
      (check) => html`<p key=${check.name}>
        <${Badge} is="warn">not made</${Badge}> <b>${check.name}</b> <span class="soft wrap">${check.skipped}</span>
      </p>`,
    )}
    ${report.unchecked.map((why, i) => html`<p key=${i} class="note warn wrap">Not checked: ${why}</p>`)}
    ${report.notes.map((note, i) => html`<p key=${i} class="note wrap">${note}</p>`)}
    ${
      holds.length > 0 &&
      html`<details>
        <summary>${plural(holds.length, 'check')} without a fault</summary>
        <table class="cards">
          <thead>
            <tr><th>Check</th><th>Promise</th><th>What holds</th></tr>
          </thead>
          <tbody>
            ${holds.map(
              (check) => html`<tr key=${check.name}>
                <td data-label="Check">${check.name}</td>
                <td data-label="Promise">${check.guarantee}</td>
                <td data-label="What holds" class="wrap">${check.meaning}</td>
              </tr>`,
            )}
          </tbody>
        </table>
      </details>`
    }
  </div>`;
}
