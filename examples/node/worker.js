// Executes the jobs of the shop.

import { appendFile, mkdir, writeFile } from 'node:fs/promises';

import { inThread, Rejected, Worker } from 'tickr';

import { makeReport, QUEUE, resizePicture, sendMail } from './kinds.js';

const out = new URL('./out/', import.meta.url);
await mkdir(out, { recursive: true });

const worker = new Worker({ name: 'shop-node', queues: [QUEUE], slots: 4, graceMs: 5_000 });

worker.handle(sendMail, async ({ to, subject, text }, context) => {
  // No further attempt helps.
  if (!to.includes('@')) throw new Rejected(`${to} is no address`);
  // Like the first connection to a mail server that is busy.
  if (context.job.attempt === 1) throw new Error('the mail server is busy');
  // The id is the same in each attempt, so that a repetition sends the same mail.
  const file = `${context.job.id}.eml`;
  await writeFile(new URL(file, out), `To: ${to}\r\nSubject: ${subject}\r\nMessage-ID: <${file}>\r\n\r\n${text}\r\n`);
  context.log('mail to %s', to);
  return { file };
});

// It computes, so it would hold up the other handlers.
worker.handle(resizePicture, inThread(new URL('./picture.js', import.meta.url)));

worker.handle(makeReport, async ({ orders }, context) => {
  const file = `${context.job.id}.csv`;
  let { row, total } = context.job.checkpoint ?? { row: 0, total: 0 };
  while (row < orders) {
    row += 1;
    total += row * 100;
    await appendFile(new URL(file, out), `${row},${row * 100}\n`);
    context.saveCheckpoint({ row, total });
    context.progress((100 * row) / orders, `order ${row}`);
    await context.sleep(20);
  }
  return { file, total };
});

await worker.run();
process.exit(0);
