// The filter bar: words with completion, kept in the address.
import { html, useEffect, useId, useRef, useState } from '../core/dom.js';
import { readAll, useQuery } from '../core/query.js';
import { Icon } from './base.js';

export { quoted, withWord, wordOf } from '../core/words.js';

const states = ['waiting', 'executing', 'retrying', 'completed', 'failed', 'cancelled'];
const spans = ['<10m', '<1h', '<24h', '<7d', '>1h'];
const fields = [
  ['state:', 'where it is in its life'],
  ['kind:', 'what it does'],
  ['queue:', 'the line it waits in'],
  ['due:', 'within a span, or after a date'],
  ['created:', 'younger than a span, or since a date'],
  ['finished:', 'ended within a span, or since a date'],
  ['unique_key:', 'its unique key'],
  ['order:', 'its order key'],
  ['limit:', 'its limit key'],
  ['host:', 'the host that it calls'],
  ['batch:', 'the batch that it belongs to'],
  ['tag:', 'one of its tags'],
  ['schedule:', 'made by this schedule'],
  ['error:', 'words of its last error'],
  ['group:', 'fingerprint of a group of dead letters'],
  ['dead_letter:', 'open, replayed or discarded'],
  ['operation:', 'made by this bulk operation'],
  ['attempt:', 'attempts used: 3, >2 or 2..4'],
  ['runner:', 'its newest attempt is on this runner'],
  ['took:', 'how long its newest attempt ran: >5s'],
  ['id:', 'one job'],
  ['payload.', 'a place in its payload: payload.user.id:42'],
];

/** Words as they are typed: quotes may still be open. */
const TYPED = /(?:[^\s"]|"(?:\\.|[^"\\])*(?:"|\\?$))+/g;

/** The word at the cursor, without the minus that negates it. Spaces within quotes belong to it. */
function wordAt(text, cursor) {
  const found = [...text.matchAll(TYPED)].find(
    ({ index, 0: word }) => index <= cursor && cursor <= index + word.length,
  );
  let from = found ? found.index : cursor;
  const to = found ? found.index + found[0].length : cursor;
  if (text[from] === '-' && from < cursor) from += 1;
  return { from, to, word: text.slice(from, cursor) };
}

/** `words` are those that it completes, as `[word, meaning]`, and `more` has values of some of them. */
export function FilterBar({ value, on, wrong, label = 'Filter', id = 'filter', words = fields, more = {}, example }) {
  const [text, setText] = useState(value);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const [cursor, setCursor] = useState(0);
  const input = useRef(null);
  const list = useId();
  // What this box has asked for last, as the address has it: without the spaces around it.
  const asked = useRef(value);
  const kinds = useQuery(open ? '/v1/kinds' : null);
  const queues = useQuery(open ? '/v1/queues' : null);
  const schedules = useQuery(open && /schedule:/.test(text) ? '/v1/schedules?all' : null, { read: readAll });
  useEffect(() => {
    // The answer to what was typed comes while the user types on, and must not take away what has come since.
    if (value !== asked.current || document.activeElement !== input.current) setText(value);
    asked.current = value;
  }, [value]);
  const search = (next) => {
    asked.current = next.trim();
    on(next.trim());
  };

  const { from, to, word } = wordAt(text, cursor);
  const colon = word.indexOf(':');
  const values = {
    state: states,
    dead_letter: ['open', 'replayed', 'discarded'],
    due: ['<0s', ...spans],
    created: spans,
    finished: spans,
    kind: kinds.data?.data.map((k) => k.kind) ?? [],
    queue: queues.data?.data.map((q) => q.name) ?? [],
    schedule: schedules.data?.data.map((s) => s.name) ?? [],
    ...more,
  };
  let choices = [];
  if (open) {
    if (colon < 0)
      choices = words.filter(([name]) => name.startsWith(word)).map(([name, what]) => ({ text: name, what }));
    else {
      const field = word.slice(0, colon);
      // Behind a `|` comes another value of the same word.
      const last = word.lastIndexOf('|') + 1 || colon + 1;
      const begun = word.slice(last);
      choices = (values[field] ?? [])
        .filter((v) => v.startsWith(begun) && v !== begun)
        .slice(0, 50)
        .map((v) => ({ text: `${word.slice(0, last)}${v}`, end: true }));
    }
  }
  const take = (choice) => {
    const next = `${text.slice(0, from)}${choice.text}${choice.end ? ' ' : ''}${text.slice(to).replace(/^ /, '')}`;
    const place = from + choice.text.length + (choice.end ? 1 : 0);
    // At once, and not with the next frame: the user may have typed on by then, and the cursor would jump back.
    input.current.focus();
    input.current.value = next;
    input.current.setSelectionRange(place, place);
    setText(next);
    setAt(-1);
    setCursor(place);
    if (choice.end) {
      search(next);
      // Until more is typed, the list would only cover what was found.
      setOpen(false);
    }
  };
  const key = (event) => {
    if (event.key === 'ArrowDown' && choices.length) {
      event.preventDefault();
      setAt((at + 1) % choices.length);
    } else if (event.key === 'ArrowUp' && choices.length) {
      event.preventDefault();
      setAt((at + choices.length - 1) % choices.length);
    } else if (event.key === 'Tab' && choices.length && word && !event.shiftKey) {
      event.preventDefault();
      take(choices[Math.max(0, at)]);
    } else if (event.key === 'Enter') {
      event.preventDefault();
      if (at >= 0 && choices[at]) take(choices[at]);
      else {
        search(text);
        setOpen(false);
      }
    } else if (event.key === 'Escape' && open) {
      event.stopPropagation();
      setOpen(false);
    }
  };
  const moved = (event) => setCursor(event.target.selectionStart ?? 0);
  return html`<div class="filter">
    <${Icon} of="search" />
    <label class="hidden-visually" for=${id}>${label}</label>
    <input
      id=${id}
      ref=${input}
      value=${text}
      role="combobox"
      aria-expanded=${String(open && choices.length > 0)}
      aria-controls=${list}
      aria-autocomplete="list"
      aria-activedescendant=${at >= 0 ? `${list}-${at}` : undefined}
      aria-invalid=${wrong ? 'true' : undefined}
      autocomplete="off"
      spellcheck=${false}
      placeholder=${`Filter, for example ${example ?? 'state:failed kind:email payload.user.id:42'}, or any words`}
      onInput=${(event) => {
        setText(event.target.value);
        moved(event);
        setOpen(true);
        setAt(-1);
      }}
      onFocus=${(event) => {
        moved(event);
        setOpen(true);
      }}
      onClick=${moved}
      onKeyUp=${moved}
      onKeyDown=${key}
      onBlur=${() =>
        setTimeout(() => {
          if (document.activeElement !== input.current) setOpen(false);
        }, 150)}
    />
    ${
      open &&
      choices.length > 0 &&
      html`<ul class="choices" id=${list} role="listbox" aria-label="Completions">
        ${choices.map(
          (choice, i) => html`
            <li
              key=${choice.text}
              id=${`${list}-${i}`}
              role="option"
              aria-selected=${String(i === at)}
              onMouseDown=${(event) => {
                event.preventDefault();
                take(choice);
              }}
            >
              ${choice.text}
              ${choice.what && html`<span>${choice.what}</span>`}
            </li>
          `,
        )}
      </ul>`
    }
  </div>`;
}
