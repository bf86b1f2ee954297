import assert from 'node:assert/strict';
import { test } from 'node:test';

import { type Context, Failed, kind, Snoozed } from 'tickr';
import { FakeClient, runHandler } from 'tickr/testing';

const resize = kind<{ path: string; width: number }, { file: string }>('resize');
const notify = kind<{ file: string }>('notify', { queue: 'mail' });

async function resizePicture({ path, width }: { path: string; width: number }, context: Context) {
  if (!path.endsWith('.png')) return new Failed(`${path} is no PNG`);
  context.progress(50, 'scaling');
  context.saveCheckpoint({ width });
  context.log('scaled %s', path);
  await context.client.enqueue(notify, { file: path }, { tags: [`width:${width}`] });
  return { file: `${path}-${width}` };
}

test('a handler runs without a server', async () => {
  const outcome = await runHandler(resizePicture, { path: 'cat.png', width: 64 }, { job: { attempt: 2 } });
  assert.equal(outcome.verdict, 'succeeded');
  assert.deepEqual(outcome.result, { file: 'cat.png-64' });
  assert.deepEqual(outcome.progress, [{ percent: 50, note: 'scaling' }]);
  assert.deepEqual(outcome.checkpoint, { width: 64 });
  assert.match(outcome.log, /INFO {2}scaled cat\.png\n$/);
  outcome.enqueued.assertEnqueued(notify, { file: 'cat.png' }, { queue: 'mail', tags: ['width:64'] });
  const failed = await runHandler(resizePicture, { path: 'cat.gif', width: 64 });
  assert.deepEqual([failed.verdict, failed.error], ['failed', 'cat.gif is no PNG']);
});

test('a checkpoint of more than 64 levels is an error of the handler', async () => {
  const nested = (levels: number) => JSON.parse(`${'['.repeat(levels)}"\\"]{{["${']'.repeat(levels)}`);
  const save = (levels: number) => runHandler((_, context) => context.saveCheckpoint(nested(levels)), null);
  const deepest = await save(64);
  assert.deepEqual([deepest.verdict, deepest.checkpoint], ['succeeded', nested(64)]);
  const { verdict, error } = await save(65);
  const why = 'the checkpoint has 65 levels, and at most 64 are possible';
  assert.deepEqual([verdict, error], ['failed', `RangeError: ${why}`]);
});

test('a sleep of any length waits, and an impossible one is an error', async () => {
  const stop = new AbortController();
  const run = runHandler(
    async (_: null, context) => {
      for (const ms of [NaN, -1]) await assert.rejects(context.sleep(ms), RangeError);
      let ended = 0;
      const sleeps = [2 ** 31, 1e12, Infinity].map((ms) => context.sleep(ms).finally(() => (ended += 1)));
      // A timer that cannot wait for so long fires after a millisecond.
      await context.sleep(200);
      assert.equal(ended, 0);
      stop.abort();
      await Promise.all(sleeps);
    },
    null,
    { cancel: stop.signal },
  );
  const { log, verdict, error } = await run;
  assert.deepEqual([verdict, error, log], ['failed', 'the server asked the attempt to stop', '']);
});

test('an outcome has the jobs that follow a success, and none of another verdict', async () => {
  const once = kind<{ file: string }>('once', { queue: 'mail', unique_key: 'once' });
  const run = (isGood: boolean) =>
    runHandler((_: null, context) => {
      context.followUp(notify, { file: 'cat.png' }, { delay_ms: 5, in_batch: true });
      assert.throws(() => context.followUp(once, { file: 'a' }), /unique_key is no option of a job that follows/);
      const loop: unknown[] = [];
      loop.push(loop);
      assert.throws(() => context.followUp('plain', loop), TypeError);
      if (!isGood) throw new Failed('no');
    }, null);
  const expected = { kind: 'notify', payload: { file: 'cat.png' }, queue: 'mail', delay_ms: 5, in_batch: true };
  assert.deepEqual((await run(true)).followUps, [expected]);
  assert.deepEqual((await run(false)).followUps, []);
});

test('at most a thousand jobs follow one', async () => {
  const follow = (count: number) =>
    runHandler((_: null, context) => {
      for (let row = 0; row < count; row += 1) context.followUp('mail', { row });
    }, null);
  const most = await follow(1_000);
  assert.deepEqual([most.verdict, most.followUps.length, most.followUps[999]?.payload], [
    'succeeded',
    1_000,
    { row: 999 },
  ]);
  const { verdict, error, followUps } = await follow(1_001);
  const why = 'RangeError: at most 1,000 jobs follow one: let one of them enqueue the rest';
  assert.deepEqual([verdict, error, followUps], ['failed', why, []]);
});

test('a handler sees its cancel and its checkpoint', async () => {
  const stop = new AbortController();
  const run = runHandler(
    async (_: null, context) => {
      assert.equal(context.job.checkpoint, 7);
      stop.abort();
      await context.sleep(60_000);
    },
    null,
    { cancel: stop.signal, job: { checkpoint: 7 } },
  );
  assert.equal((await run).verdict, 'failed');
  const snoozed = await runHandler(() => new Snoozed(5_000, 'busy'), {});
  assert.deepEqual([snoozed.verdict, snoozed.delayMs, snoozed.error], ['snoozed', 5_000, 'busy']);
});

test('a fake client records what was enqueued, and its assertions fail as they should', async () => {
  const client = new FakeClient();
  const at = new Date('2026-12-01T08:00:00Z');
  await client.enqueue(resize, { path: 'cat.png', width: 64 }, { execute_at: at, idempotency_key: 'x' });
  await client.enqueueMany([notify.job({ file: 'a' }), { kind: 'plain', payload: { deep: { a: 1, b: 2 } } }]);
  assert.equal(client.jobs.length, 3);
  client.assertEnqueued(resize);
  client.assertEnqueued(resize, { width: 64 }, { execute_at: at });
  client.assertEnqueued<{ deep: object }>('plain', { deep: { b: 2 } });
  client.assertNotEnqueued(resize, { width: 65 });
  assert.throws(() => client.assertEnqueued(resize, { width: 65 }), /no such job was enqueued/);
  assert.throws(() => client.assertEnqueued(notify, {}, { queue: 'other' }), /no such job was enqueued/);
  assert.throws(() => client.assertNotEnqueued(resize), /a job was enqueued/);
});
