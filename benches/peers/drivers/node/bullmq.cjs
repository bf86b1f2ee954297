// The driver of BullMQ. NODE_PATH names the folder with its packages, which only CommonJS reads.
'use strict';

const fs = require('node:fs');
const { Queue, Worker } = require('bullmq');
const { Redis } = require('ioredis');

const QUEUE = 'noop';
const PAD = 'x'.repeat(176);
/** Milliseconds for which lines of the file of executions are collected. */
const COLLECT_MS = 5;

const number = (name) => {
  const value = Number(process.env[name]);
  if (process.env[name] === undefined || Number.isNaN(value)) throw new Error(`${name} is no number`);
  return value;
};
const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const connect = () => new Redis({ path: process.env.PEER_REDIS_SOCKET, maxRetriesPerRequest: null });

/** The load, as the README describes it. */
const readLoad = () => ({
  callers: number('PEER_CALLERS'),
  batch: number('PEER_BATCH'),
  first: number('PEER_FIRST'),
  jobs: number('PEER_JOBS'),
  seconds: number('PEER_SECONDS'),
  dueUs: number('PEER_DUE_US'),
  withinUs: number('PEER_DUE_WITHIN_US'),
});

function makeJob(load, place) {
  const opts = { removeOnComplete: true };
  if (load.dueUs > 0) {
    const hash = Math.imul(place, 2654435761) >>> 0;
    const dueUs = load.dueUs + Math.floor((hash * load.withinUs) / 2 ** 32);
    // A delay has whole milliseconds, and is rounded up, because no job may start early.
    opts.delay = Math.max(0, Math.ceil(dueUs / 1000 - Date.now()));
  }
  return { name: 'noop', data: { id: load.first + place, pad: PAD }, opts };
}

async function enqueue() {
  const load = readLoad();
  const queue = new Queue(QUEUE, { connection: connect() });
  await queue.waitUntilReady();
  const beganUs = nowUs();
  const call = async (caller) => {
    let sent = 0;
    for (let turn = 0; ; turn++) {
      const start = (turn * load.callers + caller) * load.batch;
      if (start >= load.jobs || nowUs() - beganUs >= load.seconds * 1e6) return sent;
      const count = Math.min(load.batch, load.jobs - start);
      if (load.batch === 1) {
        const { name, data, opts } = makeJob(load, start);
        await queue.add(name, data, opts);
      } else {
        await queue.addBulk(Array.from({ length: count }, (_, at) => makeJob(load, start + at)));
      }
      sent += count;
    }
  };
  const sent = await Promise.all(Array.from({ length: load.callers }, (_, caller) => call(caller)));
  const jobs = sent.reduce((sum, one) => sum + one, 0);
  console.log(JSON.stringify({ jobs, seconds: (nowUs() - beganUs) / 1e6, began_us: beganUs }));
}

function work() {
  const file = fs.openSync(process.env.PEER_EXECUTIONS, 'a');
  let lines = [];
  setInterval(() => {
    if (lines.length > 0) fs.writeSync(file, lines.join(''));
    lines = [];
  }, COLLECT_MS);
  const handle = async (job) => {
    lines.push(`${job.data.id} ${nowUs()}\n`);
  };
  const worker = new Worker(QUEUE, handle, { connection: connect(), concurrency: number('PEER_WORKERS') });
  worker.on('error', (error) => console.error(error));
}

async function main(command) {
  if (command === 'work') return work();
  if (command === 'enqueue') await enqueue();
  else if (command !== 'prepare') throw new Error(`unknown command ${command}: there are prepare, enqueue and work`);
  process.exit(0);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
