// The kinds of the shop. Producers and the worker share this module.

import { kind } from 'tickr';

export const QUEUE = 'shop-node';

/** @type {import('tickr').Kind<{ to: string, subject: string, text: string }, { file: string }>} */
export const sendMail = kind('shop.node.mail', { queue: QUEUE });
/** @type {import('tickr').Kind<{ width: number }, { file: string, bytes: number }>} */
export const resizePicture = kind('shop.node.picture', { queue: QUEUE });
/** @type {import('tickr').Kind<{ orders: number }, { file: string, total: number }>} */
export const makeReport = kind('shop.node.report', { queue: QUEUE });
