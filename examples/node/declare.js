// Declares the kinds, as an operator does once. The key needs the scope `admin`; `tickr dev` asks for none.

import { makeReport, QUEUE, resizePicture, sendMail } from './kinds.js';

const text = { type: 'string' };
const schemas = {
  [sendMail.name]: { properties: { to: text, subject: text, text }, required: ['to', 'subject', 'text'] },
  [resizePicture.name]: { properties: { width: { type: 'integer', minimum: 1, maximum: 1000 } }, required: ['width'] },
  [makeReport.name]: { properties: { orders: { type: 'integer' } }, required: ['orders'] },
};
const [url] = process.env.TICKR_URL.split(',');
const token = process.env.TICKR_TOKEN;
for (const [name, fields] of Object.entries(schemas)) {
  const answer = await fetch(`${url}/v1/kinds/${name}`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) },
    body: JSON.stringify({ queue: QUEUE, schema: { type: 'object', ...fields }, retry: { base_ms: 200 } }),
  });
  if (!answer.ok) throw new Error(`${name} could not be declared: ${await answer.text()}`);
}
