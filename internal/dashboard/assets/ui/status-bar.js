// The bar at the top: the state of MySQL, Redis and the runners, and the field that finds a job.
import { seg } from '../core/api.js';
import { cls, html } from '../core/dom.js';
import { brief, count, span } from '../core/format.js';
import { outage } from '../core/known.js';
import { live } from '../core/live.js';
import { useObservable } from '../core/observable.js';
import { useQuery } from '../core/query.js';
import { go } from '../core/route.js';
import { Icon } from './base.js';
import { menuOpen } from './menu.js';
import { isSilent } from './outage.js';
import { drainedOf, standing } from './runners.js';
import { behindOf } from './verdict.js';

const Dot = ({ is }) => html`<span class=${cls('dot', is)} aria-hidden="true"></span>`;

const Light = ({ is, to, children, title }) =>
  html`<a class="light" href=${to} title=${title}><${Dot} is=${is} />${children}</a>`;

/** In ms. */
const LATE = 5000;

export function StatusBar({ ready, stats, runners, index }) {
  const state = useObservable(live);
  const alive = runners.data?.data.filter((runner) => !runner.stopped_at);
  const silent = alive?.filter((runner) => standing(runner) === 'silent').length ?? 0;
  const health = ready.data?.index ?? stats.data?.index?.health;
  const out = isSilent(ready, stats);
  // Each of them is up, and none takes work.
  const drained = drainedOf(runners.data) > 0;
  const running = alive?.length === 0 ? 'bad' : silent || drained ? 'warn' : 'good';
  const stale = useObservable(outage) !== null;
  // The overview names a queue that no runner serves or that is paused. Here it would hide the others.
  const some = stats.data?.lateness.oldest_due_ms > LATE;
  const queues = useQuery(some ? '/v1/queues' : null, { every: 30000 });
  const late = some && behindOf(stats.data, queues.data, LATE);
  return html`<header class="bar">
    <button type="button" class="quiet menu" aria-label="Menu" aria-controls="menu" onClick=${() => menuOpen.set(true)}>
      <${Icon} of="menu" />
    </button>
    <div class="lights grow">
      ${
        out
          ? html`<${Light} is="bad" to="/">no answer from the server</${Light}>`
          : html`
            <${Light}
              is=${ready.data ? (ready.data.mysql ? (ready.data.durable === false ? 'warn' : 'good') : 'bad') : ''}
              to="/index"
              title=${
                ready.data?.durable === false
                  ? `Commits may not survive a power cut: ${(ready.data.weaknesses ?? []).join(', ')}`
                  : 'MySQL: the source of truth'
              }
            >
              MySQL${ready.data && !ready.data.mysql ? ' is out' : ''}
            </${Light}>
            <${Light}
              is=${stale ? '' : health === 'fast' ? 'good' : health ? 'warn' : ''}
              to="/index"
              title="Redis: the index. Jobs run without it, with a little more lateness"
            >
              Redis ${health ?? ''}
            </${Light}>
            ${
              index.data?.drift &&
              html`
                <${Light}
                  is=${stale || health !== 'fast' ? '' : index.data.drift.jobs > 0 ? 'warn' : 'good'}
                  to="/index"
                  title="Jobs that Redis lacked when it was last compared with MySQL"
                >
                  ${index.data.drift.jobs > 0 ? `drift ${brief(index.data.drift.jobs)}` : 'no drift'}
                </${Light}>
              `
            }
            <${Light} is=${alive && !stale ? running : ''} to="/runners">
              ${
                alive
                  ? `${count(alive.length, runners.data.more)} ${alive.length === 1 ? 'runner' : 'runners'}${
                      silent ? `, ${silent} silent` : ''
                    }${drained ? ', drained' : ''}`
                  : 'runners'
              }
            </${Light}>
            ${
              late &&
              html`
                <${Light} is="warn" to=${`/queues/${seg(late.name)}`} title="How long its oldest due job has waited">
                  ${late.name} ${span(late.ms)} late
                </${Light}>
              `
            }
          `
      }
    </div>
    <span
      class="light"
      title=${
        {
          live: 'Hears what happens as it happens',
          paused: 'Paused while the page is hidden',
          connecting: 'Connecting to the stream of events',
        }[state] ?? 'This screen needs no stream'
      }
    >
      <${Dot} is=${stale ? '' : { live: 'good beat', connecting: 'warn' }[state]} />
      ${state === 'off' ? 'idle' : state}
    </span>
    <${Finder} />
  </header>`;
}

/** Finds a job by its id, or opens the filter. */
function Finder() {
  const find = (event) => {
    event.preventDefault();
    const input = event.target.elements.find;
    const text = input.value.trim();
    if (!text) return;
    go(
      /^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(text) ? `/jobs/${text.toLowerCase()}` : `/jobs?q=${encodeURIComponent(text)}`,
    );
    input.value = '';
    input.blur();
  };
  return html`<form onSubmit=${find} role="search">
    <label class="hidden-visually" for="find">Find a job by id, filter or text</label>
    <input id="find" name="find" placeholder="Job id, filter, text" autocomplete="off" spellcheck=${false} size="18" />
  </form>`;
}
