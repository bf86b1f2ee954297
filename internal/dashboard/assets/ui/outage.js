// One banner for all screens while MySQL or the server does not answer.

import { html, useEffect, useRef } from '../core/dom.js';
import { span } from '../core/format.js';
import { outage } from '../core/known.js';
import { useNow } from './base.js';

/** Does the server not answer, as far as the readings of the frame know? */
export const isSilent = (...readings) => readings.some((reading) => reading.error?.status === 0);

export function Outage({ ready, stats }) {
  useNow();
  const good = useRef(Date.now());
  // A server that says so itself answers, however long its other answers wait for MySQL.
  const silent = isSilent(ready) || (isSilent(stats) && ready.data?.mysql !== false);
  const out = silent || (ready.data && !ready.data.mysql);
  useEffect(() => {
    if (!out && stats.data) good.current = Date.now();
    outage.set(out ? good.current : null);
  }, [out, stats.data]);
  if (!out) return null;
  return html`<div class="outage" role="alert">
    <b>${silent ? 'The server does not answer' : 'MySQL does not answer'}.</b> What is shown is as of${' '}
    ${span(Math.max(1000, Date.now() - good.current))} ago, and is read again by itself.
  </div>`;
}
