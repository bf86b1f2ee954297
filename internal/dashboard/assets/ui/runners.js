// How a runner stands.

/** An answer without a lease tells no more: so long silent is odd. */
const SILENT_MS = 15000;

/**
 * `stopped`, `silent`, `draining` or `working`. A runner is silent when its last heartbeat is older than its lease:
 * remote workers and processes with a long lease beat less often than others.
 */
export const standing = (runner) => {
  if (runner.stopped_at) return 'stopped';
  if (runner.state === 'silent' || runner.heartbeat_age_ms > (runner.lease_ms ?? SILENT_MS)) return 'silent';
  return runner.draining ? 'draining' : 'working';
};

/** The living runners of an answer, without those that run one suspect of another runner. */
export const living = (runners) => (runners?.data ?? []).filter((runner) => !runner.stopped_at && !runner.parent);

/** Is there a runner among these, and is each of them drained? */
const allDrained = (runners) => runners.length > 0 && runners.every((runner) => runner.draining);

/** How many runners live, if each of them is drained; otherwise 0. A list that was cut off does not say it of all. */
export const drainedOf = (runners) => {
  const all = living(runners);
  return !runners?.more && allDrained(all) ? all.length : 0;
};

/** Do living runners serve the queue, and is each of them drained? `queue.runners` counts only those that take work. */
export const isDrained = (runners, name) =>
  allDrained(living(runners).filter((runner) => runner.queues.includes(name)));
