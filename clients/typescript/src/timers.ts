import { uptime } from 'node:os';

/** Longest time of one timer. Node would fire a timer of a longer time after a millisecond. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Call back after this many milliseconds, also when one timer cannot wait for so long. Returns what ends the wait. */
export function after(ms: number, call: () => void): () => void {
  let timer: NodeJS.Timeout;
  const wait = (left: number) => {
    const part = Math.min(left, LONGEST_TIMER_MS);
    timer = setTimeout(() => (left > part ? wait(left - part) : call()), part);
  };
  wait(ms);
  return () => clearTimeout(timer);
}

/** Return the milliseconds of a wait, or throw a RangeError if no wait can have them. `Infinity` waits forever. */
export function waitable(name: string, ms: number): number {
  if (typeof ms !== 'number' || !(ms >= 0)) throw new RangeError(`${name} must be 0 or more milliseconds`);
  return ms;
}

/**
 * Return the milliseconds of a clock that no operator sets. On Linux it also runs while the machine is suspended, as
 * the lease at the server does.
 */
export const leaseClock: () => number =
  process.platform === 'linux' ? () => uptime() * 1_000 : () => performance.now();
