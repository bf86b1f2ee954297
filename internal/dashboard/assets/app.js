// The frame of all screens, and which screen is shown.
import { render } from './vendor/preact.mjs';
import { html, cls, useEffect, useRef, useState } from './core/dom.js';
import { store, useStore } from './core/store.js';
import { me, may, signIn, signOut, whoAmI } from './core/api.js';
import { live } from './core/live.js';
import { go, usePlace } from './core/route.js';
import { useQuery } from './core/query.js';
import { brief, span } from './core/format.js';
import { Icon, Toasts, Trouble, Empty, Skeleton } from './ui/base.js';
import { Dialogs, ask } from './ui/dialog.js';

/** Screens: where they are, what loads them, and where they stand in the menu. */
const screens = [
  { at: /^\/$/, load: () => import('./pages/overview.js'), item: ['Overview', '/', 'overview', 'o'] },
  { at: /^\/jobs$/, load: () => import('./pages/jobs.js'), item: ['Jobs', '/jobs', 'jobs', 'j'] },
  { at: /^\/jobs\/([^/]+)$/, load: () => import('./pages/job.js'), under: '/jobs' },
  { at: /^\/failures$/, load: () => import('./pages/failures.js'), item: ['Failures', '/failures', 'failures', 'f'] },
  { at: /^\/failures\/([^/]+)$/, load: () => import('./pages/failure.js'), under: '/failures' },
  { at: /^\/queues$/, load: () => import('./pages/queues.js'), item: ['Queues', '/queues', 'queues', 'q'] },
  { at: /^\/queues\/([^/]+)$/, load: () => import('./pages/queue.js'), under: '/queues' },
  { at: /^\/schedules$/, load: () => import('./pages/schedules.js'), item: ['Schedules', '/schedules', 'schedules', 's'] },
  { at: /^\/schedules\/([^/]+)$/, load: () => import('./pages/schedule.js'), under: '/schedules' },
  { at: /^\/runners$/, load: () => import('./pages/runners.js'), item: ['Runners', '/runners', 'runners', 'r'] },
  { at: /^\/index$/, load: () => import('./pages/index.js'), item: ['Index health', '/index', 'index', 'i'] },
  { at: /^\/operations$/, load: () => import('./pages/operations.js'), item: ['Operations', '/operations', 'operations', 'p'] },
  { at: /^\/operations\/([^/]+)$/, load: () => import('./pages/operation.js'), under: '/operations' },
  { at: /^\/audit$/, load: () => import('./pages/audit.js'), item: ['Audit', '/audit', 'audit', 'a'] },
  { at: /^\/enqueue$/, load: () => import('./pages/enqueue.js'), item: ['Enqueue', '/enqueue', 'enqueue', 'e'], need: 'enqueue' },
  { at: /^\/keys$/, load: () => import('./pages/keys.js'), item: ['Keys', '/keys', 'keys', 'k'], need: 'admin' },
];

const menuOpen = store(false);

function Screen() {
  const { path } = usePlace();
  const [shown, set] = useState(null);
  const main = useRef(null);
  const found = screens.find((screen) => screen.at.test(path));
  useEffect(() => {
    let gone = false;
    if (!found) {
      set({ found });
      return undefined;
    }
    found.load().then((module) => gone || set({ found, screen: module.default }), (error) => gone || set({ found, error }));
    return () => {
      gone = true;
    };
  }, [found]);
  // A reader of screens hears where it is.
  useEffect(() => {
    menuOpen.set(false);
    main.current?.querySelector('h1')?.focus({ preventScroll: true });
  }, [path, shown?.screen]);
  const title = found?.item?.[0] ?? decodeURIComponent(path.split('/').pop() || '');
  useEffect(() => {
    document.title = `${title} · tickr`;
  }, [title]);
  const params = (found?.at.exec(path) || []).slice(1).map(decodeURIComponent);
  let content = html`<${Skeleton} />`;
  if (!found) content = html`<${Empty} title="There is nothing here">The address names no screen. <a href="/">Back to the overview</a></${Empty}>`;
  else if (shown?.found === found) content = shown.error ? html`<${Trouble} error=${shown.error} retry=${() => location.reload()} />` : html`<${shown.screen} key=${path} params=${params} />`;
  return html`<main class="main" id="main" ref=${main}><div class="stack">${content}</div></main>`;
}

function Side({ stats, dead }) {
  const { path } = usePlace();
  const who = useStore(me);
  const open = useStore(menuOpen);
  const here = screens.find((screen) => screen.at.test(path));
  const current = here?.item?.[1] ?? here?.under;
  const pips = {
    '/failures': dead?.count ?? null,
    '/jobs': stats ? (stats.states.waiting ?? 0) + (stats.states.retrying ?? 0) + (stats.states.executing ?? 0) : null,
  };
  const items = screens.filter((screen) => screen.item && (!screen.need || may(screen.need, who)));
  return html`<nav class=${cls('side', open && 'open')} aria-label="Screens" id="menu">
    <a class="brand" href="/"><img src="/ui/icon.svg" alt="" />tickr</a>
    ${items.map(({ item: [name, to, icon] }) => html`<a key=${to} class="item" href=${to} aria-current=${to === current ? 'page' : undefined}>
      <${Icon} of=${icon} />${name}${pips[to] > 0 && html`<span class=${cls('pip', to === '/failures' && 'bad')}>${brief(pips[to], to === '/failures' ? dead.capped : !stats.exact)}</span>`}</a>`)}
    <div class="foot">
      <${ThemeChoice} />
      <button type="button" class="quiet small" onClick=${help}>Keyboard <kbd>?</kbd></button>
      <a class="soft" href="/docs">API reference</a>
      <span class="faint wrap">${who?.actor}${who?.scope && html` · ${who.scope}`}</span>
      ${who?.actor && who.actor !== 'anyone' && html`<button type="button" class="quiet small" onClick=${signOut}>Sign out</button>`}
    </div></nav>
    ${open && html`<button class="veil" aria-label="Close the menu" onClick=${() => menuOpen.set(false)}></button>`}`;
}

function ThemeChoice() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? '');
  const choose = (event) => {
    const value = event.target.value;
    set(value);
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    try {
      if (value) localStorage.setItem('tickr.theme', value);
      else localStorage.removeItem('tickr.theme');
    } catch { /* it lasts as long as the page */ }
  };
  return html`<label class="row"><span class="hidden-visually">Theme</span><select value=${theme} onChange=${choose}>
    <option value="">Theme of the system</option><option value="light">Light</option><option value="dark">Dark</option></select></label>`;
}

const Light = ({ is, to, children, title }) => html`<a class="light" href=${to} title=${title}><span class=${cls('dot', is)} aria-hidden="true"></span>${children}</a>`;

function Bar({ ready, stats, runners, index }) {
  const state = useStore(live);
  const alive = runners.data?.data.filter((runner) => !runner.stopped_at);
  const silent = alive?.filter((runner) => runner.heartbeat_age_ms > 15000).length ?? 0;
  const health = ready.data?.index ?? stats.data?.index?.health;
  const out = ready.error?.status === 0;
  return html`<header class="bar">
    <button type="button" class="quiet menu" aria-label="Menu" aria-controls="menu" onClick=${() => menuOpen.set(true)}><${Icon} of="menu" /></button>
    <div class="lights grow">
      ${out ? html`<${Light} is="bad" to="/">no answer from the server</${Light}>` : html`
      <${Light} is=${ready.data ? (ready.data.mysql ? (ready.data.durable === false ? 'warn' : 'good') : 'bad') : ''} to="/index"
        title=${ready.data?.durable === false ? `Commits may not survive a power cut: ${(ready.data.weaknesses ?? []).join(', ')}` : 'MySQL: the source of truth'}>MySQL${ready.data && !ready.data.mysql ? ' is out' : ''}</${Light}>
      <${Light} is=${health === 'fast' ? 'good' : health ? 'warn' : ''} to="/index" title="Redis: the index. Jobs run without it, with a little more lateness">Redis ${health ?? ''}</${Light}>
      ${index.data?.drift && html`<${Light} is=${index.data.drift.jobs > 0 ? 'warn' : 'good'} to="/index" title="Jobs that Redis lacked when it was last compared with MySQL">${index.data.drift.jobs > 0 ? `drift ${brief(index.data.drift.jobs)}` : 'no drift'}</${Light}>`}
      <${Light} is=${alive ? (alive.length === 0 ? 'bad' : silent ? 'warn' : 'good') : ''} to="/runners">${alive ? `${alive.length} ${alive.length === 1 ? 'runner' : 'runners'}${silent ? `, ${silent} silent` : ''}` : 'runners'}</${Light}>
      ${stats.data && html`<${Light} is=${stats.data.lateness.oldest_due_ms > 60000 ? 'bad' : stats.data.lateness.oldest_due_ms > 5000 ? 'warn' : 'good'} to="/jobs?q=state%3Awaiting%20due%3A%3C0s"
        title="How long the oldest due job has been waiting for its start">oldest due ${span(stats.data.lateness.oldest_due_ms)}</${Light}>`}`}
    </div>
    <span class="light" title=${{ live: 'Hears what happens as it happens', paused: 'Paused while the page is hidden', connecting: 'Connecting to the stream of events' }[state] ?? 'This screen needs no stream'}>
      <span class=${cls('dot', state === 'live' && 'good beat', state === 'connecting' && 'warn')} aria-hidden="true"></span>${state === 'off' ? 'idle' : state}</span>
    <${Finder} /></header>`;
}

/** Finds a job by its id, or opens the filter. */
function Finder() {
  const find = (event) => {
    event.preventDefault();
    const input = event.target.elements.find;
    const text = input.value.trim();
    if (!text) return;
    go(/^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(text) ? `/jobs/${text.toLowerCase()}` : `/jobs?q=${encodeURIComponent(text)}`);
    input.value = '';
    input.blur();
  };
  return html`<form onSubmit=${find} role="search"><label class="hidden-visually" for="find">Find a job by id or filter</label>
    <input id="find" name="find" placeholder="Job id or filter" autocomplete="off" spellcheck=${false} size="18" /></form>`;
}

const shortcuts = [
  ['?', 'This list'], ['/', 'Filter, or find a job'], ['g then a letter', screens.filter((s) => s.item).map((s) => `${s.item[3]} ${s.item[0]}`).join(' · ')],
  ['j · k', 'Next and previous row'], ['Enter', 'Open the row'], ['x', 'Choose the row'], ['Esc', 'Close, clear the choice'],
];
function help() {
  ask({ title: 'Keyboard', action: null, cancel: 'Close', body: () => html`<div class="keys">${shortcuts.map(([key, what]) => html`<kbd>${key}</kbd><span>${what}</span>`)}</div>` });
}

let going = 0;
addEventListener('keydown', (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest?.('input, textarea, select, [contenteditable]')) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  if (event.key === '?') return help();
  if (event.key === '/') {
    event.preventDefault();
    return (document.querySelector('.filter input') ?? document.getElementById('find'))?.focus();
  }
  if (event.key === 'g') {
    going = Date.now();
    return undefined;
  }
  if (Date.now() - going < 1500) {
    going = 0;
    const screen = screens.find((s) => s.item?.[3] === event.key && (!s.need || may(s.need)));
    if (screen) go(screen.item[1]);
    return undefined;
  }
  if (event.key === 'j' || event.key === 'k') {
    const rows = [...document.querySelectorAll('tr[data-row]')];
    if (!rows.length) return undefined;
    const at = rows.findIndex((row) => row.classList.contains('at'));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === 'j' ? 1 : -1)))];
    rows[at]?.classList.remove('at');
    next.classList.add('at');
    next.querySelector('a:not([tabindex="-1"]), button[aria-expanded]')?.focus();
    next.scrollIntoView({ block: 'nearest' });
  } else if (event.key === 'x') {
    document.querySelector('tr.at input[type=checkbox]')?.click();
  } else if (event.key === 'Escape') {
    document.querySelector('[data-escape]')?.click();
  }
  return undefined;
});

function SignIn() {
  const [state, set] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    const { key, keep } = event.target.elements;
    set({ busy: true, error: null });
    try {
      await signIn(key.value, keep.checked);
    } catch (error) {
      set({ busy: false, error: error.status === 401 ? { message: 'That is no good key: it may be mistyped, or revoked.' } : error });
    }
  };
  return html`<main class="signin"><form class="panel stack" onSubmit=${submit}>
    <div class="brand"><img src="/ui/icon.svg" alt="" /><h1>tickr</h1></div>
    <div class="field"><label for="key">Key</label><input id="key" name="key" type="password" required autocomplete="current-password" autofocus />
      <span class="hint">Made by <code>tickr keys create NAME --scope read</code>, or a token of <code>TICKR_API_TOKENS</code>.</span></div>
    <label class="row"><input type="checkbox" name="keep" /> Keep it on this device</label>
    <${Trouble} error=${state.error} />
    <button class="primary" type="submit" disabled=${state.busy}>Sign in</button></form></main>`;
}

function Frame() {
  const stats = useQuery('/v1/stats', { on: true, every: 10000, pace: 2000 });
  const dead = useQuery('/v1/jobs/count?q=dead:open', { on: (event) => event.type === 'settled' && event.data.includes('"failed"'), every: 20000, pace: 5000 });
  const ready = useQuery('/readyz', { on: ['index_health', 'draining', 'rebuilt'], every: 10000, read: readiness });
  const index = useQuery('/v1/index', { on: ['index_health', 'rebuilt'], every: 15000, pace: 2000 });
  const runners = useQuery('/v1/runners', { on: ['draining'], every: 10000 });
  return html`<a class="skip" href="#main">To the content</a><div class="shell"><div><${Side} stats=${stats.data} dead=${dead.data} /></div>
    <div><${Bar} stats=${stats} ready=${ready} runners=${runners} index=${index} /><${Screen} /></div></div>`;
}

// A red answer is an answer.
async function readiness(path, signal) {
  const response = await fetch(path, { signal, cache: 'no-store' }).catch((cause) => {
    throw Object.assign(cause, { status: 0 });
  });
  return response.json();
}

function App() {
  const who = useStore(me);
  const [error, fail] = useState(null);
  const begin = () => {
    fail(null);
    whoAmI().catch(fail);
  };
  useEffect(begin, []);
  let shown = html`<div class="signin"><${Skeleton} /></div>`;
  if (error) shown = html`<main class="signin"><${Trouble} error=${error} retry=${begin} /></main>`;
  else if (who?.unknown) shown = html`<${SignIn} />`;
  else if (who?.scope === 'enqueue') shown = html`<main class="signin stack"><div class="note warn">This key is good for enqueueing alone. The dashboard needs one that may read.</div><button type="button" onClick=${signOut}>Use another key</button></main>`;
  else if (who) shown = html`<${Frame} />`;
  return html`${shown}<${Dialogs} /><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById('app'));
