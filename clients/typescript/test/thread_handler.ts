// A handler for worker.test.ts that runs in a thread.

import { type Context, ExactNumber, Rejected } from 'tickr';

export default async function work(payload: { how: string; big: unknown }, context: Context): Promise<unknown> {
  context.log('in a thread: %s', payload.how);
  switch (payload.how) {
    case 'block':
      for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000);
    case 'sleep':
      await context.sleep(60_000);
      return null;
    case 'rejected':
      throw new Rejected('never');
    case 'exit':
      process.exit(3);
    case 'enqueue':
      return (await context.client.enqueue('test.other', payload.big, { queue: 'other', priority: 1 })).state;
    case 'follow':
    case 'follow-rejected':
      context.followUp('test.other', { big: payload.big }, { priority: 1 });
      if (payload.how === 'follow-rejected') throw new Rejected('never');
      return null;
    case 'follow-many':
      for (let count = 0; count < 1_000; count += 1) context.followUp('test.other');
      return null;
    default:
      context.progress(50, 'half');
      context.saveCheckpoint(payload.big);
      await context.checkpointSaved();
      return [payload.big, payload.big instanceof ExactNumber, context.job.checkpoint];
  }
}
