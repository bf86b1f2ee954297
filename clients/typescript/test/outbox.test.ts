import assert from 'node:assert/strict';
import { test } from 'node:test';

import { enqueueWithin, kind, outboxRow, uuidv7 } from 'tickr';

test('ids are UUIDv7 of now, and sort in the order in which they were made', () => {
  const ids = Array.from({ length: 20_000 }, uuidv7);
  assert.deepEqual([...ids].sort(), ids);
  assert.equal(new Set(ids).size, ids.length);
  for (const id of ids.slice(0, 10)) {
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.ok(Math.abs(parseInt(id.replaceAll('-', '').slice(0, 12), 16) - Date.now()) < 5_000);
  }
});

test('a row has the columns of the outbox, and every other option in one of them', () => {
  const email = kind<{ to: string }>('email', { queue: 'mail', priority: 2 });
  const id = '019ab2c3-d4e5-7f60-a1b2-c3d4e5f60718';
  const execute_at = new Date('2026-12-01T10:00:00.125+02:00');
  const row = outboxRow(email, { to: 'ada@example.com' }, { id, execute_at, order_key: 'customer-7' });
  assert.equal(row.id, id);
  assert.deepEqual(row.values, [
    Buffer.from('019ab2c3d4e57f60a1b2c3d4e5f60718', 'hex'),
    'email',
    '{"to":"ada@example.com"}',
    'mail',
    '2026-12-01 08:00:00.125',
    '{"priority":2,"order_key":"customer-7"}',
  ]);
  assert.deepEqual(outboxRow('email', 9007199254740993n).values.slice(1), [
    'email',
    '9007199254740993',
    null,
    null,
    null,
  ]);
});

test('a due time between two milliseconds becomes the later one', () => {
  const due = (execute_at: string) => outboxRow('email', {}, { execute_at }).values[4];
  assert.equal(due('2026-12-01T08:00:00.1250001Z'), '2026-12-01 08:00:00.126');
  assert.equal(due('2026-12-01T09:00:00.999900+01:00'), '2026-12-01 08:00:01.000');
  assert.equal(due('2026-12-01T08:00:00.125000Z'), '2026-12-01 08:00:00.125');
});

test('wrong rows are refused before the statement', async () => {
  assert.throws(() => outboxRow('email', {}, { id: '019ab2c3-d4e5-4f60-a1b2-c3d4e5f60718' }), /no UUIDv7/);
  assert.throws(() => outboxRow('email', {}, { table: 'x; DROP TABLE y' }), /no name of a table/);
  assert.throws(() => outboxRow('email', {}, { execute_at: 'tomorrow' }), /no time/);
  assert.throws(() => outboxRow('email', {}, { execute_at: new Date(), delay_ms: 5 }), /not both/);
  assert.throws(() => outboxRow('email', 'x'.repeat(1 << 20)), /at most 1 MiB/);
  const pool = { getConnection: () => undefined, execute: () => Promise.reject(new Error('not reached')) };
  await assert.rejects(enqueueWithin(pool, 'email', {}), /not a pool/);
});
