// What is being done to many jobs: how far it is, which jobs it means, and how to stop it.

import { post, seg, url } from '../core/api.js';
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { count, plural, rate, span } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Allowed, Badge, Copy, Time, Trouble, tell, tellProblem } from './base.js';
import { actions, bulk } from './bulk.js';
import { CanaryProgress, canaryPace, pauseOrResume, repeatCanary } from './canary.js';
import { confirm } from './dialog.js';
import { filterLink, filterWords, requestOf } from './filter-text.js';

const past = {
  cancel: 'cancelled',
  retry: 'retried',
  run_now: 'made due',
  reschedule: 'rescheduled',
  set_priority: 'given the priority',
  delete: 'deleted',
  replay: 'replayed',
  discard: 'discarded',
};

export const nameOf = (action) => actions[action]?.name ?? String(action).replaceAll('_', ' ');
export const isRunning = (operation) => operation?.state === 'running';
/** Its state in one word. To the server a paused operation is a running one. */
export const stateOf = (operation) => (isRunning(operation) && operation.paused_at ? 'paused' : operation.state);

/** One operation, followed closely while it runs. */
export function useOperation(id) {
  const [over, set] = useState(false);
  const found = useQuery(`/v1/operations/${seg(id)}`, { every: over ? 30000 : 2000 });
  useEffect(
    () => set(Boolean(found.data ? !isRunning(found.data) : found.error?.status === 404)),
    [found.data, found.error],
  );
  return found;
}

/** A page of operations, read more often while one of them runs. */
export function useOperations(query = {}, idle = 10000) {
  const [busy, set] = useState(false);
  const found = useQuery(url('/v1/operations', query), { every: busy ? 3000 : idle });
  useEffect(() => set(Boolean(found.data?.data.some(isRunning))), [found.data]);
  return found;
}

/** The operations that mean this group of dead letters alone. */
export const ofGroup = (operations, fingerprint) =>
  (operations ?? []).filter((operation) => operation.filter.fingerprint === fingerprint);

/** Does it release, discard or retry dead letters of this group, be it among others? */
export function touches({ action, filter }, { fingerprint, kind }) {
  if (!['replay', 'discard', 'retry'].includes(action)) return false;
  return filter.fingerprint
    ? filter.fingerprint === fingerprint
    : !filter.ids && (!filter.kind || filter.kind === kind);
}

/** The filter as the operator gave it: an operation never means jobs that came later, so that need not be said. */
export function meant({ filter, created_at: asked }) {
  const { created_before: before, ...rest } = filter;
  return before && Math.abs(Date.parse(before) - Date.parse(asked)) > 2000 ? filter : rest;
}

/** Which jobs an operation means, as a sentence that leads to them where it can. */
export function FilterLink({ operation }) {
  const link = filterLink(operation.filter);
  const words = filterWords(meant(operation));
  return link ? html`<a class="wrap" href=${link}>${words}</a>` : html`<span class="wrap">${words}</span>`;
}

const seen = (operation) => operation.done + operation.skipped + operation.failed;

/** Does it mean more jobs than were counted at its start? Then it has no known end. */
const isEndless = (operation) => operation.estimate_capped && operation.state !== 'done';

/** How much of it is over, in percent. */
const portion = (operation) =>
  operation.state === 'done' ? 100 : Math.min(100, (seen(operation) / Math.max(1, operation.estimate)) * 100);

/** How far it is: `40 %`, or `12,000 jobs` of an unknown number. */
export const howFar = (operation) =>
  isEndless(operation) ? plural(seen(operation), 'job') : `${Math.round(portion(operation))} %`;

/** What came of it: `120 replayed, 3 left as they were`. */
export const outcome = (operation) =>
  [
    `${count(operation.done)} ${past[operation.action] ?? 'done'}`,
    operation.skipped > 0 && `${count(operation.skipped)} left as ${operation.skipped === 1 ? 'it was' : 'they were'}`,
    operation.failed > 0 && `${count(operation.failed)} failed`,
  ]
    .filter(Boolean)
    .join(', ');

export const paceOf = (operation) =>
  operation.canary
    ? canaryPace(operation.canary)
    : operation.rate
      ? `at most ${count(operation.rate)}/s`
      : 'as fast as it goes';

export function Progress({ operation }) {
  const label = `${nameOf(operation.action)}: ${howFar(operation)}`;
  const endless = isEndless(operation);
  return html`<div class="stack tighter">
    ${!endless && html`<progress max="100" value=${portion(operation)} aria-label=${label}></progress>`}
    <span class="row apart soft num">
      <span>${count(seen(operation))} of ${count(Math.max(operation.estimate, seen(operation)), endless)}</span>
      ${operation.failed > 0 && html`<span class="bad">${count(operation.failed)} failed</span>`}
    </span>
  </div>`;
}

/** Is a group being released? A second release is refused, or would come on top of a broader one. */
export const isReleasing = (operations, group) =>
  (operations ?? []).some(
    (operation) => isRunning(operation) && operation.action === 'replay' && touches(operation, group),
  );

const ends = [
  ['completed', 'completed'],
  ['executing', 'running'],
  ['waiting', 'waiting'],
  ['retrying', 'retrying'],
  ['failed', 'failed again'],
  ['cancelled', 'cancelled'],
];

/** How many jobs a replay has made, by the states that they have now. */
export function useMade(operation) {
  const [every, set] = useState(3000);
  const replays = operation?.action === 'replay';
  const made = useQuery(replays ? `/v1/operations/${seg(operation.id)}/made` : null, { every });
  const it = made.data;
  useEffect(() => {
    const open = isRunning(operation) || !it || it.waiting + it.executing + it.retrying > 0;
    // A count of so many takes the server longer.
    set(open ? (it?.capped ? 10000 : 3000) : 30000);
  }, [operation?.state, it]);
  return made;
}

/** The colour of an operation that is over. A release whose jobs fail again is no success, however well it went. */
export const toneOf = (operation, made) =>
  operation.state === 'failed'
    ? 'bad'
    : operation.state !== 'done' || operation.failed || made?.failed
      ? 'warn'
      : 'good';

/**
 * The jobs that a replay made by their states: those alone, whatever else fails for the same cause. Among others of its
 * kind it is `quiet` for readers of screens.
 */
export const Released = ({ operation, quiet }) =>
  html`<${Made} operation=${operation} quiet=${quiet} made=${useMade(operation)} />`;

/** The same, for a page that needs the numbers as well. */
export function Made({ operation, made, quiet = false }) {
  const it = made.data;
  const trouble = html`<${Trouble} error=${made.error} retry=${made.reload} />`;
  if (!it || (it.count === 0 && !isRunning(operation))) return trouble;
  const link = (state) => url('/jobs', { q: `operation:${operation.id}${state ? ` state:${state}` : ''}` });
  return html`${trouble}<span class="num" role=${quiet ? undefined : 'status'} data-released>
    <a href=${link()}>${count(it.count, it.capped)} released</a> → ${' '}
    ${ends
      .filter(([state]) => it[state] > 0 || state === 'completed' || state === 'failed')
      .map(([state, word], i) => {
        const text = `${count(it[state], state === 'failed' ? it.failed_capped : it.capped)} ${word}`;
        return html`${i > 0 && ' · '}${
          it[state] > 0
            ? html`<a key=${state} class=${state === 'failed' && 'bad bold'} href=${link(state)}>${text}</a>`
            : html`<span key=${state} class="soft">${text}</span>`
        }`;
      })}
    ${
      it.failed > 0 &&
      isRunning(operation) &&
      !operation.canary &&
      html`${' '}<b class="bad">Stop it, unless you expected that.</b>`
    }
  </span>`;
}

/** Ask, and stop it. */
export const stop = (operation, reload) =>
  confirm(
    'Stop this operation?',
    `${outcome(operation)} so far; that stays. The rest is left as it is, and can be started again.`,
    'Stop it',
    async () => {
      const stopped = await post(`/v1/operations/${operation.id}/cancel`);
      tell(`It was stopped: ${outcome(stopped)}`);
      reload?.();
      return true;
    },
    {
      danger: true,
      about: html`<b>${nameOf(operation.action)}</b>: ${filterWords(meant(operation))}, asked for by${' '}
        <bdi>${operation.asked_by}</bdi>`,
    },
  );

/** The button stays busy so long at most when no reading shows what it did, in ms. */
const UNSEEN = 5000;

/** Holds a running operation, and lets it go on. */
export function PauseButton({ operation, reload, small = false }) {
  const is = operation.paused_at ? 'paused' : 'running';
  const [waits, wait] = useState(false);
  // The browser may bring a second click before the busy button is drawn, so the drawn state alone does not tell.
  const own = useRef({ busy: false, byKey: false, timer: 0, button: null }).current;
  const setBusy = (busy) => {
    clearTimeout(own.timer);
    own.busy = busy;
    wait(busy);
  };
  // The page has read what the button did.
  useEffect(() => {
    setBusy(false);
    return () => clearTimeout(own.timer);
  }, [is]);
  // A button that is disabled takes no focus, and a user who has gone elsewhere meanwhile keeps the place.
  useEffect(() => {
    if (waits) return;
    if (own.byKey && document.activeElement === document.body) own.button?.focus();
    own.byKey = false;
  }, [waits]);
  if (!isRunning(operation)) return null;
  const press = async (event) => {
    // The second click of a double click meant the button that stood here before.
    if (own.busy || event.detail > 1) return;
    setBusy(true);
    // A user of the keyboard, whose click has no detail, goes on at the button that takes the place of this one.
    own.byKey = event.detail === 0;
    try {
      await pauseOrResume(operation, reload);
      if (own.busy) own.timer = setTimeout(setBusy, UNSEEN, false);
    } catch (problem) {
      tellProblem(problem);
      setBusy(false);
    }
  };
  const button = (element) => {
    own.button = element;
  };
  return html`<${Allowed}>
    <button
      key=${is}
      ref=${button}
      type="button"
      class=${cls(small && 'small')}
      disabled=${waits}
      onClick=${press}
    >
      ${operation.paused_at ? 'Resume' : 'Pause'}
    </button>
  </${Allowed}>`;
}

/** Says that an operation is paused, and by whom. */
export const Paused = ({ operation }) =>
  operation.paused_at
    ? html`<span class="row" data-paused>
        <${Badge} is="paused" />
        <span class="soft">by <bdi>${operation.paused_by}</bdi>, <${Time} at=${operation.paused_at} /></span>
      </span>`
    : null;

/** Ask for the same once more: for what was left, or what has come since. */
export function again(operation) {
  const { action, priority, execute_at: due } = operation;
  const filter = requestOf(meant(operation));
  // A request that says less than the first one would change other jobs.
  if (filter === undefined) {
    tell('This page cannot write the whole filter of this operation. Start it again through the API.', 'bad');
    return undefined;
  }
  return operation.canary
    ? repeatCanary(operation, filter)
    : bulk(action, filter, { rate: operation.rate ?? '', priority: priority ?? undefined, due });
}

/** An operation where its jobs are shown: how far it is, and a way to stop it. */
export function Watched({ operation, reload }) {
  const on = isRunning(operation);
  const made = useMade(operation);
  return html`
    <div
      class=${cls('note', !on && toneOf(operation, made.data), 'stack tight')}
      data-operation=${operation.id}
    >
      <div class="row apart">
        <span class="row grow">
          <b>${nameOf(operation.action)}</b>
          <${Badge} is=${stateOf(operation)} />
          ${!operation.filter.fingerprint && html`<span class="lines">${filterWords(meant(operation))}</span>`}
          <span class="soft lines">by <bdi>${operation.asked_by}</bdi>, <${Time} at=${operation.created_at} /></span>
        </span>
        <span class="row">
          <a href=${`/operations/${operation.id}`}>Details</a>
          ${
            on &&
            html`<${PauseButton} operation=${operation} reload=${reload} small />
            <${Allowed}>
              <button type="button" class="small danger" onClick=${() => stop(operation, reload)}>Stop</button>
            </${Allowed}>`
          }
        </span>
      </div>
      <${Progress} operation=${operation} />
      <${Paused} operation=${operation} />
      <${CanaryProgress} operation=${operation} />
      <span class="num">
        ${outcome(operation)}
        ${
          on
            ? html`
              ${' '}· ${rate(operation.measured_rate)}/s, ${paceOf(operation)} ·${' '}
              ${
                operation.paused_at
                  ? 'paused'
                  : operation.eta_s !== null
                    ? `about ${span(operation.eta_s * 1000)} left`
                    : operation.estimate_capped
                      ? 'time left not known: more jobs than were counted'
                      : 'time left not known yet'
              }
              ${!operation.runner && !operation.paused_at && ' · waits for a runner'}
            `
            : ''
        }
      </span>
      <${Made} operation=${operation} made=${made} />
      ${
        operation.last_error &&
        html`<div class="row top">
          <div class="error grow">${operation.last_error}</div>
          <${Copy} text=${operation.last_error} label="Copy the error" />
        </div>`
      }
    </div>
  `;
}
