// A value that several parts of the page look at.
import { useState, useEffect } from './dom.js';

export function store(value) {
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

export function useStore(of) {
  const [value, set] = useState(of.get());
  useEffect(() => {
    set(of.get());
    return of.listen(set);
  }, [of]);
  return value;
}
