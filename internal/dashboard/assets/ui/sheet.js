// A table of coloured cells: a row for each thing, a column for each step of time. What a cell says is its label, so it
// needs neither the colour nor the mouse.

import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { plural } from '../core/format.js';
import { rangeText } from './histogram.js';
import { MarkLines } from './marks.js';

/** Rows that are shown at first. */
const ROWS = 10;
/** About how high a sheet of so many rows is, with its head, its caption and its legend. */
export const sheetHeight = (rows) => `${Math.min(ROWS, rows) * 1.55 + 7.5}rem`;
/** Most labels of the time axis. */
const LABELS = 8;

const two = (n) => String(n).padStart(2, '0');
const clock = (ms, seconds) => {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ''}`;
};

/**
 * `of` is `{columns, step, rows}`: the beginnings of the steps and their length in ms, and for each row `{name, href,
 * cells}`. A cell is null or `{text, is, href}`: its words, its class and where it leads. `noun` names a row. The table
 * stands still while one of its cells is hovered or focused.
 */
export function Sheet({ of, label, noun, marks = [], legend, children }) {
  const box = useRef(null);
  const [hovered, hover] = useState(false);
  const [focused, focus] = useState(false);
  const [most, showMost] = useState(ROWS);
  const [at, setAt] = useState(null);
  // A column that moves under the mouse would be another one when it is clicked.
  const shown = useRef(of);
  if (!hovered && !focused) shown.current = of;
  const { columns, step, rows: all } = shown.current;
  const rows = all.slice(0, most);
  useEffect(() => {
    // The newest step is at the end, which does not fit on a narrow screen.
    if (box.current) box.current.scrollLeft = box.current.scrollWidth;
  }, []);

  const cellAt = (row, column) => rows[row]?.cells[column] ?? null;
  // One cell can be reached with Tab, and the arrow keys lead to the others.
  const first = { row: 0, column: rows[0].cells.findLastIndex(Boolean) };
  const place = at && cellAt(at.row, at.column) ? at : first;
  const go = (row, column, towards) => {
    for (let next = column; next >= 0 && next < columns.length; next += towards) {
      if (!cellAt(row, next)) continue;
      setAt({ row, column: next });
      box.current.querySelector(`[data-cell="${row}/${next}"]`)?.focus();
      return true;
    }
    return false;
  };
  const move = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.dataset.cell) return;
    const { row, column } = place;
    const other = { ArrowUp: row - 1, ArrowDown: row + 1 }[event.key];
    if (event.key === 'ArrowLeft') go(row, column - 1, -1);
    else if (event.key === 'ArrowRight') go(row, column + 1, 1);
    else if (event.key === 'Home') go(row, 0, 1);
    else if (event.key === 'End') go(row, columns.length - 1, -1);
    else if (other === undefined) return;
    // The nearest cell of the row above or below: the same step, or one before it, or one after it.
    else if (rows[other]) go(other, column, -1) || go(other, column, 1);
    event.preventDefault();
  };
  const pointed = (event) => {
    const cell = event.target.closest?.('[data-cell]');
    if (!cell) return;
    const [row, column] = cell.dataset.cell.split('/').map(Number);
    setAt({ row, column });
  };

  const every = Math.ceil(columns.length / LABELS);
  const heads = columns.filter((_, i) => i % every === 0);
  const said = at && (hovered || focused) ? cellAt(at.row, at.column) : null;
  return html`<figure class="sheet">
    <div
      ref=${box}
      class="scroll"
      onPointerEnter=${(event) => event.pointerType === 'mouse' && hover(true)}
      onPointerLeave=${() => hover(false)}
      onPointerOver=${pointed}
      onfocusin=${(event) => {
        focus(true);
        pointed(event);
      }}
      onfocusout=${(event) => focus(event.currentTarget.contains(event.relatedTarget))}
      onKeyDown=${move}
    >
      <div class=${cls('plot', marks.length > 0 && 'marked')} style=${{ '--columns': columns.length }}>
        <${MarkLines} marks=${marks} from=${columns[0]} to=${columns.at(-1) + step} />
        <table aria-label=${label}>
          <thead>
            <tr>
              <th scope="col">${noun}</th>
              ${heads.map(
                (ms, i) => html`<th key=${ms} scope="col" colspan=${Math.min(every, columns.length - i * every)}>
                  ${clock(ms, step < 60000)}
                </th>`,
              )}
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (row, y) => html`<tr key=${row.name}>
                <th scope="row">
                  ${
                    row.href
                      ? html`<a class="clip" href=${row.href} title=${row.name}>${row.name}</a>`
                      : html`<span class="clip">${row.name}</span>`
                  }
                </th>
                ${row.cells.map((cell, x) => {
                  const ms = columns[x];
                  if (!cell) return html`<td key=${ms}></td>`;
                  return html`<td key=${ms}>
                    <a
                      class=${cell.is}
                      href=${cell.href}
                      data-cell=${`${y}/${x}`}
                      tabindex=${y === place.row && x === place.column ? 0 : -1}
                      aria-label=${`${row.name}, ${rangeText(ms, ms + step)}: ${cell.text}`}
                      title=${`${row.name}, ${rangeText(ms, ms + step)}: ${cell.text}`}
                    ></a>
                  </td>`;
                })}
              </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </div>
    <figcaption>
      <p class="said">
        ${
          said
            ? html`
              <b>${rows[at.row].name}</b>${' '}
              <span class="num">${rangeText(columns[at.column], columns[at.column] + step)}</span>${' '}
              <span class="num">${said.text}</span>
            `
            : html`<span class="faint">
              Point at a cell for its numbers, or use Tab and the arrow keys. ${children}
            </span>`
        }
      </p>
      <div class="row apart">
        <ul class="legend" aria-label="Colours">
          ${legend.map(([is, words]) => html`<li key=${words}><i class=${is}></i>${words}</li>`)}
        </ul>
        ${
          all.length > rows.length &&
          html`<button type="button" class="small" onClick=${() => showMost(Infinity)}>
            ${plural(all.length - rows.length, `more ${noun.toLowerCase()}`)}
          </button>`
        }
      </div>
    </figcaption>
  </figure>`;
}
