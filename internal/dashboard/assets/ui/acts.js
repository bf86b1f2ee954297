// What operators did to one thing, newest first.

import { url } from '../core/api.js';
import { html } from '../core/dom.js';
import { writeExact } from '../core/exact.js';
import { useQuery } from '../core/query.js';
import { Panel, Time } from './base.js';

const told = (detail) =>
  Object.entries(detail ?? {})
    .map(
      ([name, value]) => `${name} ${value === null ? 'none' : typeof value === 'object' ? writeExact(value) : value}`,
    )
    .join(', ');

/** Names of queues, schedules and keys may be the same: `of` says which of them is meant. */
export function Acts({ target, of }) {
  const acts = useQuery(url('/v1/audit', { target, limit: 50 }), { every: 30000 });
  const mine = acts.data?.data.filter((act) => act.action.startsWith(`${of}.`)) ?? [];
  if (!mine.length) return null;
  return html`<${Panel} title="What operators did" side=${html`<a href=${url('/audit', { target })}>Audit</a>`}>
    <ul class="plain-list">
      ${mine.slice(0, 8).map(
        (act) => html`<li key=${act.id} class="wrap">
          <b>${act.action.slice(of.length + 1)}</b> by ${act.actor} <span class="soft"><${Time} at=${act.at} /></span>
          ${act.detail && html`<div class="faint clamp" title=${told(act.detail)}>${told(act.detail)}</div>`}
        </li>`,
      )}
    </ul>
  </${Panel}>`;
}
