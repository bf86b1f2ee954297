// The command palette: screens, queues, schedules, limits, jobs and a few actions, found by what is typed.

import { may, seg, url } from '../core/api.js';
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { readAll, useQuery } from '../core/query.js';
import { goOn } from '../core/route.js';
import { screens } from '../core/screens.js';
import { tell } from './base.js';
import { ask } from './dialog.js';
import { quoted } from './filter.js';
import { pause, resume } from './queues.js';

/** Entries that are shown at once. */
const MANY = 12;
const ID = /^[0-9a-f]{8}-[0-9a-f-]{27}$/i;

/** How well an entry fits: 0 is best, Infinity is not at all. Letters may be left out, but not turned around. */
export function rank(text, typed) {
  const [name, word] = [text.toLowerCase(), typed.toLowerCase()];
  if (name === word) return 0;
  if (name.startsWith(word)) return 1;
  if (name.split(/[\s._-]+/).some((part) => part.startsWith(word))) return 2;
  if (name.includes(word)) return 3;
  let at = -1;
  for (const letter of word.replaceAll(' ', '')) {
    at = name.indexOf(letter, at + 1);
    if (at < 0) return Infinity;
  }
  return 4;
}

/** All that the palette leads to, with what each entry does. */
function entriesOf(typed, queues, schedules, limits) {
  const to = (name, what, path) => ({ name, what, act: () => goOn(path) });
  const entries = screens
    .filter((screen) => screen.item && (!screen.need || may(screen.need)))
    .map((screen) => to(screen.item[0], 'screen', screen.item[1]));
  entries.push(to('Incident page of this range', 'screen', '/incident'));
  for (const queue of queues) {
    entries.push(to(queue.name, 'queue', `/queues/${seg(queue.name)}`));
    if (!may('admin')) continue;
    entries.push(
      queue.paused
        ? { name: `Resume ${queue.name}`, what: 'action', act: () => resume(queue) }
        : { name: `Pause ${queue.name}`, what: 'action', act: () => pause(queue) },
    );
  }
  for (const { name } of schedules) entries.push(to(name, 'schedule', `/schedules/${seg(name)}`));
  for (const { name } of limits) entries.push(to(name, 'limit', `/limits/${seg(name)}`));
  const found = entries
    .map((entry, i) => ({ entry, i, rank: typed ? rank(entry.name, typed) : entry.what === 'screen' ? 0 : 1 }))
    .filter((one) => one.rank < Infinity)
    .sort((a, b) => a.rank - b.rank || a.i - b.i)
    .map((one) => one.entry)
    .slice(0, MANY);
  if (ID.test(typed)) return [to(typed, 'job', `/jobs/${typed.toLowerCase()}`)];
  if (typed)
    found.push(to(`Jobs with ${typed}`, 'search', url('/jobs', { q: /[:"]/.test(typed) ? typed : quoted(typed) })));
  return found;
}

function Palette({ close }) {
  const [typed, type] = useState('');
  const [at, setAt] = useState(0);
  const input = useRef(null);
  const queues = useQuery('/v1/queues');
  const schedules = useQuery('/v1/schedules?all', { read: readAll });
  const limits = useQuery('/v1/limits');
  useEffect(() => input.current.focus(), []);
  const names = [queues, schedules, limits].map((found) => found.data?.data ?? []);
  const entries = entriesOf(typed.trim(), ...names);
  const here = Math.min(at, entries.length - 1);
  const take = (entry) => {
    close();
    // A dialog of the entry opens when this one is gone.
    setTimeout(() => Promise.resolve(entry.act()).catch((problem) => tell(problem.message, 'bad')), 0);
  };
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((here + step + entries.length) % entries.length);
    } else if (event.key === 'Enter') {
      event.preventDefault();
      if (entries[here]) take(entries[here]);
    }
  };
  return html`<div class="palette">
    <input
      ref=${input}
      value=${typed}
      role="combobox"
      aria-label="Screen, queue, schedule, job or action"
      aria-expanded="true"
      aria-controls="palette-list"
      aria-activedescendant=${`palette-${here}`}
      placeholder="Screen, queue, schedule, job id, action"
      autocomplete="off"
      spellcheck=${false}
      onInput=${(event) => {
        type(event.target.value);
        setAt(0);
      }}
      onKeyDown=${key}
    />
    <ul id="palette-list" role="listbox" aria-label="Found">
      ${entries.map(
        (entry, i) => html`
          <li
            key=${`${entry.what} ${entry.name}`}
            id=${`palette-${i}`}
            role="option"
            aria-selected=${String(i === here)}
            class=${cls(i === here && 'at')}
            onMouseDown=${(event) => {
              event.preventDefault();
              take(entry);
            }}
          >
            ${entry.name}<span class="faint">${entry.what}</span>
          </li>
        `,
      )}
    </ul>
  </div>`;
}

/** Open the palette. */
export const openPalette = () =>
  ask({
    title: 'Go to',
    action: null,
    cancel: 'Close',
    body: ({ close }) => html`<${Palette} close=${close} />`,
  });
