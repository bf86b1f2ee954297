// A value that several parts of the page read, and that tells them when it changes.
import { useEffect, useState } from './dom.js';

export function observable(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      const wanted = typeof next === 'function' ? next(value) : next;
      if (wanted === value) return;
      value = wanted;
      for (const listener of [...listeners]) listener(value);
    },
    listen(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useObservable(of) {
  const [value, set] = useState(of.get());
  useEffect(() => {
    set(of.get());
    return of.listen(set);
  }, [of]);
  return value;
}
