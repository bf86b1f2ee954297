import assert from 'node:assert/strict';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, before, beforeEach, test } from 'node:test';
import { inspect } from 'node:util';

import { ApiError, Client, kind, UnavailableError } from 'tickr';

import { FakeTickr, problem } from './fake_tickr.js';

const email = kind<{ to: string }, { accepted: boolean }>('email', { queue: 'mail', delay_ms: 5 });
let server: FakeTickr;
let other: FakeTickr;
let client: Client;

before(async () => {
  server = await new FakeTickr().start();
  other = await new FakeTickr().start();
});

after(async () => {
  await server.stop();
  await other.stop();
});

beforeEach(() => {
  for (const one of [server, other]) {
    one.calls.length = 0;
    one.fate = () => undefined;
  }
  client = new Client({ url: server.url, timeoutMs: 5_000 });
});

test('a lost answer is asked for again with the same idempotency key and body', async () => {
  let lost = 0;
  server.fate = () => (lost++ < 2 ? 'lost' : undefined);
  const enqueued = await client.enqueue(email, { to: 'ada@example.com' }, { priority: 1, execute_at: new Date(0) });
  assert.equal(enqueued.state, 'waiting');
  assert.equal(server.calls.length, 3);
  const keys = new Set(server.calls.map(({ headers }) => headers['idempotency-key']));
  assert.equal(keys.size, 1);
  assert.match(String([...keys][0]), /^[0-9a-f-]{36}$/);
  const expected = { kind: 'email', payload: { to: 'ada@example.com' }, queue: 'mail', priority: 1 };
  assert.deepEqual(server.calls[2]?.body, { ...expected, execute_at: '1970-01-01T00:00:00.000Z' });
  await client.enqueue('email', {});
  assert.ok(!keys.has(server.calls[3]?.headers['idempotency-key']), 'another call has another key');
});

test('the idempotency key of the caller is used, and is no field of the job', async () => {
  await client.enqueue('email', {}, { idempotency_key: 'order-7-mail', signal: AbortSignal.timeout(5_000) });
  assert.equal(server.calls[0]?.headers['idempotency-key'], 'order-7-mail');
  assert.deepEqual(server.calls[0]?.body, { kind: 'email', payload: {} });
  await client.enqueueMany([email.job({ to: 'a' }), { kind: 'x', payload: 1n, tags: ['t'] }]);
  const jobs = [
    { kind: 'email', payload: { to: 'a' }, queue: 'mail', delay_ms: 5 },
    { kind: 'x', payload: 1, tags: ['t'] },
  ];
  assert.deepEqual(server.calls[1]?.body, { jobs });
});

test('a success without an id is no answer to an enqueue', async () => {
  const strays: unknown[] = [{ status: 'ok' }, { id: '' }, { id: 7 }, null, '<html>'];
  server.fate = () => (strays.length > 0 ? { status: 200, body: strays.shift() } : undefined);
  assert.match((await client.enqueue('email', {})).id, /^[0-9a-f-]{36}$/);
  assert.equal(server.calls.length, 6);
  strays.push({ jobs: [] }, { jobs: [{ id: 'a' }, {}] }, { id: 'a' });
  const jobs = [email.job({ to: 'a' }), email.job({ to: 'b' })];
  assert.equal((await client.enqueueMany(jobs)).length, 2);
  assert.equal(server.calls.length, 6 + 4);
  assert.equal(new Set(server.calls.map(({ headers }) => headers['idempotency-key'])).size, 2);
  server.fate = () => ({ status: 200, body: { status: 'ok' } });
  const both = new Client({ url: `${server.url},${other.url}`, timeoutMs: 5_000 });
  assert.equal((await both.enqueue('email', {})).existing, false);
  assert.equal(other.calls.length, 1, 'the next address is tried');
  await assert.rejects(new Client({ url: server.url, timeoutMs: 300 }).enqueue('email', {}), UnavailableError);
});

test('a header that cannot be sent is refused at once', async () => {
  for (const idempotency_key of ['order→7', 'order 7', 'order-7\n', '', 'x'.repeat(256)]) {
    await assert.rejects(client.enqueue('email', {}, { idempotency_key }), TypeError);
    await assert.rejects(client.enqueueMany([email.job({ to: 'a' })], { idempotency_key }), TypeError);
  }
  await assert.rejects(client.continuing('00-→').enqueue('email', {}), TypeError);
  assert.equal(server.calls.length, 0);
  const longest = `!~${'x'.repeat(253)}`;
  await client.enqueue('email', {}, { idempotency_key: longest });
  assert.equal(server.calls[0]?.headers['idempotency-key'], longest);
});

test('an option that is undefined keeps the default of the kind', async () => {
  const [queue, delay_ms] = [undefined, undefined];
  await client.enqueue(email, { to: 'a' }, { queue, delay_ms, priority: 1 });
  const expected = { kind: 'email', payload: { to: 'a' }, queue: 'mail', delay_ms: 5, priority: 1 };
  assert.deepEqual(server.calls[0]?.body, expected);
});

test('429 and 503 are repeated after Retry-After', async () => {
  const fates = [{ ...problem(429, 'overloaded'), headers: { 'retry-after': '1' } }, problem(503, 'stopping')];
  server.fate = () => fates.shift();
  await client.enqueue('email', {});
  const [first, second, third] = server.calls;
  assert.ok(first && second && third);
  assert.ok(second.at - first.at >= 990, `${second.at - first.at} ms are less than Retry-After`);
});

test('after a failure the next address is tried at once', async () => {
  server.fate = () => 'refused';
  const both = new Client({ url: `${server.url}, ${other.url}/`, timeoutMs: 5_000 });
  const began = performance.now();
  await both.enqueue('email', {});
  assert.ok(performance.now() - began < 1_000);
  assert.equal(server.calls.length, 1);
  assert.equal(other.calls[0]?.path, '/v1/jobs');
  assert.equal(other.calls[0]?.headers['idempotency-key'], server.calls[0]?.headers['idempotency-key']);
  await both.enqueue('email', {});
  assert.equal(server.calls.length, 1, 'the address that works is kept');
});

test('an address is not called before its Retry-After when the other is down', async () => {
  const fates = [{ ...problem(503, 'stopping'), headers: { 'retry-after': '2' } }];
  server.fate = () => fates.shift();
  const down = await new FakeTickr().start();
  await down.stop();
  await new Client({ url: `${server.url},${down.url}`, timeoutMs: 20_000 }).enqueue('email', {});
  const [first, second] = server.calls;
  assert.ok(first && second && server.calls.length === 2);
  assert.ok(second.at - first.at >= 1_900, `${second.at - first.at} ms are less than Retry-After`);
});

test('the other address is tried while one waits for its Retry-After', async () => {
  server.fate = () => ({ ...problem(503, 'stopping'), headers: { 'retry-after': '60' } });
  const fates = ['refused' as const, problem(503, 'store_unavailable')];
  other.fate = () => fates.shift();
  await new Client({ url: `${server.url},${other.url}`, timeoutMs: 20_000 }).enqueue('email', {});
  assert.deepEqual([server.calls.length, other.calls.length], [1, 3]);
});

test('a pause is over when the address that named a time is free', async () => {
  // No program can import this class, so the test reads its file.
  const inner = (await import(new URL('../../dist/http.js', import.meta.url).href)) as {
    Turns: new (addresses: number) => { next(place: number, askedMs: number): number };
  };
  const turns = new inner.Turns(2);
  for (let round = 0; round < 8; round += 1) [0, 1].forEach((place) => turns.next(place, 0));
  turns.next(0, 1_000);
  assert.ok(turns.next(1, 0) <= 1_000);
  turns.next(0, 1_000);
  assert.ok(turns.next(1, 2_000) > 2_000, 'a pause still grows when all addresses name a time');
});

test('a problem document becomes one type of error, at once', async () => {
  const errors = [{ pointer: '/payload/to', detail: 'is missing' }];
  const { body } = problem(422, 'invalid_payload', 'the payload does not fit the kind email');
  server.fate = () => ({ status: 422, body: { ...(body as object), errors } });
  await assert.rejects(client.enqueue('email', {}), (error: unknown) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.code, error.title], [422, 'invalid_payload', 'invalid_payload']);
    assert.equal(error.detail, 'the payload does not fit the kind email');
    assert.deepEqual(error.errors, errors);
    assert.match(error.message, /\/payload\/to is missing/);
    return true;
  });
  assert.equal(server.calls.length, 1);
  server.fate = () => ({ status: 500, body: '<html>' });
  await assert.rejects(client.get('x'), { name: 'ApiError', code: 'unexpected_answer', status: 500 });
});

test('the time of a call is bounded', async () => {
  server.fate = () => 'refused';
  const began = performance.now();
  await assert.rejects(new Client({ url: server.url, timeoutMs: 700 }).enqueue('email', {}), UnavailableError);
  assert.ok(performance.now() - began < 1_500);
  assert.ok(server.calls.length >= 2);
  server.fate = () => problem(503, 'store_unavailable');
  const last = new Client({ url: server.url, timeoutMs: 300 }).enqueue('email', {});
  await assert.rejects(last, { name: 'ApiError', code: 'store_unavailable' });
});

test('a nudge is tried once and holds up no request', async () => {
  const hangs = http.createServer(() => undefined);
  await new Promise<void>((resolve) => hangs.listen(0, '127.0.0.1', resolve));
  const began = performance.now();
  const late = new Client({ url: `http://127.0.0.1:${(hangs.address() as AddressInfo).port}` });
  await assert.rejects(late.nudge(), UnavailableError);
  assert.ok(performance.now() - began < 2_000);
  hangs.closeAllConnections();
  hangs.close();
  const fates = [problem(503, 'store_unavailable')];
  server.fate = () => fates.shift();
  await assert.rejects(client.nudge(), { name: 'ApiError', code: 'store_unavailable' });
  assert.equal(server.calls.length, 1);
  await client.nudge();
});

test('an AbortSignal ends a call', async () => {
  server.fate = () => 'refused';
  await assert.rejects(client.enqueue('email', {}, { signal: AbortSignal.timeout(200) }), { name: 'TimeoutError' });
});

test('neither an inspection nor an error shows the token', async () => {
  const token = 'secret-token-of-thirty-characters';
  const mine = new Client({ url: server.url, token, timeoutMs: 300 });
  await mine.enqueue('email', {});
  assert.equal(server.calls[0]?.headers.authorization, `Bearer ${token}`);
  server.fate = () => 'refused';
  const errors = [await mine.enqueue('email', {}).catch((error: unknown) => error)];
  for (const wrong of [
    { url: server.url, token: `${token}\n` },
    { url: `http://user:${token}@localhost` },
    { url: `ftp:${token}` },
  ]) {
    try {
      errors.push(new Client(wrong));
    } catch (error) {
      errors.push(error);
    }
  }
  const shown = inspect([mine, ...errors], { depth: 20, showHidden: true }) + JSON.stringify(mine);
  assert.ok(!shown.includes('secret'), shown);
});

test('the types of a kind reach the payload and the result', async () => {
  // @ts-expect-error a payload of another type
  await client.enqueue(email, { to: 7 });
  const enqueued = await client.enqueue(email, { to: 'ada@example.com' });
  server.fate = () => ({
    status: 200,
    body: { id: enqueued.id, state: 'completed', result: { accepted: true }, last_error: null },
  });
  const { result } = await client.wait(enqueued);
  const accepted: boolean = result.accepted;
  assert.equal(accepted, true);
});

test('a wait goes on until the end of the job, and ends with its time', async () => {
  const fates = [
    { status: 202, body: { id: 'x', state: 'waiting' } },
    { status: 200, body: { id: 'x', state: 'failed', last_error: 'no' } },
  ];
  server.fate = () => fates.shift();
  assert.equal((await client.wait('x')).state, 'failed');
  server.fate = () => ({ status: 202, body: { id: 'x', state: 'waiting' } });
  await assert.rejects(client.wait('x', { timeoutMs: 100 }), { name: 'WaitTimeoutError' });
});
