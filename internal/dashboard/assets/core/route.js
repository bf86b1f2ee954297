// Where we are: the address of the browser is the only memory of it.
import { observable, useObservable } from './observable.js';
import { handOn } from './range.js';

/** An address of the form `/#/jobs` is one of a screen as well. */
function leadOn() {
  if (location.hash.startsWith('#/')) history.replaceState(null, '', location.hash.slice(1));
}
leadOn();

const read = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });
export const place = observable(read());

// An entry of the history keeps where its page was scrolled to, and what a screen wants to find again.
history.scrollRestoration = 'manual';
const keep = (change) => history.replaceState({ ...history.state, ...change }, '');
let pause = 0;
addEventListener(
  'scroll',
  () => {
    clearTimeout(pause);
    pause = setTimeout(() => keep({ y: scrollY }), 100);
  },
  { passive: true },
);

/** A page is as high as its data, which come after it: scroll as soon as there is room. */
function scrollBack(y) {
  const until = Date.now() + 5000;
  const step = () => {
    const room = document.documentElement.scrollHeight - innerHeight;
    if (history.state?.y !== y || Date.now() > until) return;
    if (room < y) setTimeout(step, 50);
    else scrollTo(0, y);
  };
  if (y) step();
}

addEventListener('popstate', () => {
  clearTimeout(pause);
  leadOn();
  place.set(read());
  scrollBack(history.state?.y);
});
scrollBack(history.state?.y);

/** What `remember` kept in this entry of the history, when the user comes back to it. */
export const remembered = (name) => history.state?.[name];
export const remember = (name, value) => keep({ [name]: value });

export function go(to, { replace = false } = {}) {
  const target = new URL(to, location.href);
  if (target.href === location.href) return;
  clearTimeout(pause);
  if (!replace) keep({ y: scrollY });
  history[replace ? 'replaceState' : 'pushState'](null, '', target);
  const moved = target.pathname !== place.get().path;
  place.set(read());
  if (moved) scrollTo(0, 0);
}

/** Go to another screen, with the range of time of this one. */
export const goOn = (to) => go(handOn(new URL(to, location.href), place.get().query));

export const usePlace = () => useObservable(place);

/** Words of the query, and how to change some of them: `null` takes one away. */
export function useWords() {
  const { path, query } = usePlace();
  const change = (words, { replace = true } = {}) => {
    const next = new URLSearchParams(place.get().query);
    for (const [name, value] of Object.entries(words)) {
      if (value === null || value === undefined || value === '') next.delete(name);
      else next.set(name, value);
    }
    const text = next.toString();
    go(text ? `${path}?${text}` : path, { replace });
  };
  return [query, change];
}

// Links to screens are followed without loading the page anew.
const ELSEWHERE = /^\/(v1|docs|metrics|openapi\.json|livez|readyz|ui)(\/|$|\?)/;
document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href]');
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute('download') || link.origin !== location.origin) return;
  if (ELSEWHERE.test(link.pathname) || link.getAttribute('href').startsWith('#')) return;
  event.preventDefault();
  goOn(link.href);
});
