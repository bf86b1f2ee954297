// Where we are: the address of the browser is the only memory of it.
import { observable, useObservable } from './observable.js';

const read = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });
export const place = observable(read());

addEventListener('popstate', () => place.set(read()));

export function go(to, { replace = false } = {}) {
  const target = new URL(to, location.href);
  if (target.href === location.href) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', target);
  const moved = target.pathname !== place.get().path;
  place.set(read());
  if (moved) scrollTo(0, 0);
}

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
  go(link.href);
});
