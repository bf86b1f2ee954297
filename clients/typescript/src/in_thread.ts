import { Worker as Thread } from 'node:worker_threads';

import type { LogLevel } from './attempt_log.js';
import type { EnqueueOptions } from './client.js';
import type { AttemptJob, Context } from './context.js';
import { ApiError, type StopCause, UnavailableError } from './errors.js';
import { parse, stringify } from './json.js';
import type { NewJob } from './api.js';
import type { Handler } from './run.js';
import { type VerdictBody, Written } from './verdicts.js';

/** Time in which a handler that was told to stop may end by itself, in milliseconds. Then its thread ends. */
const STOP_MS = 300;

/** With what the thread of a handler starts. `job` and `payload` are JSON text. `noFollowUps` is as in `Reports`. */
export interface JobThreadData {
  module: string;
  job: string;
  payload: string;
  noFollowUps: string | undefined;
}

/** From the thread of a handler. `json` is JSON text, which keeps every digit. */
export type FromJobThread =
  | { type: 'progress'; percent: number | undefined; note: string | undefined }
  | { type: 'checkpoint'; json: string }
  | { type: 'log'; level: LogLevel; text: string }
  | { type: 'saved'; request: number }
  | { type: 'enqueue'; request: number; kind: string; json: string; options: EnqueueOptions }
  | { type: 'enqueueMany'; request: number; json: string; options: { idempotency_key?: string } }
  | { type: 'verdict'; verdict: VerdictBody };

/** To the thread of a handler. */
export type ToJobThread =
  | { type: 'stop'; why: StopCause }
  | { type: 'answer'; request: number; json: string }
  /** `status` is 0 when no server answered, and undefined when the error is none of a call. */
  | { type: 'problem'; request: number; status: number | undefined; json: string; message: string };

/**
 * Return a handler that runs in a thread of its own, for work that computes for long or blocks. `module` is a module
 * whose default export is the handler; a URL such as `new URL('./resize.js', import.meta.url)`.
 *
 * Such handlers hold up no other one, and an attempt that has to stop is ended a third of a second later, whatever it
 * does. A thread takes some 20 ms to start, and 5 MB or more.
 */
export function inThread<Payload = unknown, Result = unknown>(module: URL | string): Handler<Payload, Result> {
  return (payload, context) =>
    new Promise((resolve, reject) => {
      const { checkpoint, ...job } = context.job;
      const data: JobThreadData = {
        module: String(module),
        job: stringify(checkpoint === undefined ? job : { ...job, checkpoint }),
        payload: stringify(payload),
        noFollowUps: context.noFollowUps,
      };
      const thread = new Thread(new URL('./job_thread.js', import.meta.url), {
        workerData: data,
        name: context.job.kind,
      });
      let timer: NodeJS.Timeout | undefined;
      const end = (how: () => void) => {
        clearTimeout(timer);
        context.signal.removeEventListener('abort', stop);
        thread.removeAllListeners('exit');
        void thread.terminate();
        how();
      };
      const stop = () => {
        thread.postMessage({ type: 'stop', why: context.stopped?.why ?? 'cancelled' } satisfies ToJobThread);
        timer = setTimeout(() => end(() => reject(context.stopped)), STOP_MS);
      };
      thread.on('message', (message: FromJobThread) => {
        if (message.type === 'verdict') {
          end(() => {
            try {
              resolve(written(message.verdict, context));
            } catch (error) {
              reject(error as Error);
            }
          });
        }
        else void serve(thread, context, message);
      });
      thread.on('error', (error) => end(() => reject(error)));
      thread.on('exit', (code) => end(() => reject(new Error(`the thread of the handler ended with code ${code}`))));
      context.signal.addEventListener('abort', stop, { once: true });
    });
}

/**
 * Return the verdict of a thread. Its follow-up jobs become those of the attempt.
 *
 * @throws RangeError when the attempt has more than 1,000 of them then.
 */
function written(verdict: VerdictBody, context: Context): Written {
  const { follow_ups: followUps = [], ...body } = verdict;
  for (const json of followUps) context.addFollowUp(json);
  return new Written(body);
}

async function serve(
  thread: Thread,
  context: Context,
  message: Exclude<FromJobThread, { type: 'verdict' }>,
): Promise<void> {
  switch (message.type) {
    case 'progress':
      context.progress(message.percent ?? 0, message.note);
      return;
    case 'checkpoint':
      context.saveCheckpoint(parse(message.json));
      return;
    case 'log':
      context.logAt(message.level, '%s', message.text);
      return;
  }
  const answer = (value: ToJobThread) => thread.postMessage(value);
  const { request } = message;
  try {
    let result: unknown = null;
    if (message.type === 'saved') await context.checkpointSaved();
    else if (message.type === 'enqueue') {
      result = await context.client.enqueue(message.kind, parse(message.json), message.options);
    } else result = await context.client.enqueueMany(parse(message.json) as NewJob[], message.options);
    answer({ type: 'answer', request, json: stringify(result) });
  } catch (error) {
    const status = error instanceof ApiError ? error.status : error instanceof UnavailableError ? 0 : undefined;
    const { message: text } = error as Error;
    answer({ type: 'problem', request, status, json: stringify({ ...(error as object) }), message: text });
  }
}

/** Read the text of a job. */
export function readJob(text: string): AttemptJob {
  return Object.freeze(parse(text)) as AttemptJob;
}
