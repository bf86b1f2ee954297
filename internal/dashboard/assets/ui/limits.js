// Limits by key: their words, and the form that sets and changes them.

import { call, callTagged, Problem, seg } from '../core/api.js';
import { html, useRef, useState } from '../core/dom.js';
import { count, plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Field, Head, Panel, Skeleton, Trouble, tell } from './base.js';
import { confirm } from './dialog.js';

/** Which jobs share a limit, in a line. */
export const shares = {
  key: 'The jobs with the same limit key',
  parent: 'The jobs whose limit keys have the same part before the first /',
  host: 'The jobs that call the same host, such as callbacks to example.com',
  all: 'All jobs of the kind and the queue, with or without a limit key',
};

export const each = {
  key: 'for each key',
  parent: 'for each parent',
  host: 'for each host',
  all: 'all jobs together',
};

/** What the keys of a limit are called. */
export const keyWord = (shared) => ({ parent: 'Parent', host: 'Host' })[shared] ?? 'Key';

const units = [
  [86400000, 'days', 'd'],
  [3600000, 'hours', 'h'],
  [60000, 'minutes', 'm'],
  [1000, 'seconds', 's'],
  [1, 'milliseconds', 'ms'],
];
const unitOf = (ms) => units.find(([length]) => ms % length === 0);

/** A rate in words: `100 in 1 m`. */
export function rateText({ starts, period_ms: ms }) {
  // 1,500 ms are 1.5 s.
  const [length, , unit] = ms > 1000 && ms % 1000 ? units[3] : unitOf(ms);
  return `${count(starts)} in ${count(ms / length)} ${unit}`;
}

/** A rate with its burst. */
export const RateOf = ({ rate }) =>
  rate
    ? html`<span>
      <span class="nowrap">${rateText(rate)}</span>${' '}
      <span class="faint nowrap" title="So many more may start at once">burst ${count(rate.burst)}</span>
    </span>`
    : html`<span class="faint">–</span>`;

/** A length of time in words: `10 s`. */
export function spanText(ms) {
  const [length, , unit] = ms > 1000 && ms % 1000 ? units[3] : unitOf(ms);
  return `${count(ms / length)} ${unit}`;
}

/** A breaker in words. */
export const breakerText = ({ failures, pause_ms, max_pause_ms }) =>
  `opens after ${plural(failures, 'failure')} in a row, for ${spanText(pause_ms)} up to ${spanText(max_pause_ms)}`;

/** What a limit allows, in a sentence. */
export const allowance = ({ concurrency, rate, fair, breaker }) =>
  [
    concurrency !== null && `${count(concurrency)} at once`,
    rate && rateText(rate),
    fair && 'a fair share of the workers',
    breaker && 'a breaker',
  ]
    .filter(Boolean)
    .join(', ');

export const readTagged = async (path, signal) => {
  const { body, tag } = await callTagged('GET', path, { signal });
  return { limit: body, tag };
};

export const remove = ({ limit, tag }, done) =>
  confirm(
    `Remove the limit ${limit.name}?`,
    'Jobs that wait for it start within a few seconds, unless another limit holds them back.',
    'Remove',
    async () => {
      await call('DELETE', `/v1/limits/${seg(limit.name)}`, { headers: { 'if-match': tag } });
      tell(`${limit.name} was removed`);
      done();
      return true;
    },
    { danger: true },
  );

const text = (value) => String(value ?? '');

/** A limit as its form holds it. */
function valuesOf(l) {
  const [unit] = l?.rate ? unitOf(l.rate.period_ms) : units[2];
  return {
    name: l?.name ?? '',
    kind: l?.kind ?? '',
    queue: l?.queue ?? '',
    shared_by: l?.shared_by ?? 'key',
    concurrency: text(l?.concurrency),
    starts: text(l?.rate?.starts),
    period: l?.rate ? text(l.rate.period_ms / unit) : '1',
    unit: String(unit),
    burst: text(l?.rate?.burst),
    fair: l?.fair ?? false,
    breaker: Boolean(l?.breaker),
    failures: text(l?.breaker?.failures ?? 5),
    pause: text((l?.breaker?.pause_ms ?? 10000) / 1000),
    max_pause: text((l?.breaker?.max_pause_ms ?? 600000) / 1000),
    rows: Object.entries(l?.overrides ?? {}).map(([key, own], id) => ({
      id,
      key,
      concurrency: text(own.concurrency),
      rate: own.rate,
      weight: text(own.weight),
    })),
  };
}

/** A row that the operator added and left empty. */
const idle = (row) => row.key === '' && row.concurrency === '' && row.weight === '' && !row.rate;

function bodyOf(v) {
  const body = { shared_by: v.shared_by };
  if (v.kind.trim()) body.kind = v.kind.trim();
  if (v.queue.trim()) body.queue = v.queue.trim();
  if (v.concurrency !== '') body.concurrency = Number(v.concurrency);
  if (v.starts !== '') {
    body.rate = { starts: Number(v.starts), period_ms: Math.round(Number(v.period) * Number(v.unit)) };
    if (v.burst !== '') body.rate.burst = Number(v.burst);
  }
  if (v.fair) body.fair = true;
  if (v.breaker && v.shared_by === 'host')
    body.breaker = {
      failures: Number(v.failures),
      pause_ms: Math.round(Number(v.pause) * 1000),
      max_pause_ms: Math.round(Number(v.max_pause) * 1000),
    };
  const own = ({ concurrency, rate, weight }) => ({
    ...(concurrency === '' ? {} : { concurrency: Number(concurrency) }),
    ...(rate ? { rate } : {}),
    ...(weight === '' || !v.fair ? {} : { weight: Number(weight) }),
  });
  const rows = v.rows.filter((row) => !idle(row));
  // Entries, because a key may be the name of something that every object has.
  if (rows.length) body.overrides = Object.fromEntries(rows.map((row) => [row.key, own(row)]));
  return body;
}

/** The place of a key in the request, as the API names it. */
const pointerOf = (key) => `/overrides/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`;
/** Whether an error is about this override, be it about its rate. */
const covers = ({ key }, { pointer }) => {
  const place = pointerOf(key);
  return pointer.startsWith(place) && /^(\/concurrency|\/weight|\/rate(\/\w+)?)?$/.test(pointer.slice(place.length));
};
const twice = (rows, row) => !idle(row) && rows.find((other) => !idle(other) && other.key === row.key) !== row;

/** Change the limit `name`, or set one if there is no name. `done` gets the name, or nothing when it was given up. */
export function LimitForm({ name, done }) {
  const read = useQuery(name ? `/v1/limits/${seg(name)}` : null, { read: readTagged });
  if (read.error) return html`<${Trouble} error=${read.error} retry=${read.reload} />`;
  if (name && !read.data) return html`<${Skeleton} />`;
  return html`<${Form} key=${read.data?.tag} seen=${read.data} done=${done} again=${read.reload} />`;
}

function Form({ seen, done, again }) {
  const l = seen?.limit;
  const [v, setAll] = useState(() => valuesOf(l));
  const [state, setState] = useState({ busy: false, error: null });
  const next = useRef(v.rows.length);
  const kinds = useQuery('/v1/kinds');
  const queues = useQuery('/v1/queues');
  const set = (change) => setAll((old) => ({ ...old, ...change }));
  const errors = state.error?.errors ?? [];
  const at = (...pointers) =>
    errors
      .filter((error) => pointers.includes(`/${error.pointer.replace(/^\//, '')}`))
      .map((error) => error.detail)
      .join(' · ');
  const under = (row) =>
    errors
      .filter((error) => covers(row, error))
      .map((error) => error.detail)
      .join(' · ');
  const fields = ['name', 'kind', 'queue', 'shared_by', 'concurrency', 'fair', 'overrides'];
  const own = new Set([
    ...fields.map((field) => `/${field}`),
    ...['', '/starts', '/period_ms', '/burst'].map((field) => `/rate${field}`),
    ...['', '/failures', '/pause_ms', '/max_pause_ms'].map((field) => `/breaker${field}`),
  ]);
  const rowsTold = new Set(
    v.rows.filter((row) => !idle(row)).flatMap((row) => errors.filter((error) => covers(row, error))),
  );
  const left = errors.filter(
    (error) => !own.has(`/${error.pointer.replace(/^\//, '')}`) && !rowsTold.has(error) && error.pointer !== '',
  );
  const whole = errors.filter((error) => error.pointer === '').map((error) => error.detail);
  const told = errors.length
    ? `The limit was not saved: ${whole.join(', ') || (left.length ? 'see below' : 'see the fields that are marked')}`
    : state.error?.message;
  const problem =
    state.error &&
    (state.error.status === 412
      ? {
          message: l
            ? 'Another operator changed or removed it since you opened this form. Nothing was saved.'
            : `There is a limit ${v.name} already. Nothing was changed.`,
        }
      : { message: told, errors: left });
  const input = (field, label, props, hint, ...pointers) => {
    const wrong = at(...(pointers.length ? pointers : [`/${field}`]));
    return html`<${Field} label=${label} id=${`l-${field}`} hint=${hint} wrong=${wrong}>
      <input
        id=${`l-${field}`}
        value=${v[field]}
        aria-describedby=${hint ? `l-${field}-hint` : undefined}
        aria-invalid=${wrong ? 'true' : undefined}
        autocomplete="off"
        spellcheck=${false}
        onInput=${(e) => set({ [field]: e.target.value })}
        ...${props}
      />
    </${Field}>`;
  };
  const setRow = (id, change) => set({ rows: v.rows.map((row) => (row.id === id ? { ...row, ...change } : row)) });
  const add = () => {
    set({ rows: [...v.rows, { id: next.current, key: '', concurrency: '', rate: null, weight: '' }] });
    const id = `l-key-${next.current}`;
    next.current += 1;
    requestAnimationFrame(() => document.getElementById(id)?.focus());
  };
  const toWrong = () =>
    requestAnimationFrame(() =>
      document
        .querySelector('#limit-form [aria-invalid=true], #limit-form [role=alert]')
        ?.scrollIntoView({ block: 'center' }),
    );
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    if (v.rows.some((row) => twice(v.rows, row))) {
      toWrong();
      return;
    }
    setState({ busy: true, error: null });
    try {
      const made = await call('PUT', `/v1/limits/${seg(v.name.trim())}`, {
        body: bodyOf(v),
        headers: l ? { 'if-match': seen.tag } : { 'if-none-match': '*' },
      });
      tell(l ? `${made.name} was changed` : `${made.name} was set`);
      done(made.name);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setState({ busy: false, error });
      toWrong();
    }
  };
  return html`<form id="limit-form" class="stack" onSubmit=${submit}>
    <${Head}
      title=${l ? html`<span class="wrap">Change ${l.name}</span>` : 'New limit'}
      sub="It holds on every runner within 2 s. A lower limit stops no running job."
    />
    ${problem && html`<${Trouble} error=${problem} of="change" />`}
    ${
      state.error?.status === 412 &&
      l &&
      html`<p><button type="button" onClick=${again}>Show it as it is now, and drop my changes</button></p>`
    }
    <${Panel} title="Which jobs">
      <div class="fields">
        ${
          !l &&
          input(
            'name',
            'Name',
            {
              required: true,
              maxlength: 64,
              pattern: '[a-z0-9][a-z0-9_.\\-]*',
              placeholder: 'per-tenant',
              autofocus: true,
            },
            'Small letters, digits, _ . and -',
          )
        }
        ${input('kind', 'Kind', { maxlength: 64, list: 'l-kinds' }, 'Empty: jobs of every kind')}
        ${input('queue', 'Queue', { maxlength: 64, list: 'l-queues' }, 'Empty: jobs in every queue')}
        <${Field} label="Shared by" id="l-shared_by" hint=${shares[v.shared_by]} wrong=${at('/shared_by')}>
          <select
            id="l-shared_by"
            aria-describedby="l-shared_by-hint"
            value=${v.shared_by}
            onChange=${(e) => set({ shared_by: e.target.value })}
          >
            ${Object.keys(shares).map((word) => html`<option key=${word} value=${word}>${word}</option>`)}
          </select>
        </${Field}>
      </div>
      <datalist id="l-kinds">
        ${kinds.data?.data.map(({ kind }) => html`<option key=${kind} value=${kind} />`)}
      </datalist>
      <datalist id="l-queues">
        ${queues.data?.data.slice(0, 200).map(({ name }) => html`<option key=${name} value=${name} />`)}
      </datalist>
    </${Panel}>
    <${Panel} title=${`How many, ${each[v.shared_by]}`}>
      <div class="fields">
        ${input(
          'concurrency',
          'At once',
          { type: 'number', min: 1, max: 1000000 },
          'Most attempts at the same time. Empty: no such limit',
        )}
        ${input(
          'starts',
          'Starts in a period',
          { type: 'number', min: 1, max: 1000000, required: v.burst !== '' },
          'Empty: no such limit',
          '/rate',
          '/rate/starts',
        )}
        ${
          v.starts !== '' &&
          html`
            ${input(
              'period',
              'Length of the period',
              { type: 'number', min: 0.001, step: 'any', required: true },
              null,
              '/rate/period_ms',
            )}
            <${Field} label="Unit" id="l-unit">
              <select id="l-unit" value=${v.unit} onChange=${(e) => set({ unit: e.target.value })}>
                ${units.map(([ms, word]) => html`<option key=${ms} value=${String(ms)}>${word}</option>`)}
              </select>
            </${Field}>
            ${input(
              'burst',
              'Burst',
              { type: 'number', min: 0, max: 1000000 },
              'So many more may start at once. Empty: the starts of a tenth of a second, at least 1',
              '/rate/burst',
            )}
          `
        }
      </div>
      <label class="row">
        <input type="checkbox" id="l-fair" checked=${v.fair} onChange=${(e) => set({ fair: e.target.checked })} />
        Fair: keys with waiting jobs share the workers. A key alone may use all of them
      </label>
      ${at('/fair') && html`<p class="bad" role="alert">${at('/fair')}</p>`}
    </${Panel}>
    ${
      v.shared_by === 'host' &&
      html`<${Panel} title="When a host fails">
        <label class="row">
          <input
            type="checkbox"
            id="l-breaker"
            checked=${v.breaker}
            onChange=${(e) => set({ breaker: e.target.checked })}
          />
          Breaker: after failed calls in a row, the jobs of the host wait, and one call is made after a pause
        </label>
        ${at('/breaker') && html`<p class="bad" role="alert">${at('/breaker')}</p>`}
        ${
          v.breaker &&
          html`<div class="fields">
            ${input(
              'failures',
              'Failures in a row',
              { type: 'number', min: 1, max: 1000, required: true },
              'No answer, a status of 500 or more, or 429',
              '/breaker/failures',
            )}
            ${input(
              'pause',
              'First pause in seconds',
              { type: 'number', min: 0.1, max: 86400, step: 'any', required: true },
              'It doubles with each failure',
              '/breaker/pause_ms',
            )}
            ${input(
              'max_pause',
              'Longest pause in seconds',
              { type: 'number', min: 0.1, max: 86400, step: 'any', required: true },
              null,
              '/breaker/max_pause_ms',
            )}
          </div>`
        }
      </${Panel}>`
    }
    <${Panel}
      title="Other values for single keys"
      side=${html`<span class="soft num">${plural(v.rows.length, 'override')}</span>`}
    >
      <div class="stack">
        ${
          v.shared_by === 'all'
            ? html`<p class="faint">All jobs share this limit, so no key may have values of its own.</p>`
            : html`<p class="faint">What an override leaves out is as for all keys.</p>`
        }
        ${at('/overrides') && html`<p class="bad" role="alert">${at('/overrides')}</p>`}
        ${v.rows.map((row, i) => {
          const wrong = twice(v.rows, row) ? 'This key has an override above' : idle(row) ? '' : under(row);
          const which = html`<span class="hidden-visually">${' '}of override ${i + 1}</span>`;
          const key = keyWord(v.shared_by);
          return html`<div key=${row.id} class="override">
            <${Field} label=${html`${key}${which}`} id=${`l-key-${row.id}`} wrong=${wrong}>
              <input
                id=${`l-key-${row.id}`}
                class="mono"
                maxlength="255"
                autocomplete="off"
                spellcheck=${false}
                value=${row.key}
                aria-invalid=${wrong ? 'true' : undefined}
                onInput=${(e) => setRow(row.id, { key: e.target.value })}
              />
            </${Field}>
            <${Field}
              label=${html`At once${which}`}
              id=${`l-most-${row.id}`}
              hint=${row.rate && `Rate ${rateText(row.rate)}, burst ${count(row.rate.burst)}: stays`}
            >
              <input
                id=${`l-most-${row.id}`}
                type="number"
                min="1"
                max="1000000"
                placeholder=${v.concurrency}
                value=${row.concurrency}
                aria-describedby=${row.rate ? `l-most-${row.id}-hint` : undefined}
                onInput=${(e) => setRow(row.id, { concurrency: e.target.value })}
              />
            </${Field}>
            ${
              v.fair &&
              html`<${Field} label=${html`Weight${which}`} id=${`l-weight-${row.id}`}>
                <input
                  id=${`l-weight-${row.id}`}
                  type="number"
                  min="1"
                  max="1000"
                  placeholder="1"
                  value=${row.weight}
                  onInput=${(e) => setRow(row.id, { weight: e.target.value })}
                />
              </${Field}>`
            }
            <button
              type="button"
              class="small"
              aria-label=${`Take away override ${i + 1}`}
              onClick=${() => set({ rows: v.rows.filter((other) => other.id !== row.id) })}
            >
              Take away
            </button>
          </div>`;
        })}
        ${v.shared_by !== 'all' && html`<div><button type="button" onClick=${add}>Add an override</button></div>`}
      </div>
    </${Panel}>
    <div class="row end">
      <button type="button" onClick=${() => done()}>Cancel</button>
      <button type="submit" class="primary" disabled=${state.busy}>
        ${state.busy ? 'Saving…' : l ? 'Save' : 'Set the limit'}
      </button>
    </div>
  </form>`;
}
