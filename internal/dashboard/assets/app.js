// The frame around all screens, and the screen for the address.

import { isOut, me, readAhead, readiness, signOut, whoAmI } from './core/api.js';
import { cls, html, useEffect, useRef, useState } from './core/dom.js';
import { known, outage } from './core/known.js';
import { useObservable } from './core/observable.js';
import { useQuery } from './core/query.js';
import { usePlace } from './core/route.js';
import { load, screens } from './core/screens.js';
import { Empty, Skeleton, Toasts, Trouble } from './ui/base.js';
import { Dialogs } from './ui/dialog.js';
import { Menu, menuOpen } from './ui/menu.js';
import { Outage } from './ui/outage.js';
import { SignIn } from './ui/sign-in.js';
import { StatusBar } from './ui/status-bar.js';
import { render } from './vendor/preact.mjs';

/** The screen for the address, once the server has said `who` we are. */
function Screen({ who }) {
  const { path } = usePlace();
  const [shown, set] = useState(null);
  const main = useRef(null);
  const led = useRef(null);
  const found = screens.find((screen) => screen.at.test(path));
  useEffect(() => {
    let gone = false;
    let timer = 0;
    if (!found) {
      set({ found });
      return undefined;
    }
    const begin = (tries) => {
      clearTimeout(timer);
      load(found, tries).then(
        (screen) => gone || set({ found, screen }),
        async () => {
          if (gone) return;
          set({ found, missing: true });
          // A part of the module may be what did not come, and the browser remembers that as well.
          const back = tries > 0 && (await fetch('/livez').catch(() => null));
          if (back?.ok) location.reload();
          else timer = setTimeout(() => begin(tries + 1), Math.min(10000, 1000 * 2 ** tries));
        },
      );
    };
    begin(0);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [found]);
  // A reader of screens hears where it is. The heading of a screen may come with its data.
  useEffect(() => {
    menuOpen.set(false);
    if (shown?.found !== found) return undefined;
    // The page that was loaded first begins at its beginning, with the way past the menu.
    const first = led.current === null || led.current === path;
    led.current = path;
    if (first) return undefined;
    const before = document.activeElement;
    return whenThere(main.current, 'h1', (heading) => {
      const now = document.activeElement;
      if (!now || now === document.body || now === before) heading.focus({ preventScroll: true });
    });
  }, [path, shown?.screen]);
  const title = found?.item?.[0] ?? found?.name ?? (found ? decoded(path.split('/').pop()) : 'Not found');
  useEffect(() => {
    document.title = `${title} · tickr`;
  }, [title]);
  const params = (found?.at.exec(path) || []).slice(1).map(decoded);
  let content = html`<${Skeleton} />`;
  if (!found)
    content = html`<${Empty} title="There is nothing here">
      The address names no screen. <a href="/">Back to the overview</a>
    </${Empty}>`;
  else if (who && shown?.found === found)
    content = shown.missing
      ? html`<${Empty} title="This screen could not be loaded">
          The server did not answer. The page tries again by itself, and keeps what you entered elsewhere.
        </${Empty}>`
      : html`<${shown.screen} key=${path} params=${params} />`;
  return html`<main class="main" id="main" ref=${main}><div class="stack">${content}</div></main>`;
}

/** A segment of an address as text. One that no text was encoded to stays as it is. */
function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** Calls `then` with the first such element within `root`, now or when it comes. Returns what stops the waiting. */
function whenThere(root, what, then) {
  const look = () => {
    const found = root?.querySelector(what);
    if (found) {
      observer.disconnect();
      then(found);
    }
  };
  const observer = new MutationObserver(look);
  if (root) observer.observe(root, { childList: true, subtree: true });
  look();
  return () => observer.disconnect();
}

/** What is around every screen. Until the server has said `who` we are it has no figures, and asks for none. */
function Frame({ who }) {
  const of = (path) => who && path;
  const stats = useQuery(of('/v1/stats'), { on: true, every: 10000, pace: 5000 });
  const deadLetters = useQuery(of('/v1/jobs/count?q=dead_letter:open'), {
    on: (event) => event.type === 'settled' && event.data.includes('"failed"'),
    every: 20000,
    pace: 10000,
  });
  const ready = useQuery(of('/readyz'), {
    on: ['index_health', 'runner_stopping', 'rebuilt', 'unreachable'],
    every: 15000,
    read: readiness,
  });
  const index = useQuery(of('/v1/index'), { on: ['index_health', 'rebuilt'], every: 20000, pace: 2000 });
  const runners = useQuery(of('/v1/runners'), { on: ['runner_stopping'], every: 15000 });
  useEffect(
    () => known.set({ stats, ready, runners, index }),
    [stats.data, stats.error, ready.data, ready.error, runners.data, runners.error, index.data, index.error],
  );
  const out = useObservable(outage);
  return html`
    <a class="skip" href="#main">Skip to content</a>
    <div class="shell">
      <div><${Menu} stats=${stats.data} deadLetters=${deadLetters.data} /></div>
      <div class=${cls(out !== null && 'stale')}>
        <${StatusBar} stats=${stats} ready=${ready} runners=${runners} index=${index} />
        <${Outage} ready=${ready} stats=${stats} />
        <${Screen} who=${who} />
      </div>
    </div>
  `;
}

/** What the frame and the first screen read at once. */
const FRAME = ['/v1/stats'];
const OVERVIEW = ['/v1/queues', '/v1/history?span=5m'];

/** Scopes that may read nothing, with what they are good for. */
const ALONE = { enqueue: 'enqueueing', work: 'a remote worker' };

function App() {
  const who = useObservable(me);
  const [error, fail] = useState(null);
  const begin = () => {
    readAhead(location.pathname === '/' ? [...FRAME, ...OVERVIEW] : FRAME);
    whoAmI().then(() => fail(null), fail);
  };
  useEffect(begin, []);
  useEffect(() => {
    const timer = error && isOut(error) ? setTimeout(begin, 5000) : 0;
    return () => clearTimeout(timer);
  }, [error]);
  let shown = html`<${Frame} who=${who} />`;
  if (error) shown = html`<main class="signin"><${Trouble} error=${error} retry=${begin} /></main>`;
  else if (who?.unknown) shown = html`<${SignIn} />`;
  else if (ALONE[who?.scope])
    shown = html`<main class="signin stack">
      <div class="note warn">
        This API key is good for ${ALONE[who.scope]} alone. The dashboard needs one that may read.
      </div>
      <button type="button" onClick=${signOut}>Use another API key</button>
    </main>`;
  return html`${shown}<${Dialogs} /><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById('app'));
