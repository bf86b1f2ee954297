// Choices that this browser keeps for the next visit.

import { useState } from './dom.js';

const area = () => {
  try {
    return localStorage;
  } catch {
    return null;
  }
};

function read(name, initial) {
  try {
    return JSON.parse(area()?.getItem(`tickr.${name}`) ?? 'null') ?? initial;
  } catch {
    return initial;
  }
}

/**
 * A value that is kept under this name, and how to change it: by another one, or by a function of what is kept now.
 * Another tab may have changed that meanwhile.
 */
export function useKept(name, initial) {
  const [value, set] = useState(() => read(name, initial));
  const keep = (change) => {
    const next = typeof change === 'function' ? change(read(name, value)) : change;
    set(next);
    try {
      area()?.setItem(`tickr.${name}`, JSON.stringify(next));
    } catch {
      /* it lasts as long as the page */
    }
  };
  return [value, keep];
}
