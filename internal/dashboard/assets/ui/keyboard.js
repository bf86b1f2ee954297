// Keyboard shortcuts, on all screens.

import { may } from '../core/api.js';
import { html } from '../core/dom.js';
import { goOn } from '../core/route.js';
import { screens } from '../core/screens.js';
import { ask } from './dialog.js';
import { openPalette } from './palette.js';

const shortcuts = [
  ['Ctrl K', 'Go to a screen, queue, schedule or job, or act'],
  ['?', 'This list'],
  ['/', 'Filter, or find a job'],
  [
    'g then a letter',
    screens
      .filter((s) => s.item)
      .map((s) => `${s.item[3]} ${s.item[0]}`)
      .join(' · '),
  ],
  ['j · k', 'Next and previous row'],
  ['Enter', 'Open the row; in the explorer and the tail beside the list'],
  ['Space', 'Pause the tail, and go on'],
  ['x', 'Select the row'],
  ['Esc', 'Close, clear the selection'],
];
export function help() {
  ask({
    title: 'Keyboard',
    action: null,
    cancel: 'Close',
    body: () =>
      html`<div class="keys">${shortcuts.map(([key, what]) => html`<kbd>${key}</kbd><span>${what}</span>`)}</div>`,
  });
}

/** Mark a row: `j` and `k` go on from it, and `x` selects it. */
export function mark(row) {
  for (const other of document.querySelectorAll('tr[data-row].at')) {
    if (other !== row) other.classList.remove('at');
  }
  row?.classList.add('at');
}

// The row that the user clicks, or goes to with Tab, is the one that the keys mean.
for (const type of ['pointerdown', 'focusin'])
  document.addEventListener(type, (event) => {
    const row = event.target.closest?.('tr[data-row]');
    if (row) mark(row);
  });

let going = 0;
addEventListener('keydown', (event) => {
  if ((event.metaKey || event.ctrlKey) && event.key === 'k' && !document.querySelector('dialog[open]')) {
    event.preventDefault();
    openPalette();
    return undefined;
  }
  if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest?.('input, textarea, select, [contenteditable]')) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  if (event.key === '?') return help();
  if (event.key === '/') {
    event.preventDefault();
    return (document.querySelector('.filter input') ?? document.getElementById('find'))?.focus();
  }
  if (event.key === 'g') {
    going = Date.now();
    return undefined;
  }
  if (Date.now() - going < 1500) {
    going = 0;
    const screen = screens.find((s) => s.item?.[3] === event.key && (!s.need || may(s.need)));
    if (screen) goOn(screen.item[1]);
    return undefined;
  }
  if (event.key === 'j' || event.key === 'k') {
    const rows = [...document.querySelectorAll('tr[data-row]')];
    if (!rows.length) return undefined;
    // The row of the job that stands beside the list, or the one that was marked last.
    const open = rows.findIndex((row) => row.dataset.current);
    const marked = rows.findIndex((row) => row.classList.contains('at'));
    const at = marked >= 0 ? marked : open;
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === 'j' ? 1 : -1)))];
    mark(next);
    next.querySelector('a:not([tabindex="-1"]), button[aria-expanded]')?.focus();
    next.scrollIntoView({ block: 'nearest' });
  } else if (event.key === 'x') {
    document.querySelector('tr.at input[type=checkbox]')?.click();
  } else if (event.key === 'Escape') {
    document.querySelector('[data-escape]')?.click();
  }
  return undefined;
});
