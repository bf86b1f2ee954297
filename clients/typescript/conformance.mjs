// A worker that serves the kinds of `tickr conformance`. Build first: npm run build.

import { Client, Failed, inThread, Rejected, Released, Snoozed, Worker } from 'tickr';

const number = (name, otherwise) => Number(process.env[name] || otherwise);
const client = new Client();
const worker = new Worker({
  name: 'conformance-node',
  queues: (process.env.TICKR_QUEUES || 'conformance').split(','),
  slots: number('TICKR_SLOTS', 4),
  graceMs: number('TICKR_GRACE_MS', 5_000),
  leaseMs: number('TICKR_LEASE_MS', 10_000),
  waitMs: number('TICKR_WAIT_MS', 30_000),
  client,
});

worker
  .handle('conformance.echo', (payload) => payload)
  .handle('conformance.fail', ({ message, delay_ms: delayMs }) => {
    throw new Failed(message, { delayMs: delayMs ?? undefined });
  })
  .handle('conformance.reject', ({ message }) => {
    throw new Rejected(message);
  })
  .handle('conformance.snooze', ({ message, delay_ms: delayMs }) => {
    throw new Snoozed(delayMs, message);
  })
  .handle('conformance.release', () => {
    throw new Released();
  })
  .handle('conformance.throw', ({ message }) => {
    throw new TypeError(message);
  })
  .handle('conformance.sleep', async ({ ms }, context) => {
    await context.sleep(ms);
    return { slept: true };
  })
  .handle('conformance.block', inThread(new URL('./conformance_block.mjs', import.meta.url)))
  .handle('conformance.progress', async ({ percent, note, checkpoint, ms }, context) => {
    context.progress(percent, note);
    context.saveCheckpoint(checkpoint);
    await context.sleep(ms);
    return { began_with: context.job.checkpoint ?? null };
  })
  .handle('conformance.log', ({ lines }, context) => {
    // Not through a format: a line may have a percent sign.
    for (const line of lines) context.log('%s', line);
    return null;
  })
  .handle('conformance.big', ({ bytes }) => 'x'.repeat(bytes))
  .handle('conformance.enqueue', async ({ kind, payload, queue }, context) => {
    const { id } = await context.client.enqueue(kind, payload, { queue });
    return { id };
  });

await worker.run();
process.exit(0);
