// Writes orders with rows of the outbox, until the file `stop` is in its folder. A transaction whose COMMIT is not
// answered is repeated with the same ids, as docs/TRANSACTIONS.md says. Some transactions are rolled back.

import { randomBytes, randomInt } from 'node:crypto';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';

// Unlike an import, it looks into the folders of NODE_PATH.
const mysql = createRequire(import.meta.url)('mysql2/promise');

const [host, port, user, password, database, mostRows] = process.argv.slice(2);
const DUPLICATE_KEY = 1062;

function newId() {
  const id = randomBytes(16);
  id.writeUIntBE(Date.now(), 0, 6);
  id[6] = 0x70 | (id[6] & 0x0f);
  id[8] = 0x80 | (id[8] & 0x3f);
  return id;
}

async function insert(real, id, mail) {
  // The connection as the INSERT of the document gets it. The transaction goes on with the next row.
  const connection = {
    beginTransaction: async () => {},
    execute: (sql, values) => real.execute(sql, values),
    commit: async () => {},
  };
  // The package `uuid`, whose ids are text.
  const v7 = () => id.toString('hex');
  const parse = (text) => Buffer.from(text, 'hex');
  // THE INSERT OF docs/TRANSACTIONS.md
}

async function write(connection, ids, keeps) {
  await connection.beginTransaction();
  for (const id of ids) {
    await connection.execute('INSERT IGNORE INTO sold (id) VALUES (?)', [id]);
    await insert(connection, id, { pad: 'node' });
  }
  if (keeps) {
    await connection.commit();
    return;
  }
  await connection.rollback();
  for (const id of ids) await connection.execute('INSERT INTO undone (id) VALUES (?)', [id]);
}

let connection;
while (!existsSync('stop')) {
  const ids = Array.from({ length: randomInt(1, Number(mostRows) + 1) }, newId);
  const keeps = randomInt(8) > 0;
  for (;;) {
    try {
      connection ??= await mysql.createConnection({ host, port: Number(port), user, password, database });
      await write(connection, ids, keeps);
      break;
    } catch (error) {
      if (error.errno === DUPLICATE_KEY) {
        // The COMMIT before was done, and the rows still wait.
        await connection.rollback();
        break;
      }
      console.log(String(error));
      connection?.destroy();
      connection = undefined;
      if (!keeps) break;
      await pause(50);
    }
  }
}
connection?.destroy();
