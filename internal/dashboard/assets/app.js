// The frame around all screens, and the screen for the address.

import { me, signOut, whoAmI } from './core/api.js';
import { html, useEffect, useRef, useState } from './core/dom.js';
import { useObservable } from './core/observable.js';
import { useQuery } from './core/query.js';
import { usePlace } from './core/route.js';
import { screens } from './core/screens.js';
import { Empty, Skeleton, Toasts, Trouble } from './ui/base.js';
import { Dialogs } from './ui/dialog.js';
import { Menu, menuOpen } from './ui/menu.js';
import { SignIn } from './ui/sign-in.js';
import { StatusBar } from './ui/status-bar.js';
import { render } from './vendor/preact.mjs';

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
    found.load().then(
      (module) => gone || set({ found, screen: module.default }),
      (error) => gone || set({ found, error }),
    );
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
  if (!found)
    content = html`<${Empty} title="There is nothing here">
      The address names no screen. <a href="/">Back to the overview</a>
    </${Empty}>`;
  else if (shown?.found === found)
    content = shown.error
      ? html`<${Trouble} error=${shown.error} retry=${() => location.reload()} />`
      : html`<${shown.screen} key=${path} params=${params} />`;
  return html`<main class="main" id="main" ref=${main}><div class="stack">${content}</div></main>`;
}

function Frame() {
  const stats = useQuery('/v1/stats', { on: true, every: 10000, pace: 2000 });
  const deadLetters = useQuery('/v1/jobs/count?q=dead_letter:open', {
    on: (event) => event.type === 'settled' && event.data.includes('"failed"'),
    every: 20000,
    pace: 5000,
  });
  const ready = useQuery('/readyz', {
    on: ['index_health', 'runner_stopping', 'rebuilt'],
    every: 10000,
    read: readiness,
  });
  const index = useQuery('/v1/index', { on: ['index_health', 'rebuilt'], every: 15000, pace: 2000 });
  const runners = useQuery('/v1/runners', { on: ['runner_stopping'], every: 10000 });
  return html`
    <a class="skip" href="#main">To the content</a>
    <div class="shell">
      <div><${Menu} stats=${stats.data} deadLetters=${deadLetters.data} /></div>
      <div><${StatusBar} stats=${stats} ready=${ready} runners=${runners} index=${index} /><${Screen} /></div>
    </div>
  `;
}

// `/readyz` answers 503 with the same body.
async function readiness(path, signal) {
  const response = await fetch(path, { signal, cache: 'no-store' }).catch((cause) => {
    throw Object.assign(cause, { status: 0 });
  });
  return response.json();
}

function App() {
  const who = useObservable(me);
  const [error, fail] = useState(null);
  const begin = () => {
    fail(null);
    whoAmI().catch(fail);
  };
  useEffect(begin, []);
  let shown = html`<div class="signin"><${Skeleton} /></div>`;
  if (error) shown = html`<main class="signin"><${Trouble} error=${error} retry=${begin} /></main>`;
  else if (who?.unknown) shown = html`<${SignIn} />`;
  else if (who?.scope === 'enqueue')
    shown = html`<main class="signin stack">
      <div class="note warn">This API key is good for enqueueing alone. The dashboard needs one that may read.</div>
      <button type="button" onClick=${signOut}>Use another API key</button>
    </main>`;
  else if (who) shown = html`<${Frame} />`;
  return html`${shown}<${Dialogs} /><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById('app'));
