import { randomBytes } from 'node:crypto';

import type { JobOptions, NewJob } from './api.js';
import { bytesOf, stringify } from './json.js';
import { bodyOf, jobOf, type Kind } from './kind.js';

const MAX_PAYLOAD_BYTES = 1 << 20;
const MAX_DAYS_AHEAD = 366;

/** A connection of mysql2/promise. Its transaction is open, and the caller commits it. */
export interface OutboxConnection {
  execute(sql: string, values: (string | Buffer | null)[]): Promise<unknown>;
}

/** Options of a job that is written to the outbox. */
export interface OutboxOptions extends JobOptions {
  /**
   * Id of the job, a UUIDv7. Default: a new one. Repeat a transaction whose COMMIT was not answered with the same id.
   */
  id?: string;
  /** Name of the table. Default: `tickr_outbox`. In a database of its own: `tickr.tickr_outbox`. */
  table?: string;
}

/** An INSERT for the outbox, for drivers and libraries that {@link enqueueWithin} does not know. */
export interface OutboxRow {
  /** The id that the job will have. */
  id: string;
  /** The statement, with `?` for each value. */
  sql: string;
  values: (string | Buffer | null)[];
}

/**
 * Enqueue a job in a transaction of yours: it exists exactly if the transaction is committed. Returns the id that the
 * job will have.
 *
 * The job starts about a tenth of a second after the COMMIT, the first one after a quiet time within about a second,
 * and at once after {@link Client.nudge}. tickr checks kind and payload when it moves the row; a row that is wrong is
 * shown by `tickr outbox rejected`.
 *
 * @throws TypeError when the payload has more than 1 MiB, or an option is not valid. The errors of the connection.
 */
export async function enqueueWithin<P>(
  connection: OutboxConnection,
  kind: Kind<P, unknown> | string,
  payload: P,
  options: OutboxOptions = {},
): Promise<string> {
  // Each statement of a pool may use another connection, so it would be in no transaction.
  if ('getConnection' in connection) throw new TypeError('enqueueWithin needs a connection, not a pool');
  const row = outboxRow(kind, payload, options);
  await connection.execute(row.sql, row.values);
  return row.id;
}

/** Return the INSERT that enqueues a job, to be executed on the connection of the transaction. */
export function outboxRow<P>(kind: Kind<P, unknown> | string, payload: P, options: OutboxOptions = {}): OutboxRow {
  const { id = uuidv7(), table = 'tickr_outbox', ...jobOptions } = options;
  if (!/^[A-Za-z0-9_$]+(\.[A-Za-z0-9_$]+)?$/.test(table)) throw new TypeError(`${table} is no name of a table`);
  const job: NewJob = jobOf(kind as Kind<never> | string, payload, jobOptions);
  const { kind: name, payload: content, queue, execute_at, ...rest } = bodyOf(job);
  // The server would reject the row after the COMMIT, and there would be no job.
  if (execute_at !== undefined && rest['delay_ms'] !== undefined) {
    throw new TypeError('give execute_at or delay_ms, not both');
  }
  const text = stringify(content);
  const bytes = bytesOf(text);
  if (bytes > MAX_PAYLOAD_BYTES) throw new TypeError(`the payload has ${bytes} bytes, and at most 1 MiB is possible`);
  const others = stringify(rest);
  return {
    id,
    sql: `INSERT INTO ${table} (id, kind, payload, queue, execute_at, options) VALUES (?, ?, ?, ?, ?, ?)`,
    values: [
      uuidBytes(id),
      name as string,
      text,
      (queue as string | undefined) ?? null,
      execute_at === undefined ? null : dateTime(execute_at as string),
      others === '{}' ? null : others,
    ],
  };
}

/** Write a time as the column takes it, in UTC. A driver would write a `Date` in its own time zone. */
function dateTime(text: string): string {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) throw new TypeError(`execute_at ${text} is no time`);
  if (time.getTime() - Date.now() > MAX_DAYS_AHEAD * 86_400_000) {
    throw new TypeError(`execute_at is more than ${MAX_DAYS_AHEAD} days ahead`);
  }
  // The column has milliseconds, and a `Date` cuts off what is below them. No job starts before its time.
  if (/\.\d{3}\d*[1-9]/.test(text)) time.setTime(time.getTime() + 1);
  return time.toISOString().slice(0, 23).replace('T', ' ');
}

function uuidBytes(id: string): Buffer {
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/i.test(id)) {
    throw new TypeError(`${id} is no UUIDv7`);
  }
  return Buffer.from(id.replaceAll('-', ''), 'hex');
}

let lastMs = 0;
let counter = 0;

/**
 * Make a UUIDv7. The ids of one process sort in the order in which they were made, also within a millisecond: jobs
 * with one order key run in the order of their ids.
 */
export function uuidv7(): string {
  const bytes = randomBytes(16);
  const now = Date.now();
  if (now > lastMs) {
    lastMs = now;
    // The upper half stays free, so that a millisecond has room for at least two thousand ids.
    counter = bytes.readUInt16BE(6) & 0x7ff;
  } else {
    counter += 1;
    if (counter > 0xfff) {
      lastMs += 1;
      counter = 0;
    }
  }
  bytes.writeUIntBE(lastMs, 0, 6);
  bytes.writeUInt16BE(0x7000 | counter, 6);
  bytes[8] = 0x80 | ((bytes[8] as number) & 0x3f);
  const hex = bytes.toString('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}
