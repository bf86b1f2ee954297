// A form made from a JSON Schema (2020-12, as schemars writes it). What cannot be drawn is edited as JSON, and what the
// schema does not know stays in the value. What cannot be sent makes its control invalid, so that the form around it
// says so.
import { html, useEffect, useRef, useState } from '../core/dom.js';
import { Field, Segment } from './base.js';
import { isSensitive } from './json.js';

const DEEP = 10;
const LINES = /^(text|html|body|message|content|markdown|description|comment|note)$/i;

const exact = typeof JSON.rawJSON === 'function';
const isRaw = (value) => exact && JSON.isRawJSON(value);
const plain = (value) => (isRaw(value) ? Number(value.rawJSON) : value);
const changes = (value, source) => typeof value === 'number' && source !== undefined && String(value) !== source;

/** JSON whose numbers stay as they were written, where the browser can: 9007199254740993, 1.10. */
const parse = (text) =>
  JSON.parse(
    text,
    exact ? (_, value, context) => (changes(value, context.source) ? JSON.rawJSON(context.source) : value) : undefined,
  );

/** The answer about a job or a schedule, with the numbers of its payload as they were written. */
export function parseWithPayload(text) {
  const body = JSON.parse(text);
  if (body && Object.hasOwn(body, 'payload')) body.payload = parse(text).payload;
  return body;
}

const kindOf = (value) =>
  value === null ? 'null' : Array.isArray(value) ? 'array' : isRaw(value) ? 'number' : typeof value;
const own = (object, name) => (kindOf(object) === 'object' && Object.hasOwn(object, name) ? object[name] : undefined);
const without = (object, name) => Object.fromEntries(Object.entries(object).filter(([key]) => key !== name));
const segment = (name) => String(name).replaceAll('~', '~0').replaceAll('/', '~1');
const same = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);
const isBig = (value) => Number.isInteger(plain(value)) && !Number.isSafeInteger(plain(value));
/** JSON with the numbers as a schema has them. The page reads schemas with plain numbers, so 1.0 is 1. */
const asInSchema = (value) => JSON.stringify(value, (_, part) => (isRaw(part) && !isBig(part) ? plain(part) : part));
/** Is `value` of a payload what a schema names? Whole numbers that no plain number holds are compared as they are. */
const isNamed = (named, value) => named === value || asInSchema(named) === asInSchema(value);

function join(one, other) {
  const out = { ...other, ...one };
  if (one.properties || other.properties) out.properties = { ...other.properties, ...one.properties };
  if (one.required || other.required) out.required = [...new Set([...(one.required ?? []), ...(other.required ?? [])])];
  if (isSensitive(one) || isSensitive(other)) out.writeOnly = true;
  return out;
}

/** A schema with its references and parts put into one. */
function whole(schema, root, depth = 0) {
  if (!schema || typeof schema !== 'object' || depth > 16) return {};
  const { $ref, allOf, ...rest } = schema;
  let out = rest;
  if (typeof $ref === 'string') {
    const names = $ref === '#' ? [] : $ref.startsWith('#/') ? $ref.slice(2).split('/') : null;
    const target = names?.reduce(
      (at, part) => own(at, decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~')),
      root,
    );
    out = join(out, whole(target, root, depth + 1));
  }
  for (const part of Array.isArray(allOf) ? allOf : []) out = join(out, whole(part, root, depth + 1));
  return out;
}

/** What to draw for a schema: `{kind, s, nullable, …}`. */
function shape(schema, root, depth = 0) {
  const s = whole(schema, root);
  if (depth > DEEP) return { kind: 'any', s };
  if (Array.isArray(s.type)) {
    const types = s.type.filter((type) => type !== 'null');
    const nullable = types.length < s.type.length;
    if (types.length === 1) return { ...shape({ ...s, type: types[0] }, root, depth + 1), nullable };
    return {
      kind: 'union',
      s,
      nullable,
      variants: types.map((type) => ({ ...s, type, title: undefined, description: undefined })),
    };
  }
  const options = s.anyOf ?? s.oneOf;
  if (Array.isArray(options)) {
    const parts = options.map((part) => whole(part, root));
    const left = parts.filter((part) => part.type !== 'null' && part.const !== null);
    const nullable = left.length < parts.length;
    const { anyOf: _any, oneOf: _one, ...base } = s;
    if (left.length === 1) return { ...shape(join(base, left[0]), root, depth + 1), nullable };
    if (left.every((part) => 'const' in part || part.enum)) {
      return {
        kind: 'choice',
        s,
        nullable,
        choices: left.flatMap((part) =>
          (part.enum ?? [part.const]).map((value) => ({ value, about: part.description })),
        ),
      };
    }
    const { title: _title, description: _description, default: _default, ...shared } = base;
    return { kind: 'union', s, nullable, variants: left.map((part) => join(part, shared)) };
  }
  if ('const' in s) return { kind: 'const', s };
  if (Array.isArray(s.enum))
    return {
      kind: 'choice',
      s,
      nullable: s.enum.includes(null),
      choices: s.enum.filter((value) => value !== null).map((value) => ({ value })),
    };
  const type = s.type ?? (s.properties ? 'object' : s.items || s.prefixItems ? 'array' : undefined);
  if (type === 'string') return { kind: 'text', s };
  if (type === 'integer' || type === 'number') return { kind: 'number', s, integer: type === 'integer' };
  if (type === 'boolean') return { kind: 'bool', s };
  if (type === 'array' && (s.items || s.prefixItems)) return { kind: 'list', s };
  if (type === 'object') {
    const more = s.additionalProperties ?? s.unevaluatedProperties;
    if (Object.keys(s.properties ?? {}).length > 0) return { kind: 'object', s };
    if (s.patternProperties) return { kind: 'any', s };
    if (more === false) return { kind: 'object', s };
    if (more && typeof more === 'object' && Object.keys(more).length > 0) return { kind: 'map', s };
  }
  return { kind: 'any', s };
}

const SUITS = {
  text: ['string'],
  number: ['number', 'string'],
  bool: ['boolean'],
  list: ['array'],
  object: ['object'],
  map: ['object'],
};
const suits = (what, value) =>
  value === undefined || value === null || !SUITS[what.kind] || SUITS[what.kind].includes(kindOf(value));

/** Would this value be one of the schema's? Enough to tell variants apart. */
function fits(schema, value, root, depth = 0) {
  const what = shape(schema, root);
  const { s } = what;
  if (value === null) return Boolean(what.nullable) || s.type === 'null' || (what.kind === 'any' && !s.type);
  if (depth > DEEP) return true;
  const inside = (part, child) => fits(part, child, root, depth + 1);
  switch (what.kind) {
    case 'const':
      return isNamed(s.const, value);
    case 'choice':
      return what.choices.some((choice) => isNamed(choice.value, value));
    case 'union':
      return what.variants.some((variant) => inside(variant, value));
    case 'number':
      return kindOf(value) === 'number' && (!what.integer || Number.isInteger(plain(value)));
    case 'list':
      return Array.isArray(value) && value.every((item, i) => inside(s.prefixItems?.[i] ?? s.items, item));
    case 'object': {
      if (kindOf(value) !== 'object' || (s.required ?? []).some((name) => !Object.hasOwn(value, name))) return false;
      const closed = (s.additionalProperties ?? s.unevaluatedProperties) === false;
      return Object.entries(value).every(([name, child]) => {
        const part = own(s.properties ?? {}, name);
        return part === undefined ? !closed : inside(part, child);
      });
    }
    case 'map':
      return kindOf(value) === 'object' && Object.values(value).every((child) => inside(s.additionalProperties, child));
    case 'any':
      return !s.type || s.type === kindOf(value);
    default:
      return SUITS[what.kind].includes(kindOf(value));
  }
}

/** What a form begins with: what must be there and can only be one thing, and room for what must be filled in. */
export function blank(schema, root = schema, depth = 0) {
  const what = shape(schema, root);
  const { s } = what;
  if (depth > DEEP) return undefined;
  if (what.kind === 'const') return s.const;
  if (what.kind === 'list')
    return Array.from(
      { length: s.prefixItems?.length ?? Math.min(s.minItems ?? 0, 20) },
      (_, i) => blank(s.prefixItems?.[i] ?? s.items, root, depth + 1) ?? empty(s.prefixItems?.[i] ?? s.items, root),
    );
  if (what.kind === 'map' || (what.kind === 'any' && s.type === 'object')) return {};
  if (what.kind === 'object') {
    const known = (s.required ?? []).map((name) => [name, blank(own(s.properties ?? {}, name), root, depth + 1)]);
    return Object.fromEntries(known.filter(([, value]) => value !== undefined));
  }
  return undefined;
}

/** A value for a new item of a list or map, which has to have one. */
function empty(schema, root) {
  const what = shape(schema, root);
  const begun = blank(schema, root);
  if (begun !== undefined) return begun;
  if (what.s.default !== undefined) return what.s.default;
  if (what.kind === 'union') return empty(what.variants[0], root);
  if (what.kind === 'choice') return what.choices[0]?.value ?? null;
  return { number: 0, bool: false, text: '' }[what.kind] ?? null;
}

/** Is this sensitive, or one of the forms that it can have? */
const hides = (schema, root) => {
  const s = whole(schema, root);
  return isSensitive(s) || [...(s.anyOf ?? []), ...(s.oneOf ?? [])].some((part) => isSensitive(whole(part, root)));
};

/** The value with what is sensitive in it replaced by dots. */
export function masked(value, schema, root = schema, depth = 0) {
  if (value === null || value === undefined || value === '' || depth > 64) return value;
  if (hides(schema, root)) return '••••••';
  const kind = kindOf(value);
  if (kind !== 'array' && kind !== 'object') return value;
  const s = whole(schema, root);
  const variants = [s, ...(s.anyOf ?? []), ...(s.oneOf ?? [])].map((part) => whole(part, root));
  // In doubt hidden: any variant may call a field sensitive.
  const child = (name, item) =>
    variants.reduce((shown, part) => {
      const of =
        kind === 'array'
          ? (part.prefixItems?.[name] ?? part.items)
          : (own(part.properties, name) ?? part.additionalProperties);
      return of ? masked(shown, of, root, depth + 1) : shown;
    }, item);
  return kind === 'array'
    ? value.map((item, i) => child(i, item))
    : Object.fromEntries(Object.entries(value).map(([name, item]) => [name, child(name, item)]));
}

/** Problems of the API that no part of this form shows. */
export const elsewhere = (errors, at = '/payload') =>
  errors.filter((error) => error.pointer !== at && !error.pointer.startsWith(`${at}/`));

/** Text of a schema, with its `code`. */
export const Said = ({ text }) => text.split('`').map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

/**
 * `value` may be undefined; `onChange` gets the next one. `errors` are those of a problem, and `at` is the pointer of
 * the value in the request. Put it into a form element: controls with what cannot be sent are invalid.
 */
export function SchemaForm({
  schema,
  value,
  onChange,
  id = 'payload',
  errors = [],
  at = '/payload',
  label = 'Payload',
}) {
  const [mode, setMode] = useState('form');
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  const what = shape(schema, schema);
  const draws = what.kind !== 'any' && suits(what, value);
  const json = mode === 'json' || !draws;
  // What the validator says of an object is said at the field that it means.
  const known = errors.map((error) => {
    const missing = /^"(.+)" is a required property$/.exec(error.detail);
    return missing ? { pointer: `${error.pointer}/${segment(missing[1])}`, detail: 'This is required.' } : error;
  });
  const c = { id, root: schema, errors: known, at };
  const turn = (next) => {
    const bad = box.current.querySelector(':invalid');
    if (bad?.validity.customError) bad.reportValidity();
    else setMode(next);
  };
  const secret = !open && !same(value, masked(value, schema));
  return html`<div class="schema stack tight" role="group" aria-label=${label} ref=${box}>
    ${
      draws &&
      html`<div class="row end">
        <${Segment} label=${`${label} as`} of=${[['form', 'Form'], ['json', 'JSON']]} is=${mode} on=${turn} />
      </div>`
    }
    ${
      json &&
      secret &&
      html`<div class="note">
        There are values in it that the schema calls sensitive.${' '}
        <button type="button" class="small" onClick=${() => setOpen(true)}>Show the JSON</button>
      </div>`
    }
    ${
      json &&
      !secret &&
      html`
        <${JsonPart}
          c=${c}
          label=${`${label} as JSON`}
          at=${at}
          fid=${`${id}-json`}
          value=${value}
          set=${(next) => onChange(next === undefined ? {} : next)}
          rows=${10}
        />
      `
    }
    ${
      !json && html`<${Part} c=${c} schema=${schema} at=${at} value=${value} set=${onChange} required depth=${0} top />`
    }
  </div>`;
}

/** Text in a control: that of the value, or what was typed as long as the value is still what the typing made of it. */
function useDraft(value, write) {
  const [draft, keep] = useState(null);
  return [draft && same(draft.value, value) ? draft.text : write(value), (text, next) => keep({ text, value: next })];
}

/** Makes a control invalid while something is wrong with it. */
function useValidity(wrong) {
  const control = useRef(null);
  useEffect(() => control.current?.setCustomValidity?.(wrong ?? ''));
  return control;
}

const troubles = (c, at, deep) =>
  c.errors
    .filter((e) => e.pointer === at || (deep && e.pointer.startsWith(`${at}/`)))
    .map((e) => (e.pointer === at ? e.detail : `${e.pointer.slice(at.length)} ${e.detail}`));
const Wrong = ({ all }) => (all.length > 0 ? html`<span class="wrong" role="alert">${all.join(' · ')}</span>` : null);
const Named = ({ label, required }) => html`${label}${required && html` <span class="faint">required</span>`}`;

function Part(all) {
  const { c, schema, at, value, depth, name, label } = all;
  const what = shape(schema, c.root);
  const part = {
    ...all,
    what,
    s: what.s,
    label: label ?? what.s.title ?? name ?? 'Value',
    fid: `${c.id}${at.slice(c.at.length).replace(/[^\w-]/g, '-')}`,
  };
  if (depth > DEEP || what.kind === 'any' || !suits(what, value)) return html`<${JsonPart} ...${part} />`;
  const drawn = { object: ObjectPart, map: ObjectPart, list: ListPart, union: UnionPart }[what.kind];
  return drawn ? html`<${drawn} ...${part} />` : html`<${Leaf} ...${part} />`;
}

function JsonPart({ c, at, fid, s = {}, label, value, set, required, entry, rows = 3 }) {
  const [text, keep] = useDraft(value, (v) => (v === undefined ? '' : JSON.stringify(v, null, 2)));
  const [open, setOpen] = useState(false);
  let broken = null;
  try {
    if (text.trim()) parse(text);
  } catch (error) {
    broken = `This is no JSON: ${error.message}`;
  }
  const control = useValidity(broken);
  const read = (event) => {
    const typed = event.target.value;
    let next = value;
    try {
      next = typed.trim() ? parse(typed) : undefined;
      set(next);
    } catch {
      /* the text stays, and is said to be wrong */
    }
    keep(typed, next);
  };
  const wrong = [...(broken ? [broken] : []), ...troubles(c, at, true)];
  if (isSensitive(s) && value !== undefined && !open)
    return html`<${Field} label=${label} id=${fid}>
      <button type="button" id=${fid} onClick=${() => setOpen(true)}>Show, to edit it as JSON</button>
    </${Field}>`;
  return html`
    <${Field}
      label=${html`<${Named} label=${label} required=${required && !entry} />`}
      id=${fid}
      hint=${s.description ? html`<${Said} text=${s.description} />` : undefined}
      wrong=${wrong.join(' · ')}
    >
      <textarea
        id=${fid}
        ref=${control}
        rows=${rows}
        spellcheck=${false}
        placeholder='JSON: {"a": 1}, [1, 2], "text"'
        value=${text}
        onInput=${read}
        aria-invalid=${wrong.length ? 'true' : undefined}
        aria-describedby=${s.description ? `${fid}-hint` : undefined}
      />
    </${Field}>
  `;
}

/** What a schema says about a value in few words. */
function facts({ s, kind }) {
  const low = s.minimum ?? s.exclusiveMinimum;
  const high = s.maximum ?? s.exclusiveMaximum;
  return [
    kind === 'number' &&
      (low !== undefined && high !== undefined
        ? `${low} to ${high}`
        : low !== undefined && low !== 0
          ? `at least ${low}`
          : high !== undefined && `at most ${high}`),
    s.pattern && `must match ${s.pattern}`,
    s.format === 'date-time' && 'your local time',
    s.default !== undefined && s.default !== null && `${JSON.stringify(s.default)} when left out`,
  ]
    .filter(Boolean)
    .join(', ');
}

function readNumber(text, integer) {
  if (/^[-+]?\d+$/.test(text))
    return exact && !Number.isSafeInteger(Number(text)) ? JSON.rawJSON(String(BigInt(text))) : Number(text);
  if (!/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) || !Number.isFinite(Number(text))) return text;
  // A program that takes whole numbers may refuse 5.0.
  if (integer && Number.isSafeInteger(Number(text))) return Number(text);
  // As it was typed, where that is JSON.
  return /^-?(0|[1-9]\d*)\.\d+$/.test(text) ? parse(text) : Number(text);
}

function wrongOf({ kind, s, integer }, value) {
  if (value === undefined || value === null || value === '') return null;
  if (kind === 'number') {
    const number = plain(value);
    if (typeof number !== 'number' || (integer && !Number.isInteger(number)))
      return integer ? 'This must be a whole number.' : 'This must be a number.';
    if (number < s.minimum || number <= s.exclusiveMinimum)
      return `The least is ${s.minimum ?? `more than ${s.exclusiveMinimum}`}.`;
    if (number > s.maximum || number >= s.exclusiveMaximum)
      return `The most is ${s.maximum ?? `less than ${s.exclusiveMaximum}`}.`;
  }
  if (kind === 'text' && value.length > s.maxLength && [...value].length > s.maxLength)
    return `${[...value].length} characters; at most ${s.maxLength} fit.`;
  return null;
}

const local = (text) =>
  new Date(Date.parse(text) - new Date(text).getTimezoneOffset() * 60000).toISOString().slice(0, 19);

function Leaf(part) {
  const { c, what, s, at, fid, label, name, value, set, required, bare } = part;
  const [text, keep] = useDraft(value, (v) => (v === undefined || v === null ? '' : isRaw(v) ? v.rawJSON : String(v)));
  const [open, setOpen] = useState(false);
  const [lines, setLines] = useState(false);
  const own = wrongOf(what, value);
  const control = useValidity(own);
  const wrong = [...(own ? [own] : []), ...troubles(c, at, true)];
  // Nothing typed is nothing given, unless there has to be something.
  const none = required ? (what.nullable ? null : what.kind === 'text' ? '' : undefined) : undefined;
  const detail = facts(what);
  let about = s.description;
  const common = {
    id: fid,
    ref: control,
    'aria-label': bare ? label : undefined,
    'aria-invalid': wrong.length ? 'true' : undefined,
    'aria-describedby': !bare && (about || detail) ? `${fid}-hint` : undefined,
    autocomplete: 'off',
    required: required && !bare && value === undefined,
  };
  const type = (event) => {
    const typed = event.target.value;
    const next =
      what.kind === 'number' ? (typed.trim() ? readNumber(typed.trim(), what.integer) : none) : typed || none;
    set(next);
    keep(typed, next);
  };
  let drawn;
  if (what.kind === 'const') {
    drawn = html`<label class="row">
      <input
        type="checkbox"
        id=${fid}
        checked=${isNamed(s.const, value)}
        disabled=${required && isNamed(s.const, value)}
        onChange=${(e) => set(e.target.checked ? s.const : undefined)}
      />${' '}
      <code>${JSON.stringify(s.const)}</code>
    </label>`;
  } else if (
    what.kind === 'bool' &&
    typeof s.default === 'boolean' &&
    typeof (value ?? false) === 'boolean' &&
    value !== null
  ) {
    const box = html`
      <input
        type="checkbox"
        ...${common}
        required=${false}
        checked=${value ?? s.default}
        onChange=${(e) => set(e.target.checked)}
      />
    `;
    return html`<div class="field">
      <label class="row" for=${fid}>${box} ${label}</label>
      ${about && html`<span class="hint" id=${`${fid}-hint`}><${Said} text=${about} /></span>`}
      <${Wrong} all=${wrong} />
    </div>`;
  } else if (what.kind === 'choice' || what.kind === 'bool') {
    const choices = what.choices ?? [
      { value: true, text: 'yes' },
      { value: false, text: 'no' },
    ];
    const place = choices.findIndex((choice) => isNamed(choice.value, value));
    const alien = value !== undefined && value !== null && place < 0;
    about = [about, choices[place]?.about].filter(Boolean).join(' · ');
    const pick = (event) =>
      set(event.target.value === '' ? none : (choices[Number(event.target.value)]?.value ?? value));
    drawn = html`<select ...${common} value=${alien ? 'alien' : place < 0 ? '' : String(place)} onChange=${pick}>
      ${
        (!required || place < 0) &&
        html`<option value="">${value === null ? 'null' : required ? 'Choose…' : 'not given'}</option>`
      }
      ${choices.map(
        (choice, i) => html`<option key=${i} value=${String(i)}>
          ${choice.text ?? (typeof choice.value === 'string' ? choice.value : JSON.stringify(choice.value))}
        </option>`,
      )}
      ${alien && html`<option value="alien">${JSON.stringify(value)}</option>`}
    </select>`;
  } else if (isSensitive(s)) {
    drawn = html`<div class="row">
      <input
        class="grow"
        ...${common}
        type=${open ? 'text' : 'password'}
        autocomplete="new-password"
        spellcheck=${false}
        value=${text}
        onInput=${type}
      />
      <button
        type="button"
        class="small"
        aria-pressed=${String(open)}
        aria-label=${`Show ${label}`}
        onClick=${() => setOpen(!open)}
      >
        ${open ? 'hide' : 'show'}
      </button>
    </div>`;
  } else if (what.kind === 'text' && s.format === 'date-time' && (!value || !Number.isNaN(Date.parse(value)))) {
    drawn = html`
      <input
        ...${common}
        type="datetime-local"
        step="1"
        value=${value ? local(value) : ''}
        onInput=${(e) => set(e.target.value ? new Date(e.target.value).toISOString() : none)}
      />
    `;
  } else if (what.kind === 'text' && (lines || LINES.test(name ?? '') || s.maxLength >= 5000 || text.includes('\n'))) {
    drawn = html`<textarea ...${common} class="prose" rows="4" value=${text} onInput=${type} />`;
  } else {
    // One line would lose the line breaks of what is pasted.
    const paste = (event) => {
      const pasted = event.clipboardData?.getData('text');
      if (what.kind !== 'text' || !pasted?.includes('\n')) return;
      event.preventDefault();
      const { value: before, selectionStart, selectionEnd } = event.target;
      const inserted = pasted.replaceAll('\r\n', '\n');
      set(`${before.slice(0, selectionStart)}${inserted}${before.slice(selectionEnd)}`);
      setLines(true);
    };
    const mode =
      what.kind === 'number'
        ? what.integer && !(s.minimum < 0)
          ? 'numeric'
          : 'text'
        : { email: 'email', uri: 'url', 'uri-reference': 'url', hostname: 'url' }[s.format];
    drawn = html`
      <input
        ...${common}
        type=${s.format === 'date' && (!value || /^\d{4}-\d\d-\d\d$/.test(value)) ? 'date' : 'text'}
        inputmode=${mode}
        spellcheck=${false}
        value=${text}
        onInput=${type}
        onPaste=${paste}
        placeholder=${
          value === null
            ? 'null'
            : s.default !== undefined && s.default !== null
              ? String(s.default)
              : s.examples?.[0] !== undefined
                ? String(s.examples[0])
                : ''
        }
      />
    `;
  }
  if (bare) return html`<div class="grow field">${drawn}<${Wrong} all=${wrong} /></div>`;
  const hint =
    (about || detail) && html`${about && html`<${Said} text=${about} />`}${about && detail && ' · '}${detail}`;
  return html`
    <${Field}
      label=${html`<${Named} label=${label} required=${required && !part.entry} />`}
      id=${fid}
      hint=${hint || undefined}
      wrong=${wrong.join(' · ')}
    >
      ${drawn}
    </${Field}>
  `;
}

/** The frame of a part with parts of its own. `begin` adds it while it is absent. */
const Frame = ({ part: { c, at, label, s, required, set, top, bare, entry, fid }, absent, begin, children }) => {
  const about = s.description && !top && html`<${Said} text=${s.description} />`;
  const wrong = troubles(c, at);
  if (top) return html`<${Wrong} all=${wrong} />${children}`;
  if (absent)
    return html`
      <${Field}
        label=${html`<${Named} label=${label} required=${required && !bare && !entry} />`}
        id=${fid}
        hint=${about || undefined}
        wrong=${wrong.join(' · ')}
      >
        <div><button type="button" class="small" id=${fid} data-add onClick=${begin}>Add ${label}</button></div>
      </${Field}>
    `;
  return html`<fieldset>
    <legend><${Named} label=${label} required=${required && !bare && !entry} /></legend>
    ${about && html`<p class="hint">${about}</p>`}
    <${Wrong} all=${wrong} />
    ${children}
    ${
      !required &&
      html`<div class="row end">
        <button type="button" class="quiet small" onClick=${() => set(undefined)}>Leave out ${label}</button>
      </div>`
    }
  </fieldset>`;
};

function ObjectPart(part) {
  const { c, s, at, value, set, depth, schema, required, fid } = part;
  const properties = s.properties ?? {};
  const given = kindOf(value) === 'object' ? value : {};
  const needed = (s.required ?? []).filter((name) => Object.hasOwn(properties, name));
  const names = [...needed, ...Object.keys(properties).filter((name) => !needed.includes(name))];
  // The tag of a variant was chosen with the variant.
  const drawn = names.filter(
    (name) =>
      !('const' in whole(properties[name], c.root) && isNamed(whole(properties[name], c.root).const, own(given, name))),
  );
  const more = s.additionalProperties ?? s.unevaluatedProperties;
  const typed = more && typeof more === 'object' && Object.keys(more).length > 0;
  const others = Object.entries(given).filter(([name]) => !Object.hasOwn(properties, name));
  const known = Object.fromEntries(Object.entries(given).filter(([name]) => Object.hasOwn(properties, name)));
  const put = (name, next) => set(next === undefined ? without(given, name) : { ...given, [name]: next });
  const merge = (next) => kindOf(next ?? {}) === 'object' && set({ ...next, ...known });
  const absent = !required && (value === undefined || value === null);
  return html`<${Frame} part=${part} absent=${absent} begin=${() => set(blank(schema, c.root) ?? {})}>
    ${
      drawn.length > 0 &&
      html`<div class="fields">
        ${drawn.map(
          (name) => html`
            <${Part}
              key=${name}
              c=${c}
              schema=${properties[name]}
              name=${name}
              at=${`${at}/${segment(name)}`}
              value=${own(given, name)}
              set=${(next) => put(name, next)}
              required=${needed.includes(name)}
              depth=${depth + 1}
            />
          `,
        )}
      </div>`
    }
    ${typed && html`<${Entries} ...${part} of=${more} others=${others} known=${known} />`}
    ${
      !typed &&
      others.length > 0 &&
      html`
        <${JsonPart}
          c=${{ ...c, errors: [] }}
          at=${at}
          fid=${`${fid}--others`}
          label="Other fields"
          s=${{ description: 'Not in the schema.' }}
          value=${Object.fromEntries(others)}
          set=${merge}
        />
      `
    }
    ${names.length === 0 && !typed && others.length === 0 && html`<p class="faint">There is nothing to fill in.</p>`}
  </${Frame}>`;
}

/** Fields with names of one's own. */
function Entries({ c, at, of, others, known, set, depth, fid, label, s }) {
  const [name, setName] = useState('');
  const taken = Object.hasOwn(known, name) || others.some(([key]) => key === name);
  const write = (entries) => set(Object.fromEntries([...Object.entries(known), ...entries]));
  const add = () => {
    if (!name || taken) return;
    write([...others, [name, empty(of, c.root)]]);
    setName('');
  };
  const full = s.maxProperties !== undefined && others.length + Object.keys(known).length >= s.maxProperties;
  return html`<div class="stack tight">
    ${others.map(
      ([key, value], i) => html`<div class="row top item" key=${key}>
        <div class="grow">
          <${Part}
            c=${c}
            schema=${of}
            name=${key}
            label=${key}
            at=${`${at}/${segment(key)}`}
            value=${value}
            set=${(next) => write(others.map((entry, j) => (j === i ? [key, next ?? null] : entry)))}
            required
            entry
            depth=${depth + 1}
          />
        </div>
        <button
          type="button"
          class="quiet small"
          aria-label=${`Remove ${key}`}
          onClick=${() => write(others.filter((_, j) => j !== i))}
        >
          ✕
        </button>
      </div>`,
    )}
    ${
      !full &&
      html`<div class="row item">
        <input
          id=${`${fid}--new`}
          class="grow"
          aria-label=${`Name of a new entry of ${label}`}
          placeholder="Name of a new entry"
          autocomplete="off"
          spellcheck=${false}
          value=${name}
          onInput=${(e) => setName(e.target.value)}
          onKeyDown=${(e) => {
            if (e.key === 'Enter') {
              e.preventDefault();
              add();
            }
          }}
        />
        <button type="button" class="small" data-add disabled=${!name || taken} onClick=${add}>
          ${taken && name ? 'Is there already' : 'Add'}
        </button>
      </div>`
    }
  </div>`;
}

const button = (sign, name, disabled, press) =>
  html`<button type="button" class="quiet small" aria-label=${name} disabled=${disabled} onClick=${press}>
    ${sign}
  </button>`;

function ListPart(part) {
  const { c, s, at, value, set, required, depth, label } = part;
  const items = Array.isArray(value) ? value : [];
  const of = (i) => s.prefixItems?.[i] ?? s.items ?? {};
  const fixed = s.prefixItems && s.maxItems === s.prefixItems.length;
  const least = s.minItems ?? 0;
  const change = (next) => set(next.length === 0 && !required ? undefined : next);
  const move = (from, to) => {
    const next = [...items];
    next.splice(to, 0, ...next.splice(from, 1));
    change(next);
  };
  const remove = (event, i) => {
    // The button may go with its item: who works by keyboard goes on at the next one.
    if (i === items.length - 1)
      event.currentTarget.closest('.item').parentElement.nextElementSibling?.querySelector('[data-add]')?.focus();
    change(items.filter((_, j) => j !== i));
  };
  const add = () =>
    change(fixed && items.length === 0 ? blank(s, c.root) : [...items, empty(of(items.length), c.root)]);
  return html`<${Frame} part=${part} absent=${items.length === 0 && !part.top} begin=${add}>
    <div class="stack tight">
      ${items.map(
        (item, i) => html`<div class="row top item" key=${i}>
          <div class="grow">
            <${Part}
              c=${c}
              schema=${of(i)}
              name=${part.name}
              label=${`${label} ${i + 1}`}
              at=${`${at}/${i}`}
              value=${item ?? undefined}
              set=${(next) =>
                change(
                  items.map((old, j) => (j === i ? (next ?? (shape(of(i), c.root).kind === 'text' ? '' : null)) : old)),
                )}
              required
              bare
              depth=${depth + 1}
            />
          </div>
          ${
            !fixed &&
            html`<span class="nowrap">
              ${button('↑', `Move ${label} ${i + 1} up`, i === 0, () => move(i, i - 1))}
              ${button('↓', `Move ${label} ${i + 1} down`, i === items.length - 1, () => move(i, i + 1))}
              ${button('✕', `Remove ${label} ${i + 1}`, required && items.length <= least, (e) => remove(e, i))}
            </span>`
          }
        </div>`,
      )}
    </div>
    ${
      !(items.length >= s.maxItems) &&
      html`<div>
        <button type="button" class="small" data-add onClick=${add}>Add ${items.length ? 'another' : label}</button>
      </div>`
    }
  </${Frame}>`;
}

const NOUNS = {
  text: 'text',
  bool: 'yes or no',
  list: 'a list',
  object: 'an object',
  map: 'an object',
  any: 'JSON',
  choice: 'one of some',
};

/** A name for a variant: its own, its tag, its only field, or what it is. */
function nameOf(variant, root) {
  const what = shape(variant, root);
  const { s } = what;
  if (s.title) return s.title;
  const properties = Object.entries(s.properties ?? {}).map(([name, part]) => [name, whole(part, root)]);
  const tag = properties.find(([, part]) => 'const' in part || part.enum?.length === 1);
  if (tag) return String(tag[1].const ?? tag[1].enum[0]);
  if (s.required?.length === 1) return s.required[0];
  if (s.const !== undefined) return JSON.stringify(s.const);
  if (what.kind === 'number') return what.integer ? 'whole number' : 'number';
  return s.description && s.description.length <= 40
    ? `${NOUNS[what.kind] ?? 'value'}: ${s.description.replace(/\.$/, '')}`
    : (NOUNS[what.kind] ?? 'value');
}

function UnionPart(part) {
  const { c, what, at, fid, value, set, required, depth, label, s } = part;
  const { variants } = what;
  const [chosen, choose] = useState(null);
  const left = useRef({});
  const fit =
    value === undefined || value === null ? null : variants.findIndex((variant) => fits(variant, value, c.root));
  // What is being typed may fit nothing yet; what fits another variant has come from elsewhere.
  const kept = chosen !== null && (fit === null || fit < 0 || fits(variants[chosen], value, c.root));
  const place = kept ? chosen : (fit ?? 0);
  const leave = (next) => {
    choose(null);
    set(next);
  };
  const pick = (event) => {
    const next = Number(event.target.value);
    left.current[place] = value;
    choose(next);
    set(next in left.current ? left.current[next] : turned(variants[next], value, c.root));
  };
  const names = variants.map((variant) => nameOf(variant, c.root));
  const begin = () => {
    choose(0);
    set(empty(variants[0], c.root));
  };
  const inner = shape(variants[Math.max(0, place)], c.root).kind;
  return html`
    <${Frame}
      part=${{ ...part, set: leave }}
      absent=${!required && chosen === null && (value === undefined || value === null)}
      begin=${begin}
    >
      <div class="stack tight">
        <div class="row">
          <label class="hidden-visually" for=${`${fid}--is`}>${label} is</label>
          <select id=${`${fid}--is`} value=${String(place)} onChange=${pick}>
            ${place < 0 && html`<option value="-1">something else</option>`}
            ${names.map(
              (name, i) => html`<option key=${i} value=${String(i)}>
                ${names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${i + 1})`}
              </option>`,
            )}
          </select>
        </div>
        ${
          place < 0
            ? html`
              <${JsonPart}
                c=${c}
                at=${at}
                fid=${fid}
                label=${label}
                s=${isSensitive(s) ? { writeOnly: true } : {}}
                value=${value}
                set=${set}
              />
            `
            : html`
              <${Part}
                key=${place}
                c=${{ ...c, errors: c.errors.filter((e) => e.pointer !== at) }}
                schema=${isSensitive(s) ? { ...variants[place], writeOnly: true } : variants[place]}
                name=${part.name}
                label=${label}
                at=${at}
                value=${value}
                set=${set}
                required=${required}
                depth=${depth + 1}
                bare=${!['object', 'map'].includes(inner)}
                top=${['object', 'map', 'list'].includes(inner)}
              />
            `
        }
      </div>
    </${Frame}>
  `;
}

/** What a value becomes as another variant: one thing and a list of it are the same thing. */
function turned(variant, value, root) {
  const tries = Array.isArray(value)
    ? value.length === 1
      ? value
      : []
    : value === undefined || value === null
      ? []
      : [[value]];
  return tries.find((one) => fits(variant, one, root)) ?? blank(variant, root);
}
