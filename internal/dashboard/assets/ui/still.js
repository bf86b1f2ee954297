// A list that stands still while the user is at one of its rows. New rows are counted meanwhile.

import { html, useEffect, useRef, useState } from '../core/dom.js';
import { plural } from '../core/format.js';

/**
 * `rows` as they stood when the mouse or the focus came to one of them, or when `held` began; what is known anew of
 * them is put in. `key` names the listing: the rows of another one are shown at once. The properties of `hold` belong
 * to the element around the rows and the button that shows the new ones: a user goes from a row to that button.
 * The newest row comes first, unless the list goes `forwards` or is `mixed`: a mixed one has any order, which changes.
 * `idOf` tells rows apart. `free` ends what the focus holds until it comes to a row again. A row that it gets, because
 * the user has acted on it, leaves as soon as the listing does not have it.
 */
export function useStill(rows, key, held, { forwards = false, mixed = false, idOf = (row) => row.id } = {}) {
  const kept = useRef({ key: null, rows: [], done: new Set() });
  const [hovered, hover] = useState(false);
  const [focused, focus] = useState(false);
  const [shown, draw] = useState(0);
  const frozen = held || hovered || focused;
  const own = kept.current;
  // Only once the new rows are drawn: the effects of an earlier drawing may still be due when the user shows them.
  useEffect(() => {
    if (!own.goesOn) return;
    own.goesOn = false;
    own.place?.querySelector('[data-row] a, [data-row] button')?.focus();
  }, [shown]);
  // A browser takes the focus from a button that is disabled or gone, and tells the page nothing.
  useEffect(() => {
    if (focused && !own.place.contains(document.activeElement)) focus(false);
  });
  if (!frozen || own.key !== key || own.rows.length === 0) {
    own.key = key;
    own.rows = rows;
  } else if (own.latest !== rows) {
    const news = new Map(rows.map((row) => [idOf(row), row]));
    own.rows = own.rows
      .filter((row) => news.has(idOf(row)) || !own.done.has(idOf(row)))
      .map((row) => news.get(idOf(row)) ?? row);
    if (own.rows.length === 0) own.rows = rows;
  }
  own.latest = rows;
  const known = new Set(own.rows.map(idOf));
  const newest = own.rows[0];
  // An older row that moves up because others are gone is not new.
  const isNew = (row) => !known.has(idOf(row)) && (mixed || idOf(row) > idOf(newest));
  const fresh = frozen && newest && !forwards ? rows.filter(isNew).length : 0;
  return {
    rows: own.rows,
    fresh,
    /** There may be more new ones than one page has. */
    all: fresh > 0 && fresh === rows.length,
    /** Those of the same millisecond may have been accepted with the newest one. */
    since: newest?.created_at && new Date(Date.parse(newest.created_at) + 1).toISOString(),
    show: (event) => {
      own.rows = rows;
      // The button goes. A user of the keyboard, whose click has no detail, goes on at the newest row.
      own.goesOn = event?.detail === 0;
      draw((n) => n + 1);
      return new Set(rows.map(idOf));
    },
    free: (row) => {
      if (row) own.done.add(idOf(row));
      focus(false);
    },
    hold: {
      onPointerEnter: (event) => event.pointerType === 'mouse' && hover(true),
      onPointerLeave: () => hover(false),
      onfocusin: (event) => {
        own.place = event.currentTarget;
        focus(true);
      },
      onfocusout: (event) => focus(event.currentTarget.contains(event.relatedTarget)),
    },
  };
}

/** A list that stands still, under the count of its new rows. `one` is what a row is called. */
export const Still = ({ still, one, children }) => html`<div ...${still.hold}>
  <${NewRows} still=${still} one=${one} />
  ${children}
</div>`;

/** The count of the rows that are not shown yet, over the head of the table: no row moves when it comes. */
const NewRows = ({ still, one }) =>
  html`<div class="news" role="status">
    ${
      still.fresh > 0 &&
      html`<span class="fresh">
        <b class="num">${plural(still.fresh, one)}</b>${' '}
        <button type="button" class="small" onClick=${still.show}>Show</button>
      </span>`
    }
  </div>`;
