// Sells one picture: three jobs, of which the report waits for the other two.

import { Client } from 'tickr';

import { makeReport, resizePicture, sendMail } from './kinds.js';

const client = new Client();
const mail = await client.enqueue(sendMail, { to: 'ada@example.com', subject: 'Your picture', text: 'Thank you.' });
const picture = await client.enqueue(resizePicture, { width: 64 }, { priority: 2 });
const report = await client.enqueue(makeReport, { orders: 20 }, { after: [mail.id, picture.id] });
let failed = 0;
for (const job of [mail, picture, report]) {
  const { state, result, last_error } = await client.wait(job, { timeoutMs: 60_000 });
  console.log(`${job.job.kind} ${job.id}: ${state} ${JSON.stringify(result ?? last_error)}`);
  if (state !== 'completed') failed += 1;
}
process.exit(failed > 0 ? 1 : 0);
