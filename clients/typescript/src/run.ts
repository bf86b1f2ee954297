import type { Context } from './context.js';
import { StoppedError } from './errors.js';
import { Verdict, type VerdictBody, verdictOfError, verdictOfResult } from './verdicts.js';

/**
 * Executes the jobs of a kind. What it returns is the result of the job, at most 256 KiB of JSON. An error that it
 * throws fails the attempt. It throws or returns {@link Failed}, {@link Rejected}, {@link Snoozed} or {@link
 * Released} for these verdicts.
 */
export type Handler<Payload = unknown, Result = unknown> = (
  payload: Payload,
  context: Context,
) => Promise<Result | Verdict> | Result | Verdict;

/** Execute a handler, and return its verdict. Never fails. */
export async function execute(handler: Handler<never>, payload: unknown, context: Context): Promise<VerdictBody> {
  try {
    const returned = await handler(payload as never, context);
    const { stopped } = context;
    // docs/WORKERS.md: an attempt that was told to stop ends as failed. Its result came too late.
    const isTooLate = stopped?.why === 'cancelled' || stopped?.why === 'deadline';
    if (stopped && isTooLate && !(returned instanceof Verdict)) return verdictOfError(stopped, stopped);
    const body = verdictOfResult(returned);
    if (body.verdict !== 'succeeded' || context.followUps.length === 0) return body;
    return { ...body, follow_ups: [...context.followUps] };
  } catch (error) {
    try {
      if (
        error instanceof Error &&
        !(error instanceof Verdict) &&
        !(error instanceof StoppedError) &&
        !context.stopped
      ) {
        context.logAt('error', error.stack ?? String(error));
      }
      return verdictOfError(error, context.stopped);
    } catch {
      // What a program throws is its own code. Without a verdict the slot of the attempt would never be free again.
      return { verdict: 'failed', error: 'the handler threw an error that cannot be read' };
    }
  }
}
