import { parentPort, workerData } from 'node:worker_threads';

import { Link } from './link.js';
import type { LinkSettings, ToLink } from './messages.js';

if (parentPort === null) throw new Error('this module runs in a thread of a worker');
const port = parentPort;
const link = new Link(workerData as LinkSettings, (message) => port.postMessage(message));
port.on('message', (message: ToLink) => link.receive(message));
void link.start();
