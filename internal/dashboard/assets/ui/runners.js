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
