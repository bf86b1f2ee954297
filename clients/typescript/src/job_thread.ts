import { parentPort, workerData } from 'node:worker_threads';

import type { NewJob, Receipt } from './api.js';
import type { CallOptions, Enqueued, EnqueueOptions, Enqueuer } from './client.js';
import { Context } from './context.js';
import { ApiError, UnavailableError } from './errors.js';
import { type FromJobThread, type JobThreadData, readJob, type ToJobThread } from './in_thread.js';
import { parse, stringify } from './json.js';
import { bodyOf, jobOf, type Kind } from './kind.js';
import { execute, type Handler } from './run.js';

if (parentPort === null) throw new Error('this module runs in a thread of a handler');
const port = parentPort;
const data = workerData as JobThreadData;

const waiting = new Map<number, { resolve: (json: string) => void; reject: (error: Error) => void }>();
let requests = 0;

function tell(message: FromJobThread): void {
  port.postMessage(message);
}

function ask(make: (request: number) => FromJobThread): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = requests++;
    waiting.set(request, { resolve, reject });
    tell(make(request));
  });
}

/** Enqueues through the client of the worker. */
const client: Enqueuer = {
  async enqueue(kind: Kind<never> | string, payload: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const { signal, idempotency_key, ...jobOptions } = options;
    signal?.throwIfAborted();
    const { kind: name, payload: content, ...rest } = bodyOf(jobOf(kind, payload, jobOptions));
    const sent: EnqueueOptions = { ...rest, ...(idempotency_key !== undefined && { idempotency_key }) };
    const json = stringify(content);
    return parse(
      await ask((request) => ({ type: 'enqueue', request, kind: String(name), json, options: sent })),
    ) as Enqueued;
  },
  async enqueueMany(
    jobs: readonly NewJob[],
    options: CallOptions & { idempotency_key?: string } = {},
  ): Promise<Receipt[]> {
    const { signal, ...sent } = options;
    signal?.throwIfAborted();
    const json = stringify(jobs.map(bodyOf));
    return parse(await ask((request) => ({ type: 'enqueueMany', request, json, options: sent }))) as Receipt[];
  },
};

const context = new Context(
  readJob(data.job),
  {
    progress: (percent, note) => tell({ type: 'progress', percent, note }),
    checkpoint: (json) => tell({ type: 'checkpoint', json }),
    noFollowUps: data.noFollowUps,
    saved: async () => void (await ask((request) => ({ type: 'saved', request }))),
    log: (level, text) => tell({ type: 'log', level, text }),
  },
  client,
);

port.on('message', (message: ToJobThread) => {
  if (message.type === 'stop') {
    context.stop(message.why);
    return;
  }
  const asked = waiting.get(message.request);
  waiting.delete(message.request);
  if (message.type === 'answer') asked?.resolve(message.json);
  else if (message.status === undefined) asked?.reject(new Error(message.message));
  else if (message.status > 0)
    asked?.reject(new ApiError(message.status, parse(message.json) as Record<string, unknown>));
  else asked?.reject(new UnavailableError(message.message));
});

const handler: Handler<never> = async (payload, given) => {
  const { default: run } = (await import(data.module)) as { default?: Handler<never> };
  if (typeof run !== 'function') throw new TypeError(`${data.module} has no function as its default export`);
  return run(payload, given);
};
tell({ type: 'verdict', verdict: await execute(handler, parse(data.payload), context) });
