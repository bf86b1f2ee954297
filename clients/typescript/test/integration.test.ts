// Against a real server at TICKR_URL, with the right to declare kinds. TICKR_MYSQL_URL is its database, for the outbox.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, test } from 'node:test';

import knex from 'knex';
import mysql from 'mysql2/promise';
import {
  ApiError,
  Client,
  enqueueWithin,
  Failed,
  type JobView,
  kind,
  outboxRow,
  Rejected,
  Released,
  Snoozed,
  StoppedError,
  Worker,
} from 'tickr';

const url = process.env['TICKR_URL'];
const token = process.env['TICKR_TOKEN'];
const databaseUrl = process.env['TICKR_MYSQL_URL'];
const options = { skip: url ? false : 'TICKR_URL is not set: it names a running tickr' };
const keys = { skip: options.skip || (token ? false : 'TICKR_TOKEN is not set: it has the scope admin') };
const outbox = { skip: options.skip || (databaseUrl ? false : 'TICKR_MYSQL_URL is not set: it names its database') };

const suffix = randomBytes(4).toString('hex');
/** The queue of a kind. Each kind has its own, so that no worker gets in the way of another one. */
const queueOf = (name: string) => `node-${suffix}.${name}`;
const queue = queueOf('echo');
const client = url ? new Client({ timeoutMs: 10_000 }) : (undefined as never);
const workers: { worker: Worker; run: Promise<void> }[] = [];
const quiet = { info: () => {}, warn: () => {}, error: () => {} };

/** Declare a kind of this run. */
async function declare(name: string, fields: object = {}): Promise<string> {
  const full = `node-${suffix}.${name}`;
  const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
  const body = JSON.stringify({ queue: queueOf(name), retry: { base_ms: 1, jitter: 0 }, ...fields });
  const answer = await fetch(`${url?.split(',')[0]}/v1/kinds/${full}`, { method: 'PUT', headers, body });
  assert.equal(answer.status, 201, await answer.text());
  return full;
}

function start(worker: Worker): Worker {
  workers.push({ worker, run: worker.run({ signals: false }) });
  return worker;
}

function make(name: string, slots = 4): Worker {
  return new Worker({ name: `node-${suffix}`, queues: [queueOf(name)], slots, leaseMs: 10_000, logger: quiet });
}

async function read(path: string): Promise<string> {
  const headers: Record<string, string> = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`${url?.split(',')[0]}${path}`, { headers });
  assert.equal(answer.status, 200, path);
  return answer.text();
}

async function until(condition: () => Promise<boolean> | boolean, what: string, ms = 10_000): Promise<void> {
  const end = performance.now() + ms;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

const echo = kind<unknown, unknown>(`node-${suffix}.echo`);
const verdicts = kind<{ how: string }, string>(`node-${suffix}.verdicts`);
const waits = kind<{ ms: number }, string>(`node-${suffix}.waits`);
const blocks = kind<{ ms: number }, null>(`node-${suffix}.blocks`);

before(async () => {
  if (!url) return;
  for (const one of ['echo', 'verdicts', 'waits', 'blocks']) await declare(one);
});

after(async () => {
  for (const { worker } of workers) void worker.stop(0);
  await Promise.all(workers.map(({ run }) => run));
  client?.close();
});

test('a job goes from the client to a worker and back, with every digit', options, async () => {
  start(make('echo').handle(echo, (payload) => payload));
  const payload = { n: 9223372036854775807n, text: 'für 😀', list: [1, 2.5, null] };
  const enqueued = await client.enqueue(echo, payload, { queue, tags: [`run:${suffix}`] });
  assert.equal(enqueued.existing, false);
  const ended = await client.wait(enqueued, { timeoutMs: 10_000 });
  assert.deepEqual([ended.state, ended.result, ended.last_error], ['completed', payload, null]);
  const job = (await client.get(enqueued.id)) as JobView;
  assert.deepEqual([job.tags, job.attempts?.length, job.attempts?.[0]?.verdict], [[`run:${suffix}`], 1, 'succeeded']);
  assert.ok(job.attempts?.[0]?.runner.startsWith(`node-${suffix}`));
});

test('every option is accepted by its name', options, async () => {
  const parent = await client.enqueue(echo, 1, { queue, delay_ms: 3_600_000 });
  const job = (await client.enqueue(echo, 2, {
    queue,
    execute_at: new Date(Date.now() + 60_000),
    expires_in_ms: 120_000,
    max_attempts: 3,
    timeout_ms: 30_000,
    priority: 1,
    unique_key: `unique-${suffix}`,
    on_conflict: 'postpone',
    max_wait_ms: 90_000,
    unique_until: 'start',
    limit_key: `limit-${suffix}`,
    after: [parent.id],
    on_parent_failure: 'run',
    retry: { delays_ms: [100, 200] },
    tags: ['a'],
    trace: { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' },
  })) as { job: JobView };
  assert.deepEqual([job.job.max_attempts, job.job.priority, job.job.limit_key], [
    3,
    1,
    `limit-${suffix}`,
  ] as unknown[]);
  const ordered = await client.enqueue(
    echo,
    { to: 'ada' },
    {
      queue,
      delay_ms: 3_600_000,
      expires_at: new Date(Date.now() + 7_200_000),
      unique_fields: ['/to'],
      unique_for_ms: 1_000,
      order_key: `order-${suffix}`,
      on_failure: 'skip',
      retry: { base_ms: 10, factor: 2, cap_ms: 100, jitter: 0.1 },
    },
  );
  assert.equal((ordered.job as JobView)['order_key'], `order-${suffix}`);
});

test('a unique key gives the job that has it, or a problem with its holder', options, async () => {
  const unique = { queue, delay_ms: 3_600_000, unique_key: `order-7-${suffix}` };
  const first = await client.enqueue(echo, 1, unique);
  const second = await client.enqueue(echo, 2, unique);
  assert.deepEqual([second.id, second.existing], [first.id, true]);
  await assert.rejects(client.enqueue(echo, 3, { ...unique, on_conflict: 'reject' }), (error: unknown) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.code, error.holder], [409, 'unique_key_taken', first.id]);
    return true;
  });
  assert.equal(await client.cancel(first.id), 'cancelled');
  await assert.rejects(client.cancel(first.id), { code: 'wrong_state', current_state: 'cancelled' });
  assert.equal((await client.wait(first, { timeoutMs: 1_000 })).state, 'cancelled');
});

test('the same idempotency key enqueues once', options, async () => {
  const once = { queue, delay_ms: 3_600_000, idempotency_key: `once-${suffix}` };
  const first = await client.enqueue(echo, 'once', once);
  assert.equal((await client.enqueue(echo, 'once', once)).id, first.id);
  await assert.rejects(client.enqueue(echo, 'other', once), { code: 'idempotency_conflict' });
});

test('many jobs are enqueued in one request, all or none', options, async () => {
  const jobs = [echo.job('parent', { queue }), echo.job('child', { queue, after: [0] })];
  const receipts = await client.enqueueMany(jobs);
  const child = await client.wait(String(receipts[1]?.id), { timeoutMs: 10_000 });
  assert.equal(child.result, 'child');
  const count = async () => JSON.parse(await read(`/v1/jobs/count?q=queue:${queue}`)).count as number;
  const before = await count();
  const wrong = client.enqueueMany([echo.job('one', { queue }), { kind: `node-${suffix}.missing`, payload: 1 }]);
  await assert.rejects(wrong, { code: 'unknown_kind', status: 422 });
  assert.equal(await count(), before);
});

test('verdicts of a handler have their effect on the job', options, async () => {
  const attempts = new Map<string, number>();
  start(
    make('verdicts').handle(verdicts, ({ how }, context) => {
      const attempt = (attempts.get(how) ?? 0) + 1;
      attempts.set(how, attempt);
      if (attempt === 2) return `${context.job.attempt} ${JSON.stringify(context.job.checkpoint ?? null)}`;
      context.log('the first attempt: %s', how);
      context.saveCheckpoint({ how });
      if (how === 'failed') throw new Failed('failed', { delayMs: 1 });
      if (how === 'thrown') throw new RangeError('thrown');
      if (how === 'rejected') throw new Rejected('never');
      if (how === 'snoozed') throw new Snoozed(1, 'busy');
      throw new Released();
    }),
  );
  const results: Record<string, unknown> = {};
  for (const how of ['failed', 'thrown', 'rejected', 'snoozed', 'released']) {
    const enqueued = await client.enqueue(verdicts, { how });
    const { state, result, last_error } = await client.wait(enqueued, { timeoutMs: 10_000 });
    const { attempts } = (await client.get(enqueued.id)) as JobView;
    results[how] = [state, result, last_error, attempts?.map(({ verdict, error }) => [verdict, error])];
    const log = await read(`/v1/jobs/${enqueued.id}/attempts/1/log`);
    assert.ok(log.includes(`INFO  the first attempt: ${how}`), log);
  }
  const success = ['succeeded', null];
  assert.deepEqual(results, {
    failed: ['completed', '2 {"how":"failed"}', null, [['failed', 'failed'], success]],
    thrown: ['completed', '2 {"how":"thrown"}', null, [['failed', 'RangeError: thrown'], success]],
    rejected: ['failed', null, 'never', [['rejected', 'never']]],
    snoozed: ['completed', '1 {"how":"snoozed"}', null, [['snoozed', 'busy'], success]],
    released: ['completed', '1 {"how":"released"}', null, [['interrupted', 'its worker gave it back'], success]],
  });
});

test('jobs follow a success with their options, and exist exactly if it counts', options, async () => {
  const parent = await declare('parent');
  await declare('follower');
  const follower = kind<{ row: number }>(`node-${suffix}.follower`, { tags: [`follow:${suffix}`] });
  start(
    make('parent').handle<{ how: string }>(parent, ({ how }, context) => {
      const attempt = context.job.attempt;
      if (how === 'refused') context.followUp(`node-${suffix}.missing`);
      context.followUp(follower, { row: attempt * 10 }, { delay_ms: 3_600_000, priority: 1, max_attempts: 2 });
      context.followUp(follower, { row: attempt * 10 + 1 }, {
        execute_at: new Date(Date.now() + 3_600_000),
        expires_in_ms: 7_200_000,
        timeout_ms: 30_000,
        order_key: `follow-${suffix}`,
        on_failure: 'skip',
        limit_key: `limit-${suffix}`,
        retry: { delays_ms: [100] },
        queue: queueOf('later'),
        in_batch: true,
        tags: [`follow:${suffix}`, 'second'],
      });
      if (how === 'once' && attempt === 1) throw new Failed('once');
      return 'sent';
    }),
  );
  const followers = async () => {
    const { data } = JSON.parse(await read(`/v1/jobs?q=kind:${follower.name}`)) as { data: JobView[] };
    const whole = (await Promise.all(data.map(({ id }) => client.get(id)))) as JobView[];
    return whole.sort((one, other) => (one.payload as { row: number }).row - (other.payload as { row: number }).row);
  };
  const refused = await client.enqueue(parent, { how: 'refused' }, { max_attempts: 1 });
  const { state, last_error } = await client.wait(refused, { timeoutMs: 10_000 });
  assert.equal(state, 'failed');
  assert.match(String(last_error), /follow_ups\/0\/kind/);
  assert.deepEqual(await followers(), []);
  const once = await client.enqueue(parent, { how: 'once' });
  assert.equal((await client.wait(once, { timeoutMs: 10_000 })).state, 'completed');
  const [one, two, ...more] = await followers();
  assert.deepEqual([one?.payload, two?.payload, more.length], [{ row: 20 }, { row: 21 }, 0]);
  assert.deepEqual([one?.priority, one?.max_attempts, one?.tags], [1, 2, [`follow:${suffix}`]]);
  assert.deepEqual([two?.queue, two?.['order_key'], two?.['limit_key'], two?.['timeout_ms'], two?.tags], [
    queueOf('later'),
    `follow-${suffix}`,
    `limit-${suffix}`,
    30_000,
    [`follow:${suffix}`, 'second'],
  ] as unknown[]);
});

test('with a key of the scope work alone no job follows, and the error says so', keys, async () => {
  const parent = await declare('keys');
  await declare('keys-follower');
  const follower = kind<{ row: number }>(`node-${suffix}.keys-follower`);
  const key = async (scope: string) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${token}` };
    const body = JSON.stringify({ scope });
    const answer = await fetch(`${url?.split(',')[0]}/v1/api-keys/node-${suffix}-${scope}`, {
      method: 'PUT',
      headers,
      body,
    });
    return ((await answer.json()) as { token: string }).token;
  };
  const [work, enqueue] = await Promise.all(['work', 'enqueue'].map(key));
  const runs = async (maker?: Client) => {
    const worker = new Worker({
      name: `node-${suffix}`,
      queues: [queueOf('keys')],
      logger: quiet,
      token: work as string,
      ...(maker && { client: maker }),
    }).handle(parent, (_, context) => context.followUp(follower, { row: 1 }));
    const run = worker.run({ signals: false });
    const ended = await client.wait(await client.enqueue(parent, {}, { max_attempts: 1 }), { timeoutMs: 10_000 });
    await worker.stop(0);
    await run;
    return ended;
  };
  const refused = await runs();
  assert.equal(refused.state, 'failed');
  assert.match(String(refused.last_error), /the server refuses the verdict succeeded: follow_ups\S* .*scope/);
  const maker = new Client({ token: enqueue as string });
  assert.equal((await runs(maker)).state, 'completed');
  maker.close();
});

test('progress is shown, and a cancel reaches the handler', options, async () => {
  let why: unknown;
  start(
    make('waits').handle(waits, async ({ ms }, context) => {
      context.progress(40, 'second pass');
      try {
        await context.sleep(ms);
      } catch (error) {
        why = error instanceof StoppedError && error.why;
        throw error;
      }
      return 'waited';
    }),
  );
  const enqueued = await client.enqueue(waits, { ms: 60_000 });
  const progress = async () => ((await client.get(enqueued.id)) as JobView).progress;
  await until(async () => (await progress()) != null, 'progress is shown');
  assert.deepEqual(await progress(), { percent: 40, note: 'second pass' });
  assert.equal(await client.cancel(enqueued.id), 'stopping');
  assert.equal((await client.wait(enqueued, { timeoutMs: 10_000 })).state, 'cancelled');
  assert.equal(why, 'cancelled');
});

test('a time limit ends the attempt, and the handler is told', options, async () => {
  const { state, last_error } = await client.wait(
    await client.enqueue(waits, { ms: 60_000 }, { timeout_ms: 300, max_attempts: 1 }),
    { timeoutMs: 10_000 },
  );
  assert.deepEqual([state, last_error], ['failed', 'the time limit of the attempt is over']);
});

test('a handler that blocks the event loop for longer than the lease keeps its job', options, async () => {
  start(
    make('blocks', 1).handle(
      blocks,
      ({ ms }) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms),
    ),
  );
  const enqueued = await client.enqueue(blocks, { ms: 11_500 });
  const { state } = await client.wait(enqueued, { timeoutMs: 20_000 });
  const { attempts } = (await client.get(enqueued.id)) as JobView;
  assert.deepEqual([state, attempts?.map(({ verdict }) => verdict)], ['completed', ['succeeded']]);
});

test('a worker that stops gives its job back, and another one executes it', options, async () => {
  const name = await declare('handed');
  let runs = 0;
  const first = make('handed', 1).handle(name, (_, context) => {
    runs += 1;
    return context.sleep(60_000);
  });
  const run = first.run({ signals: false });
  const enqueued = await client.enqueue(name, {});
  await until(() => runs === 1, 'the first worker has the job');
  await first.stop(100);
  await run;
  start(make('handed', 1).handle(name, (_, context) => context.job.attempt));
  const ended = await client.wait(enqueued, { timeoutMs: 10_000 });
  assert.deepEqual([ended.state, ended.result], ['completed', 1]);
});

test('a kind that is not declared is refused at the start', options, async () => {
  const worker = make('undeclared').handle(`node-${suffix}.undeclared`, () => null);
  await assert.rejects(worker.run({ signals: false }), { name: 'ApiError', code: 'invalid_request' });
});

/** A connection to the database of the server: a socket or a port. */
function database(): mysql.ConnectionOptions {
  const parsed = new URL(String(databaseUrl));
  const socketPath = parsed.searchParams.get('socket');
  return {
    ...(socketPath ? { socketPath } : { host: parsed.hostname, port: Number(parsed.port || 3306) }),
    user: decodeURIComponent(parsed.username),
    password: decodeURIComponent(parsed.password),
    database: parsed.pathname.slice(1),
  };
}

test('a job of a transaction exists exactly if it was committed', outbox, async () => {
  const connection = await mysql.createConnection(database());
  try {
    await connection.beginTransaction();
    const undone = await enqueueWithin(connection, echo, 'undone', { queue });
    await connection.rollback();
    await connection.beginTransaction();
    const big = { n: 9223372036854775807n, text: '😀' };
    const order_key = `outbox-${suffix}`;
    const execute_at = new Date(Date.now() + 1_000);
    const ids: string[] = [];
    for (const payload of [big, 2, 3]) {
      ids.push(await enqueueWithin(connection, echo, payload, { queue, order_key, execute_at, priority: 2 }));
    }
    await connection.commit();
    await client.nudge();
    await until(async () => !(await missing(String(ids[2]))), 'the rows are moved');
    const [first] = await Promise.all(ids.map((id) => client.wait(id, { timeoutMs: 10_000 })));
    assert.deepEqual(first?.result, big);
    const jobs = (await Promise.all(ids.map((id) => client.get(id)))) as JobView[];
    const started = jobs.map((job) => String(job.started_at));
    assert.deepEqual([...started].sort(), started, 'in the order of their ids');
    assert.deepEqual([jobs[0]?.priority, jobs[0]?.execute_at], [2, execute_at.toISOString()]);
    assert.ok(await missing(undone));
  } finally {
    await connection.end();
  }
});

test('the row goes through a transaction of knex as well', outbox, async () => {
  const { socketPath, host, port, user, password, database: name } = database();
  const connection = { user, password, database: name, ...(socketPath ? { socketPath } : { host, port }) };
  const db = knex.default({ client: 'mysql2', connection: connection as never });
  try {
    const row = outboxRow(echo, 'knex', { queue });
    await db.transaction(async (transaction) => {
      await transaction.raw(row.sql, row.values as never);
    });
    await client.nudge();
    await until(async () => !(await missing(row.id)), 'the row is moved');
    assert.equal((await client.wait(row.id, { timeoutMs: 10_000 })).result, 'knex');
  } finally {
    await db.destroy();
  }
});

async function missing(id: string): Promise<boolean> {
  try {
    await client.get(id);
    return false;
  } catch (error) {
    if (error instanceof ApiError && error.code === 'not_found') return true;
    throw error;
  }
}
