import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import {
  Client,
  Failed,
  inThread,
  Rejected,
  Released,
  Snoozed,
  StoppedError,
  Worker,
  type WorkerOptions,
} from 'tickr';

import { FakeTickr, problem } from './fake_tickr.js';

const KIND = 'test.work';
let server: FakeTickr;
let workers: { worker: Worker; run: Promise<void> }[];
let notes: string[];
let children: ChildProcess[];

beforeEach(async () => {
  server = await new FakeTickr().start();
  workers = [];
  notes = [];
  children = [];
});

afterEach(async () => {
  for (const child of children) child.kill('SIGKILL');
  for (const { worker } of workers) void worker.stop(0);
  await Promise.all(workers.map(({ run }) => run));
  await server.stop();
});

function make(options: WorkerOptions = {}): Worker {
  const note = (text: string) => void notes.push(text);
  const logger = { info: note, warn: note, error: note };
  return new Worker({ url: server.url, name: 'test', slots: 4, waitMs: 1_000, logger, ...options });
}

function start(worker: Worker): Worker {
  workers.push({ worker, run: worker.run({ signals: false }) });
  return worker;
}

/** Start a program that is a worker of the server. */
function program(path: string): ChildProcess {
  const env = {
    ...process.env,
    TICKR_URL: server.url,
    TICKR_TOKEN: '',
    TICKR_QUEUES: 'test',
    TICKR_GRACE_MS: '60000',
  };
  const child = spawn(process.execPath, [path], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  return child;
}

test('every way to end a handler becomes its verdict', async () => {
  const ends: Record<string, () => unknown> = {
    value: () => ({ big: 9007199254740993n }),
    nothing: () => undefined,
    failed: () => {
      throw new Failed('later', { delayMs: 1.5 });
    },
    rejected: () => new Rejected('never'),
    snoozed: () => new Snoozed(2_000, 'busy'),
    released: () => new Released(),
    thrown: () => {
      throw new RangeError('x'.repeat(3_000));
    },
    text: () => Promise.reject('only a text'),
    large: () => 'x'.repeat(300_000),
    loop: () => {
      const loop: unknown[] = [];
      loop.push(loop);
      return loop;
    },
    surrogate: () => {
      throw new Failed('half \ud83d of a pair');
    },
  };
  start(make().handle<{ how: string }>(KIND, ({ how }) => ends[how]?.()));
  const verdicts: Record<string, any> = {};
  for (const how of Object.keys(ends)) {
    const { token, log, ...rest } = await server.verdictOf(server.add({ kind: KIND, payload: { how } }));
    verdicts[how] = rest;
    if (how === 'thrown') assert.match(log, /^\d\d:\d\d:\d\d\.\d{3} ERROR RangeError: x+/);
  }
  const { thrown, ...others } = verdicts;
  assert.equal(thrown.verdict, 'failed');
  assert.equal(thrown.error, `RangeError: ${'x'.repeat(1_988)}`);
  assert.deepEqual(others, {
    // The text of the body has all digits; JSON.parse of the server of this test rounds them.
    value: { verdict: 'succeeded', result: { big: 9007199254740992 } },
    nothing: { verdict: 'succeeded', result: null },
    failed: { verdict: 'failed', error: 'later', delay_ms: 2 },
    rejected: { verdict: 'rejected', error: 'never' },
    snoozed: { verdict: 'snoozed', error: 'busy', delay_ms: 2_000 },
    released: { verdict: 'released', error: 'its worker gave it back' },
    text: { verdict: 'failed', error: 'only a text' },
    large: { verdict: 'failed', error: 'the result has 300002 bytes, and at most 262144 are possible' },
    loop: {
      verdict: 'failed',
      error:
        'the result cannot be written as JSON: TypeError: a value that contains itself cannot be written as JSON',
    },
    surrogate: { verdict: 'failed', error: 'half \ufffd of a pair' },
  });
  assert.ok(server.of('finish').some(({ text }) => text.includes('9007199254740993')));
});

test('jobs follow a success and no other verdict, and only they show the API key of the client', async () => {
  const client = new Client({ url: server.url, token: 'may-enqueue' });
  const end: Record<string, () => unknown> = {
    good: () => 'sent',
    plain: () => 'sent',
    failed: () => new Failed('no address'),
    thrown: () => Promise.reject(new Error('no address')),
    snoozed: () => new Snoozed(1, 'busy'),
  };
  const worker = make({ client, token: 'may-work' }).handle<{ how: string }>(KIND, ({ how }, context) => {
    const options = { execute_at: new Date(0), tags: ['a'], in_batch: true, queue: undefined };
    if (how !== 'plain') context.followUp('mail', { to: 9007199254740993n }, options);
    if (how !== 'plain') context.followUp('mail');
    assert.throws(() => context.followUp('mail', {}, { unique_key: 'ada' } as object), /unique_key is no option/);
    return end[how]?.();
  });
  start(worker);
  const keys = new Map<string, unknown>();
  for (const how of Object.keys(end)) {
    const token = server.add({ kind: KIND, payload: { how } });
    const verdict = await server.verdictOf(token);
    assert.equal('follow_ups' in verdict, how === 'good', how);
    const call = server.of('finish').find(({ text }) => text.includes(token));
    assert.equal(call?.headers.authorization, 'Bearer may-work');
    keys.set(how, call?.headers['tickr-enqueue-authorization']);
  }
  const [good] = server.of('finish');
  assert.ok(
    good?.text.endsWith(
      ',"result":"sent","follow_ups":[{"kind":"mail","payload":{"to":9007199254740993},' +
        '"execute_at":"1970-01-01T00:00:00.000Z","tags":["a"],"in_batch":true},{"kind":"mail","payload":{}}]}]}',
    ),
    good?.text,
  );
  assert.deepEqual(Object.fromEntries(keys), {
    good: 'Bearer may-enqueue',
    plain: undefined,
    failed: undefined,
    thrown: undefined,
    snoozed: undefined,
  });
});

test('jobs follow the success of a handler in a thread, behind those of its caller', async () => {
  const thread = inThread(new URL('./thread_handler.js', import.meta.url));
  start(
    make().handle(KIND, (payload, context) => {
      context.followUp('first', { row: 1 });
      return thread(payload, context);
    }),
  );
  const [both, bad, many] = await Promise.all(
    ['follow', 'follow-rejected', 'follow-many'].map((how) =>
      server.verdictOf(server.add({ kind: KIND, payload: { how, big: 7 } })),
    ),
  );
  assert.deepEqual(both.follow_ups, [
    { kind: 'first', payload: { row: 1 } },
    { kind: 'test.other', payload: { big: 7 }, priority: 1 },
  ]);
  assert.deepEqual([bad.verdict, bad.follow_ups], ['rejected', undefined]);
  const most = 'RangeError: at most 1,000 jobs follow one: let one of them enqueue the rest';
  assert.deepEqual([many.verdict, many.error, many.follow_ups], ['failed', most, undefined]);
});

test('the API key of a client of another server is not sent to that of the worker', async () => {
  const client = new Client({ url: 'http://elsewhere.invalid', token: 'of-another-server' });
  const follow = inThread(new URL('./thread_handler.js', import.meta.url));
  start(make({ client }).handle(KIND, (_, context) => context.followUp('mail')).handle('test.thread', follow));
  for (const kind of [KIND, 'test.thread']) {
    const { verdict, error, follow_ups } = await server.verdictOf(server.add({ kind, payload: { how: 'follow' } }));
    assert.deepEqual([verdict, follow_ups], ['failed', undefined]);
    assert.match(error, /its client has other addresses \(http:\/\/elsewhere\.invalid\)/);
  }
  assert.ok(server.of('finish').every(({ headers }) => headers['tickr-enqueue-authorization'] === undefined));
});

test('a client with more addresses than the worker, written otherwise, stands for its jobs', async () => {
  const url = `http://elsewhere.invalid/x/, ${server.url}/`;
  start(make({ client: new Client({ url, token: 'k' }) }).handle(KIND, (_, context) => context.followUp('mail')));
  const token = server.add({ kind: KIND });
  assert.equal((await server.verdictOf(token)).follow_ups.length, 1);
});

test('a success whose jobs are refused fails its attempt, and the error says why', async () => {
  const wrong = { field: 'follow_ups/0/kind', detail: 'no kind is called so' };
  server.fate = ({ what, body }) => {
    if (what !== 'finish' || !body.verdicts.some((one: object) => 'follow_ups' in one)) return undefined;
    const refused = { result: 'refused', errors: [wrong] };
    const results = body.verdicts.map(({ token }: { token: string }) => ({ token, ...refused }));
    return { status: 200, body: { results } };
  };
  start(
    make().handle(KIND, (_, context) => {
      context.log('a line');
      context.followUp('no-kind');
      return 'sent';
    }),
  );
  const { verdict, error, follow_ups, result } = await server.verdictOf(server.add({ kind: KIND }));
  assert.deepEqual([verdict, follow_ups, result], ['failed', undefined, undefined]);
  assert.equal(error, 'the server refuses the verdict succeeded: follow_ups/0/kind no kind is called so');
});

test('the jobs that follow count for the size of a request', async () => {
  let fails = 3;
  let runs = 0;
  server.fate = ({ what }) => {
    if (what !== 'finish' || (runs === 5 && fails-- <= 0)) return undefined;
    return { status: 503 };
  };
  start(
    make({ slots: 5 }).handle(KIND, (_, context) => {
      runs += 1;
      for (let row = 0; row < 100; row += 1) context.followUp('mail', { text: 'ü'.repeat(500) });
    }),
  );
  const tokens = Array.from({ length: 5 }, () => server.add({ kind: KIND }));
  for (const token of tokens) assert.equal((await server.verdictOf(token)).follow_ups.length, 100);
  for (const { text } of server.of('finish')) assert.ok(Buffer.byteLength(text) < 205 * 1_024);
});

test('a payload reaches the handler with every digit, and the fields of the attempt with it', async () => {
  let seen: unknown[] = [];
  start(
    make().handle(KIND, (payload, context) => {
      seen = [payload, context.job.checkpoint, context.job.attempt, Object.keys(context.job).includes('token')];
    }),
  );
  await server.verdictOf(server.add({ kind: KIND, raw: '{"n":18446744073709551615}', checkpoint: { row: 7 } }));
  assert.deepEqual(seen, [{ n: 18446744073709551615n }, { row: 7 }, 1, false]);
});

test('a fetch whose answer is lost is sent again with the same body, and no job is executed twice', async () => {
  let lost = 0;
  server.fate = ({ what }) => (what === 'fetch' && lost++ < 2 ? 'lost' : undefined);
  let runs = 0;
  const token = server.add({ kind: KIND });
  start(make().handle(KIND, () => void (runs += 1)));
  await server.verdictOf(token);
  const [first, second, third] = server.of('fetch');
  assert.equal(second?.text, first?.text);
  assert.equal(third?.text, first?.text);
  assert.equal(first?.body.slots, 4);
  // A server that hands a token out again, beside it and after its end.
  server.add({ kind: KIND, token });
  server.add({ kind: KIND, token });
  await server.verdictOf(server.add({ kind: KIND }));
  assert.equal(runs, 2);
});

test('an answer that was long on its way starts no job, and is logged', async () => {
  server.beatMs = 2_000;
  server.longestWaitMs = 10_000;
  server.tookMs = 0;
  start(make({ waitMs: 10_000 }).handle(KIND, () => undefined));
  await server.until(() => server.of('fetch').length === 1, 'a request for jobs');
  await new Promise((resolve) => setTimeout(resolve, 1_600));
  const late = server.add({ kind: KIND });
  await server.until(() => server.of('fetch').length === 2, 'the next request');
  await server.verdictOf(server.add({ kind: KIND }));
  assert.deepEqual(server.of('fetch')[1]?.body.holding, []);
  assert.ok(!server.verdicts.has(late));
  assert.ok(notes.includes('tickr: an answer with 1 jobs came late and counts as lost'), notes.join('\n'));
});

test('every token stays in holding until its verdict is answered', async () => {
  let lost = 0;
  server.fate = ({ what }) => (what === 'finish' && lost++ < 2 ? 'lost' : undefined);
  const gates = new Map<string, () => void>();
  const running = () => gates.size;
  start(
    make({ slots: 3 }).handle<{ name: string }>(
      KIND,
      ({ name }) => new Promise<void>((open) => gates.set(name, open)),
    ),
  );
  const one = server.add({ kind: KIND, payload: { name: 'one' } });
  await server.until(() => running() === 1, 'the first job runs');
  const two = server.add({ kind: KIND, payload: { name: 'two' } });
  await server.until(() => running() === 2, 'the second job runs');
  gates.get('one')?.();
  await server.until(() => lost === 3, 'the verdict is answered');
  const fetches = server.of('fetch');
  assert.deepEqual(fetches[1]?.body.holding, [one]);
  assert.equal(fetches[1]?.body.slots, 2);
  const finishes = server.of('finish');
  assert.equal(finishes.length, 3);
  assert.equal(new Set(finishes.map(({ text }) => text)).size, 1);
  const answered = finishes[2]?.at ?? 0;
  for (const beat of server.of('beat').filter(({ at }) => at > (finishes[0]?.at ?? 0) && at < answered)) {
    assert.ok(
      beat.body.holding.some(({ token }: { token: string }) => token === one),
      'a beat lists what is unanswered',
    );
  }
  await server.until(
    () =>
      server
        .of('beat')
        .some(
          ({ at, body }) => at > answered && JSON.stringify(body) === JSON.stringify({ holding: [{ token: two }] }),
        ),
    'a beat without the settled attempt',
  );
  gates.get('two')?.();
  await server.verdictOf(two);
});

test('a handler that blocks the event loop stops no heartbeat', async () => {
  // In a process of its own: the server of this test needs the event loop of this one.
  const child = program(fileURLToPath(new URL('./blocking_worker.js', import.meta.url)));
  const token = server.add({ kind: 'test.block', payload: { ms: 2_000 } });
  assert.equal((await server.verdictOf(token)).verdict, 'succeeded');
  const beats = server
    .of('beat')
    .filter(({ body }) => body.holding.some((held: { token: string }) => held.token === token));
  // Every 100 ms. Other programs may slow this one down.
  assert.ok(beats.length >= 10, `${beats.length} heartbeats in 2 s`);
  const ended = once(child, 'exit');
  child.kill('SIGTERM');
  assert.deepEqual(await ended, [0, null]);
});

test('a handler in a thread does what other handlers do', async () => {
  start(make().handle(KIND, inThread(new URL('./thread_handler.js', import.meta.url))));
  server.beatMs = 60_000;
  const end = (how: string, raw = 'null') =>
    server.verdictOf(server.add({ kind: KIND, raw: `{"how":"${how}","big":${raw}}`, checkpoint: 7 }));
  const long = '0.10000000000000000001';
  const [reports, rejected, exit, enqueue] = await Promise.all([
    end('reports', long),
    end('rejected'),
    end('exit'),
    end('enqueue', long),
  ]);
  assert.deepEqual([reports.verdict, reports.result.slice(1)], ['succeeded', [true, 7]]);
  assert.match(reports.log, /INFO {2}in a thread: reports\n$/);
  assert.ok(server.of('finish').some(({ text }) => text.includes(`[${long},true,7]`)));
  const beat = server.of('beat').find(({ text }) => text.includes(`"checkpoint":${long}`));
  assert.ok(beat?.text.includes('"percent":50,"note":"half"'));
  assert.deepEqual([rejected.verdict, rejected.error], ['rejected', 'never']);
  assert.deepEqual([exit.verdict, exit.error], ['failed', 'Error: the thread of the handler ended with code 3']);
  assert.equal(enqueue.result, 'waiting');
  const { text } = server.of('jobs')[0] ?? { text: '' };
  assert.equal(
    text,
    `{"queue":"other","priority":1,"kind":"test.other","payload":${long}}`.replace(
      /^\{(.*),("kind".*)\}$/,
      '{$2,$1}',
    ),
  );
});

test('a handler in a thread that blocks holds up no other one, and a cancel ends it', async () => {
  start(
    make()
      .handle(KIND, inThread(new URL('./thread_handler.js', import.meta.url)))
      .handle('test.other', () => 'done'),
  );
  const tokens = ['block', 'sleep'].map((how) => server.add({ kind: KIND, payload: { how } }));
  await server.until(
    () => tokens.every((token) => server.of('beat').some(({ text }) => text.includes(token))),
    'both run',
  );
  assert.equal((await server.verdictOf(server.add({ kind: 'test.other' }))).result, 'done');
  for (const token of tokens) server.cancel.add(token);
  for (const token of tokens) {
    const { verdict, error, log } = await server.verdictOf(token);
    assert.deepEqual([verdict, error], ['failed', 'the server asked the attempt to stop']);
    assert.match(log, /in a thread/);
  }
});

test('a second signal ends the process at once', async () => {
  const child = program(fileURLToPath(new URL('../../conformance.mjs', import.meta.url)));
  const ended = once(child, 'exit');
  let output = '';
  child.stdout?.on('data', (text) => (output += text));
  const token = server.add({ kind: 'conformance.sleep', payload: { ms: 60_000 } });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(token)), 'the attempt runs');
  child.kill('SIGTERM');
  await server.until(() => output.includes('the worker stops'), 'the worker got the signal');
  child.kill('SIGINT');
  assert.deepEqual(await ended, [130, null]);
});

test('while the event loop is blocked, the worker gives up the request that waits for jobs', async () => {
  server.longestWaitMs = 30_000;
  const child = program(fileURLToPath(new URL('./blocking_worker.js', import.meta.url)));
  const token = server.add({ kind: 'test.block', payload: { ms: 4_000 } });
  // Of all slots but one. Others get what it would have got.
  const waiting = () => server.of('fetch').find(({ body }) => body.holding.includes(token));
  await server.until(() => waiting()?.isGivenUp === true, 'the request is given up');
  assert.ok(!server.verdicts.has(token), 'the handler still blocks');
  const fetches = server.of('fetch').length;
  const late = server.add({ kind: 'test.block', payload: { ms: 1 } });
  await server.verdictOf(late);
  assert.ok(server.verdicts.has(token), 'the late job started after the block');
  assert.ok(server.of('fetch').length > fetches);
  child.kill('SIGKILL');
});

test('a cancel ends the wait of a handler, and its attempt fails', async () => {
  const causes: unknown[] = [];
  start(
    make().handle(KIND, async (_, context) => {
      try {
        await context.sleep(60_000);
      } catch (error) {
        causes.push(error instanceof StoppedError && error.why);
        throw error;
      }
    }),
  );
  const token = server.add({ kind: KIND });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(token)), 'the attempt runs');
  server.cancel.add(token);
  const { verdict, error } = await server.verdictOf(token);
  assert.deepEqual([verdict, error, causes], ['failed', 'the server asked the attempt to stop', ['cancelled']]);
});

test('the time limit of an attempt ends it', async () => {
  start(make().handle(KIND, (_, context) => context.sleep(60_000)));
  const { verdict, error } = await server.verdictOf(server.add({ kind: KIND, timeout_ms: 200 }));
  assert.deepEqual([verdict, error], ['failed', 'the time limit of the attempt is over']);
});

test('a lost attempt is stopped, gets no verdict, and frees its slot', async () => {
  let why: unknown;
  start(
    make({ slots: 1 }).handle<{ long: boolean }>(KIND, async ({ long }, { signal }) => {
      if (!long) return;
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
      why = signal.reason.why;
    }),
  );
  const token = server.add({ kind: KIND, payload: { long: true } });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(token)), 'the attempt runs');
  server.lost.add(token);
  await server.verdictOf(server.add({ kind: KIND, payload: { long: false } }));
  assert.equal(why, 'lost');
  assert.ok(!server.verdicts.has(token));
  assert.ok(server.of('fetch').every(({ body }) => body.slots === 1));
});

for (const [how, fate] of [
  ['401', problem(401, 'unauthorized')],
  ['no answer', 'refused'],
  ['the JSON of a proxy', { status: 200, body: {} }],
] as const) {
  test(`while heartbeats get ${how}, handlers are stopped before their leases end`, async () => {
    server.leaseMs = 4_000;
    const stops: { at: number; why: unknown }[] = [];
    let giveUp = () => {};
    const told = new Promise<void>((resolve) => (giveUp = resolve));
    start(
      make()
        .handle<{ completes: boolean }>(KIND, async ({ completes }, { signal }) => {
          await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
          stops.push({ at: performance.now(), why: signal.reason.why });
          if (completes) return 'done';
          await told;
          throw signal.reason;
        })
        .handle('test.other', inThread(new URL('./thread_handler.js', import.meta.url))),
    );
    const givesUp = server.add({ kind: KIND, payload: { completes: false } });
    const completes = server.add({ kind: KIND, payload: { completes: true } });
    const inside = server.add({ kind: 'test.other', payload: { how: 'sleep' } });
    const lists = (token: string) => server.of('beat').some(({ text }) => text.includes(token));
    await server.until(() => [givesUp, completes, inside].every(lists), 'all attempts run');
    server.fate = ({ what }) => (what === 'beat' ? fate : undefined);
    // The server answered every heartbeat until here.
    const last = server.of('beat').at(-1)?.at ?? 0;
    await server.until(() => stops.length === 2, 'both handlers are stopped');
    for (const { at, why } of stops) {
      assert.equal(why, 'lost');
      assert.ok(at - last > 2_000 && at - last < 7_000, `${at - last} ms after the last answered heartbeat`);
    }
    const stopped = stops[1]?.at ?? 0;
    const later = () => server.of('beat').find(({ at, text }) => at > stopped && text.includes(givesUp));
    await server.until(() => later() !== undefined, 'a later heartbeat lists the attempt');
    giveUp();
    assert.equal((await server.verdictOf(completes)).result, 'done');
    assert.equal((await server.verdictOf(inside)).verdict, 'released');
    assert.equal((await server.verdictOf(givesUp)).verdict, 'released');
    assert.ok(notes.some((note) => note.includes('no heartbeat was answered')), notes.join('\n'));
  });
}

test('a success that is not the JSON of tickr is no answer to a registration or a heartbeat', async () => {
  const strays: Record<string, string[]> = {
    workers: ['{}', 'null', 'no JSON'],
    beat: ['{}', 'null', '[]', '5', 'no JSON', '{"cancel":[]}'],
  };
  server.fate = ({ what }) => {
    const body = strays[what]?.shift();
    return body === undefined ? undefined : { status: what === 'workers' ? 201 : 200, body };
  };
  start(
    make().handle(KIND, async (_, context) => {
      context.saveCheckpoint({ row: 9 });
      await context.checkpointSaved();
    }),
  );
  const { verdict } = await server.verdictOf(server.add({ kind: KIND }));
  assert.equal(verdict, 'succeeded');
  assert.equal(server.of('workers').length, 4);
  // The checkpoint counts as saved once tickr has answered.
  assert.ok(server.of('beat').length > 6, `${server.of('beat').length} heartbeats`);
});

test('while heartbeats are answered, a handler runs for longer than a lease', async () => {
  server.leaseMs = 4_000;
  let open = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  start(
    make().handle(KIND, async (_, { signal }) => {
      await gate;
      return signal.aborted;
    }),
  );
  const token = server.add({ kind: KIND });
  const beats = () => server.of('beat').filter(({ text }) => text.includes(token));
  // A clock that heartbeats do not set back would stop the handler after nine tenths of the lease.
  const seen = () => (beats().at(-1)?.at ?? 0) - (beats()[0]?.at ?? 0);
  await server.until(() => seen() > 5_000, 'heartbeats for longer than a lease', 12_000);
  open();
  assert.equal((await server.verdictOf(token)).result, false);
});

test('progress and checkpoint reach the server, the checkpoint before a verdict that is no success', async () => {
  start(
    make().handle<{ step: string }>(KIND, async ({ step }, context) => {
      context.progress(42.5, 'half\nway');
      context.saveCheckpoint({ row: 9007199254740993n });
      if (step === 'saved') await context.checkpointSaved();
      if (step === 'saved') return;
      throw new Error('later');
    }),
  );
  server.beatMs = 60_000;
  for (const step of ['saved', 'fails']) {
    const token = server.add({ kind: KIND, payload: { step } });
    await server.verdictOf(token);
    const ended = server.of('finish').find(({ text }) => text.includes(token))?.at ?? 0;
    const beat = server
      .of('beat')
      .find(({ text, at }) => at < ended && text.includes(token) && text.includes('checkpoint'));
    assert.ok(beat?.text.includes('"percent":42.5,"note":"half way","checkpoint":{"row":9007199254740993}'), step);
  }
});

test('every heartbeat lists every token, however large the checkpoints are', async () => {
  const tokens = Array.from({ length: 6 }, () => server.add({ kind: KIND }));
  start(
    make({ slots: 6 }).handle(KIND, (_, context) => {
      context.saveCheckpoint('x'.repeat(60_000));
      return context.sleep(60_000);
    }),
  );
  const beats = () => server.of('beat').filter(({ text }) => text.includes('checkpoint'));
  const isSaved = (token: string) => beats().some(({ text }) => text.includes(`"token":"${token}","checkpoint"`));
  await server.until(() => tokens.every(isSaved), 'a beat with each checkpoint');
  for (const { body, text } of beats()) {
    assert.equal(body.holding.length, tokens.length);
    assert.ok(text.length < 256 * 1_024, `${text.length} bytes`);
  }
});

test('an error that cannot be read fails its attempt and frees its slot', async () => {
  start(
    make({ slots: 1 }).handle<{ how: string }>(KIND, ({ how }) => {
      const error = new Error('no stock');
      const unreadable = () => {
        throw new TypeError('of nothing');
      };
      if (how === 'message') throw Object.defineProperty(error, 'message', { get: unreadable });
      if (how === 'stack') throw Object.defineProperty(error, 'stack', { get: unreadable });
      return 'done';
    }),
  );
  for (const how of ['message', 'stack']) {
    const { verdict, error } = await server.verdictOf(server.add({ kind: KIND, payload: { how } }));
    assert.deepEqual([verdict, error], ['failed', 'the handler threw an error that cannot be read'], how);
  }
  assert.equal((await server.verdictOf(server.add({ kind: KIND, payload: { how: 'well' } }))).result, 'done');
});

test('every checkpoint is saved behind a proxy that takes only small heartbeats', async () => {
  const count = (text: string) => text.split('"checkpoint":').length - 1;
  server.fate = ({ what, text }) => (what === 'beat' && count(text) > 1 ? problem(413, 'too_large') : undefined);
  const tokens = [0, 1, 2].map((n) => server.add({ kind: KIND, payload: { n } }));
  let begun = 0;
  start(
    make({ slots: 3 }).handle<{ n: number }>(KIND, async ({ n }, context) => {
      begun += 1;
      while (begun < 3) await context.sleep(5);
      context.saveCheckpoint(`${n}${'x'.repeat(40_000)}`);
      await context.checkpointSaved();
      // Now the server has it.
      const isSaved = ({ text }: { text: string }) => count(text) === 1 && text.includes(`"checkpoint":"${n}x`);
      return server.of('beat').some(isSaved);
    }),
  );
  for (const token of tokens) assert.equal((await server.verdictOf(token)).result, true);
});

test('a verdict whose row is locked is sent again and holds up no other', async () => {
  const locked = server.add({ kind: KIND });
  server.locked.add(locked);
  start(make().handle(KIND, () => 'done'));
  const tries = () => server.of('finish').filter(({ text }) => text.includes(locked));
  await server.until(() => tries().length > 0, 'it was sent');
  assert.equal((await server.verdictOf(server.add({ kind: KIND }))).result, 'done');
  await server.until(() => tries().length > 1, 'it was sent again');
  const beats = server.of('beat').length;
  await server.until(() => server.of('beat').length > beats + 1, 'a heartbeat');
  assert.deepEqual(server.of('beat').at(-1)?.body.holding, [{ token: locked }]);
  server.locked.clear();
  assert.equal((await server.verdictOf(locked)).result, 'done');
});

test('a checkpoint whose row is locked is sent again until it is saved', async () => {
  const locked = server.add({ kind: KIND });
  server.locked.add(locked);
  let isSaved = false;
  start(
    make().handle(KIND, async (_, context) => {
      context.saveCheckpoint({ row: 9 });
      await context.checkpointSaved();
      isSaved = true;
      throw new Error('later');
    }),
  );
  const saves = () => server.of('beat').filter(({ text }) => text.includes('"checkpoint"'));
  await server.until(() => saves().length > 1, 'it was sent again');
  assert.ok(!isSaved && !server.of('finish').some(({ text }) => text.includes(locked)));
  // Not in a hurry: about one each second.
  assert.ok(saves().length < 10, `${saves().length} heartbeats`);
  server.locked.clear();
  assert.equal((await server.verdictOf(locked)).verdict, 'failed');
});

test('a checkpoint that is too large is an error of the handler', async () => {
  start(make().handle(KIND, (_, context) => context.saveCheckpoint('x'.repeat(70_000))));
  const { error } = await server.verdictOf(server.add({ kind: KIND }));
  assert.equal(error, 'RangeError: the checkpoint has 70002 bytes, and at most 65536 are possible');
});

test('a checkpoint that the server refuses counts as not saved, and the log says why', async () => {
  const why = 'the server refuses the checkpoint of a handler: must be smaller';
  server.refusesCheckpoints = 'must be smaller';
  start(
    make()
      .handle<{ waits: boolean }>(KIND, async ({ waits }, context) => {
        context.log('begins');
        context.saveCheckpoint([7]);
        if (!waits) throw new Error('later');
        const first = await context.checkpointSaved().catch((error: Error) => error.message);
        const again = await context.checkpointSaved().catch((error: Error) => error.message);
        server.refusesCheckpoints = undefined;
        context.saveCheckpoint([8]);
        await context.checkpointSaved();
        return [first, again];
      })
      .handle('test.other', inThread(new URL('./thread_handler.js', import.meta.url))),
  );
  const inside = await server.verdictOf(server.add({ kind: 'test.other', payload: { how: 'reports', big: 1 } }));
  assert.deepEqual([inside.verdict, inside.error], ['failed', `Error: ${why}`]);
  const failed = await server.verdictOf(server.add({ kind: KIND, payload: { waits: false } }));
  const waited = await server.verdictOf(server.add({ kind: KIND, payload: { waits: true } }));
  assert.equal(failed.error, 'Error: later');
  assert.deepEqual(waited.result, [why, why]);
  for (const { log } of [inside, failed, waited]) assert.ok(log.includes(`ERROR ${why}\n`), log);
  assert.equal(notes.filter((note) => note.endsWith(why)).length, 3, notes.join('\n'));
});

test('a checkpoint of a heartbeat that gets 413 counts as not saved', async () => {
  server.fate = ({ what, text }) =>
    what === 'beat' && text.includes('"checkpoint"') ? problem(413, 'body_too_large') : undefined;
  start(
    make().handle(KIND, async (_, context) => {
      context.saveCheckpoint([7]);
      await context.checkpointSaved();
    }),
  );
  const { verdict, error, log } = await server.verdictOf(server.add({ kind: KIND }));
  assert.equal(verdict, 'failed');
  assert.match(error, /^Error: the server refuses the report of a handler: body_too_large: no; /);
  assert.match(log, /ERROR the server refuses the report of a handler: body_too_large/);
});

test('the log keeps the newest lines', async () => {
  start(
    make().handle(KIND, (_, context) => {
      for (let line = 0; line < 2_000; line += 1) context.log('line %d', line);
      context.logAt('warn', 'one\ntwo \u001b[31m');
    }),
  );
  const { log } = await server.verdictOf(server.add({ kind: KIND }));
  const lines: string[] = log.split('\n');
  assert.ok(Buffer.byteLength(log) <= 16_384 && Buffer.byteLength(log) > 15_000);
  assert.match(lines[0] ?? '', /^\(\d+ earlier lines were dropped\)$/);
  assert.deepEqual(
    lines.slice(-4).map((line) => line.slice(13)),
    ['INFO  line 1999', 'WARN  one', 'WARN  two \\u{1b}[31m', ''],
  );
});

test('a worker that the server forgot registers again, and goes on with what it holds', async () => {
  let open = () => {};
  start(
    make({ slots: 2 }).handle<{ waits: boolean }>(KIND, ({ waits }) =>
      waits ? new Promise<void>((done) => (open = done)) : undefined,
    ),
  );
  const held = server.add({ kind: KIND, payload: { waits: true } });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(held)), 'the attempt runs');
  server.forget();
  await server.until(() => server.of('workers').length === 2, 'the second registration');
  await server.verdictOf(server.add({ kind: KIND, payload: { waits: false } }));
  const fetch = server.of('fetch').at(-1);
  assert.deepEqual(fetch?.body.holding.includes(held), true);
  open();
  await server.verdictOf(held);
  assert.equal(server.of('workers').length, 2, 'one registration for all calls that got 404');
});

test('429 and 503 are waited for, and the next address is tried', async () => {
  let refused = 0;
  server.fate = ({ what }) => {
    if (what !== 'fetch' || refused++ > 0) return undefined;
    return { ...problem(503, 'stopping'), headers: { 'retry-after': '1' } };
  };
  start(make().handle(KIND, () => undefined));
  await server.verdictOf(server.add({ kind: KIND }));
  const [first, second] = server.of('fetch');
  assert.ok((second?.at ?? 0) - (first?.at ?? 0) >= 990);
});

test('when one of two addresses is gone, the worker goes on at the other one', async () => {
  const gone = await new FakeTickr().start();
  await gone.stop();
  start(make({ url: `${gone.url},${server.url}` }).handle(KIND, () => undefined));
  await server.verdictOf(server.add({ kind: KIND }));
});

test('a drained worker gets nothing, and goes on as soon as it may', async () => {
  start(make().handle(KIND, () => undefined));
  server.drain = true;
  await server.until(() => notes.some((note) => note.includes('drains')), 'the worker knows');
  const token = server.add({ kind: KIND });
  server.drain = false;
  await server.verdictOf(token);
});

test('one verdict that the server refuses holds up no other one', async () => {
  server.fate = ({ what, body }) => {
    const isWrong = what === 'finish' && body.verdicts.some((verdict: any) => verdict.result === 'wrong');
    return isWrong ? problem(422, 'invalid_request', 'no such result') : undefined;
  };
  let together = 0;
  let open = () => {};
  const all = new Promise<void>((resolve) => (open = resolve));
  start(
    make().handle(KIND, async (payload) => {
      together += 1;
      if (together === 3) open();
      await all;
      return payload;
    }),
  );
  const tokens = ['right', 'wrong', 'also right'].map((payload) => server.add({ kind: KIND, payload }));
  const verdicts = await Promise.all(tokens.map((token) => server.verdictOf(token)));
  assert.deepEqual(
    verdicts.map(({ verdict }) => verdict),
    ['succeeded', 'failed', 'succeeded'],
  );
  assert.match(verdicts[1].error, /refuses the verdict succeeded: invalid_request: no such result/);
});

test('a stop lets handlers finish, gives back the rest, and leaves', async () => {
  const worker = make({ slots: 2 });
  worker.handle<{ ms: number }>('test.other', async ({ ms }, context) => {
    context.saveCheckpoint(ms);
    if (ms > 1_000) await new Promise(() => {});
    await context.sleep(ms);
    return 'finished';
  });
  server.beatMs = 60_000;
  start(worker);
  const short = server.add({ kind: 'test.other', payload: { ms: 300 } });
  const endless = server.add({ kind: 'test.other', payload: { ms: 60_000 } });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(endless)), 'both run');
  const late = server.add({ kind: 'test.other', payload: { ms: 0 } });
  await worker.stop(700);
  await workers[0]?.run;
  assert.equal((await server.verdictOf(short)).result, 'finished');
  assert.equal((await server.verdictOf(endless)).verdict, 'released');
  assert.ok(!server.verdicts.has(late));
  assert.equal(server.calls.at(-1)?.what, 'leave');
  assert.equal(server.of('leave').length, 1);
});

test('a stop with a grace of years stops no handler', async () => {
  let open = () => {};
  const gate = new Promise<void>((resolve) => (open = resolve));
  const worker = start(
    make({ graceMs: 2 ** 40 }).handle(KIND, async (_, { signal }) => {
      await gate;
      return signal.aborted;
    }),
  );
  const token = server.add({ kind: KIND });
  await server.until(() => server.of('beat').some(({ text }) => text.includes(token)), 'the attempt runs');
  await assert.rejects(worker.stop(NaN), RangeError);
  const stopped = worker.stop();
  // A timer that cannot wait for so long fires after a millisecond.
  const beats = server.of('beat').length;
  await server.until(() => server.of('beat').length > beats + 3, 'some heartbeats');
  assert.ok(!server.verdicts.has(token));
  open();
  assert.equal((await server.verdictOf(token)).result, false);
  await stopped;
});

test('a worker that may not register says why, and one without a server tries again', async () => {
  server.fate = () => problem(401, 'unauthorized', 'no key');
  await assert.rejects(
    make()
      .handle(KIND, () => undefined)
      .run({ signals: false }),
    { name: 'ApiError', code: 'unauthorized' },
  );
  let refused = 0;
  server.fate = ({ what }) => (what === 'workers' && refused++ < 2 ? 'refused' : undefined);
  start(make().handle(KIND, () => undefined));
  await server.verdictOf(server.add({ kind: KIND }));
});

test('a number that no worker can have is an error at once', () => {
  const wrong: WorkerOptions[] = [
    { slots: 0 },
    { slots: 1_001 },
    { slots: 1.5 },
    { slots: NaN },
    { slots: '4' as unknown as number },
    { leaseMs: 9_999 },
    { leaseMs: 3_600_001 },
    { waitMs: -1 },
    { waitMs: 60_001 },
    { graceMs: -1 },
    { graceMs: NaN },
  ];
  for (const options of wrong) assert.throws(() => make(options), RangeError, JSON.stringify(options));
  assert.throws(() => make({ waitMs: 90_000 }), { message: 'waitMs must be a whole number from 0 to 60,000' });
  make({ slots: 1_000, leaseMs: 3_600_000, waitMs: 0, graceMs: Infinity });
  make({ slots: undefined, leaseMs: undefined, waitMs: undefined, graceMs: undefined });
});

test('a wrong set-up of a worker is an error at once', async () => {
  assert.throws(
    () =>
      make()
        .handle(KIND, () => undefined)
        .handle(KIND, () => undefined),
    /has a handler/,
  );
  await assert.rejects(make().run(), /no handler/);
});
