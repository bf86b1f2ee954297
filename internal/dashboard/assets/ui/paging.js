// The buttons that lead through a long listing.

import { html } from '../core/dom.js';

/** The way through a listing by cursor. */
export function Pages({ cursor, next, change }) {
  if (!cursor && !next) return null;
  return html`<div class="more row">
    ${
      cursor &&
      html`<button type="button" onClick=${() => change({ cursor: null }, { replace: false })}>Newest</button>`
    }
    ${next && html`<button type="button" onClick=${() => change({ cursor: next }, { replace: false })}>Older</button>`}
  </div>`;
}

/** The way through a listing by key. The address has the place, so that the browser leads back. */
export function KeyPages({ after, next, change }) {
  if (!after && !next) return null;
  return html`<div class="more row">
    ${after && html`<button type="button" onClick=${() => change({ after: null }, { replace: false })}>First</button>`}
    ${next && html`<button type="button" onClick=${() => change({ after: next }, { replace: false })}>More</button>`}
  </div>`;
}
