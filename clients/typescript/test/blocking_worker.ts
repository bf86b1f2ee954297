// A worker for worker.test.ts whose handler blocks the event loop.

import { Worker } from 'tickr';

const worker = new Worker({ name: 'blocking', queues: ['test'], graceMs: 500 });
worker.handle<{ ms: number }>(
  'test.block',
  ({ ms }) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms),
);
await worker.run();
process.exit(0);
