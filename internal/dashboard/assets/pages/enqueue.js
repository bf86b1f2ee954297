// A job from a form, enqueued at most once however often the button is pressed.

import { draw, me, Problem, seg, send } from '../core/api.js';
import { html, useEffect, useMemo, useRef, useState } from '../core/dom.js';
import { backoff, utc } from '../core/format.js';
import { known } from '../core/known.js';
import { useObservable } from '../core/observable.js';
import { useQuery } from '../core/query.js';
import { useWords } from '../core/route.js';
import {
  Badge,
  Copy,
  Empty,
  Field,
  Head,
  JobLink,
  Panel,
  Segment,
  Skeleton,
  Time,
  Trouble,
  useMay,
} from '../ui/base.js';
import { isDrained } from '../ui/runners.js';
import { blank, elsewhere, masked, parseWithPayload, Said, SchemaForm } from '../ui/schema-form.js';

const UNITS = [
  [1000, 'seconds'],
  [60000, 'minutes'],
  [3600000, 'hours'],
  [86400000, 'days'],
];
const NONE = {
  queue: '',
  mode: 'now',
  delay: '10',
  unit: '60000',
  at: '',
  priority: '',
  attempts: '',
  limit: '',
  tags: '',
  unique: '',
  fields: '',
  conflict: '',
  until: '',
  unique_for: '',
  max_wait: '',
  order: '',
  failure: '',
  shared: '',
  retry: null,
};
// Characters that make a line look like another than it is.
const UNSEEN = /[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const unseen = (text) => `\\u${text.charCodeAt(0).toString(16).padStart(4, '0')}`;
/** Members of the request that have a field of their own. */
const OWN = [
  'queue',
  'delay_ms',
  'execute_at',
  'priority',
  'max_attempts',
  'timeout_ms',
  'tags',
  'unique_key',
  'unique_fields',
  'on_conflict',
  'unique_until',
  'unique_for_ms',
  'max_wait_ms',
  'order_key',
  'on_failure',
  'limit_key',
];

async function exactly(path, signal) {
  const response = await send('GET', path, { signal });
  const body = answerOf(response, await response.text());
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}
function answerOf(response, text) {
  try {
    return parseWithPayload(text) ?? {};
  } catch {
    return { detail: `the server answered ${response.status}` };
  }
}

const optionsOf = (job, kind) => ({
  ...NONE,
  queue: job.queue,
  priority: String(job.priority),
  unique: job.unique_key ?? '',
  until: job.unique_until ?? '',
  unique_for: job.unique_for_ms ? String(job.unique_for_ms / 1000) : '',
  order: job.order_key ?? '',
  failure: job.on_failure === 'skip' ? 'skip' : '',
  shared: job.limit_key ?? '',
  tags: (job.tags ?? []).join(' '),
  retry: job.retry ?? null,
  attempts: job.max_attempts === kind?.max_attempts ? '' : String(job.max_attempts),
  limit: job.timeout_ms ? String(job.timeout_ms / 1000) : '',
});

/** JSON pointers, one per line or with commas between them. A comma within a pointer is not before a slash. */
const pointersOf = (text) =>
  text
    .split(/\n|,(?=\s*(?:\/|,|$))/)
    .map((pointer) => pointer.trim())
    .filter(Boolean);

function bodyOf(kind, payload, o) {
  const body = { kind, payload: payload ?? {} };
  const put = (name, text, value) => {
    if (text) body[name] = value;
  };
  put('queue', o.queue.trim(), o.queue.trim());
  put('delay_ms', o.mode === 'delay' && o.delay, Math.round(Number(o.delay) * Number(o.unit)));
  if (o.mode === 'at' && o.at) body.execute_at = new Date(o.at).toISOString();
  put('priority', o.priority, Number(o.priority));
  put('max_attempts', o.attempts, Number(o.attempts));
  put('timeout_ms', o.limit, Math.round(Number(o.limit) * 1000));
  const tags = o.tags.split(/[\s,]+/).filter(Boolean);
  put('tags', tags.length, tags);
  put('unique_key', o.unique, o.unique);
  const pointers = o.unique ? [] : pointersOf(o.fields);
  put('unique_fields', pointers.length, pointers);
  const keyed = o.unique || pointers.length;
  put('on_conflict', keyed && o.conflict, o.conflict);
  put('unique_until', keyed && o.until, o.until);
  put('unique_for_ms', keyed && o.unique_for, Math.round(Number(o.unique_for) * 1000));
  put('max_wait_ms', keyed && o.conflict === 'postpone' && o.max_wait, Math.round(Number(o.max_wait) * 1000));
  put('order_key', o.order, o.order);
  put('on_failure', o.order && o.failure, o.failure);
  put('limit_key', o.shared, o.shared);
  put('retry', o.retry, o.retry);
  return body;
}

export default function Enqueue() {
  const [query, change] = useWords();
  const from = query.get('from');
  const kinds = useQuery('/v1/kinds');
  const source = useQuery(from ? `/v1/jobs/${seg(from)}` : null, { read: exactly });
  const may = useMay('enqueue');
  const head = html`
    <${Head}
      title="Enqueue a job"
      sub=${
        source.data
          ? html`As <${JobLink} id=${source.data.id} />, which stays as it is: change what should be different.`
          : 'What it does, with what, and when.'
      }
    />
  `;
  if (!may)
    return html`
      ${head}
      <${Empty} title="This API key may not enqueue">
        It needs the scope <code>enqueue</code> or <code>admin</code>.
      </${Empty}>
    `;
  if (kinds.error || source.error)
    return html`
      ${head}
      <${Trouble}
        error=${kinds.error ?? source.error}
        retry=${() => {
          kinds.reload();
          source.reload();
        }}
      />
      ${source.error && html`<p><a href="/enqueue">Begin with an empty form</a></p>`}
    `;
  if (!kinds.data || (from && !source.data)) return html`${head}<${Skeleton} />`;
  return html`
    ${head}
    <${Form} key=${from} kinds=${kinds.data.data} source=${source.data} wanted=${query.get('kind')} change=${change} />
  `;
}

function Form({ kinds, source, wanted, change }) {
  const name = wanted ?? source?.kind ?? '';
  const kind = kinds.find((known) => known.kind === name);
  const who = useObservable(me);
  const queues = useQuery('/v1/queues');
  const [options, setOptions] = useState(() => (source ? optionsOf(source, kind) : NONE));
  // What was filled in for a kind is still there when it is chosen again.
  const [payloads, setPayloads] = useState(() => new Map());
  const [key, setKey] = useState(draw);
  const [state, set] = useState({ busy: false, error: null, done: null });
  const flying = useRef(false);
  const form = useRef(null);
  const begun = useMemo(() => (source?.kind === name ? source.payload : kind && blank(kind.schema)), [kind, source]);
  const payload = payloads.has(name) ? payloads.get(name) : begun;
  const body = useMemo(() => bodyOf(name, payload, options), [name, payload, options]);
  const { error, done, busy } = state;
  useEffect(() => {
    if (error?.errors?.length) form.current?.querySelector('[aria-invalid=true]')?.focus();
  }, [error]);
  const submit = async (event) => {
    event?.preventDefault();
    if (flying.current) return;
    flying.current = true;
    set({ busy: true, error: null, done: null });
    try {
      const response = await send('POST', '/v1/jobs', {
        body: JSON.stringify(body),
        headers: { 'idempotency-key': key },
      });
      const answer = answerOf(response, await response.text());
      if (!response.ok) throw new Problem(response.status, answer);
      set({
        busy: false,
        error: null,
        done: { job: answer, made: response.status === 201, replayed: response.headers.has('idempotency-replayed') },
      });
    } catch (problem) {
      set({ busy: false, error: problem, done: null });
    }
    flying.current = false;
  };
  const again = () => {
    setKey(draw());
    set({ busy: false, error: null, done: null });
  };
  const afresh = () => {
    setOptions(NONE);
    setPayloads(new Map());
    change({ from: null, kind: name });
    again();
  };
  const choose = html`<${Panel} title="Kind">
    <div class="stack tight">
      <${Field}
        label="What it does"
        id="kind"
        wrong=${
          name && !kind ? `This server has no kind ${name}.` : error?.errors?.find((e) => e.pointer === '/kind')?.detail
        }
      >
        <select
          id="kind"
          required
          value=${kind ? name : ''}
          onChange=${(e) => {
            change({ kind: e.target.value });
            again();
          }}
        >
          <option value="">Choose…</option>
          ${kinds.map((known) => html`<option key=${known.kind} value=${known.kind}>${known.kind}</option>`)}
        </select>
      </${Field}>
      ${kind?.schema.description && html`<p class="soft wrap"><${Said} text=${kind.schema.description} /></p>`}
    </div>
  </${Panel}>`;
  if (done) return html`<${Done} done=${done} again=${again} afresh=${afresh} />`;
  if (!kind) {
    return html`
      ${choose}
      <${Panel} title="Kinds of this server">
        <p class="soft">
          A kind is what a job does. Kinds are compiled into the binary, each with a handler and a schema of its
          payload; its form is made from that. <code class="wrap">curl ${location.origin}/v1/kinds</code>
        </p>
        <dl class="facts">
          ${kinds.map(
            (known) => html`
              <dt key=${known.kind}><a href=${`/enqueue?kind=${seg(known.kind)}`}>${known.kind}</a></dt>
              <dd>${known.schema.description && html`<${Said} text=${known.schema.description.split('\n')[0]} />`}</dd>
            `,
          )}
        </dl>
      </${Panel}>
    `;
  }
  const errors = error?.errors ?? [];
  const rest = elsewhere(errors).filter(
    (e) => ![...OWN, 'kind'].some((own) => e.pointer === `/${own}` || e.pointer.startsWith(`/${own}/`)),
  );
  const lost =
    error &&
    (error.status === 0 || error.status >= 500 || ['overloaded', 'idempotency_in_progress'].includes(error.code));
  return html`<form class="stack" ref=${form} onSubmit=${submit}>
    ${choose}
    <div class="grid wide">
      <${Panel} title="Payload">
        <${SchemaForm}
          key=${name}
          schema=${kind.schema}
          value=${payload}
          onChange=${(next) => setPayloads(new Map(payloads).set(name, next))}
          errors=${errors}
        />
      </${Panel}>
      <${Panel} title="Options">
        <${Options}
          of=${options}
          set=${(more) => setOptions({ ...options, ...more })}
          kind=${kind}
          queues=${queues.data?.data}
          errors=${errors}
        />
      </${Panel}>
    </div>
    ${error && html`<${Trouble} error=${{ message: error.message, errors: rest }} />`}
    ${
      lost &&
      html`<p class="soft">
        It may have been accepted or not. Press again: it is the same request, so it is enqueued once.
      </p>`
    }
    ${
      error?.code === 'unique_key_taken' &&
      error.body.holder &&
      html`<p>This job has the unique key: <${JobLink} id=${error.body.holder} /></p>`
    }
    ${
      error?.code === 'idempotency_conflict' &&
      html`<p>
        This form was accepted before, as it was then; that answer was lost.${' '}
        <a href=${`/jobs?q=kind%3A${seg(name)}`}>Look for it</a>, or${' '}
        <button type="button" class="small" onClick=${again}>treat this as another job</button>
      </p>`
    }
    <div class="row end">
      <button type="submit" class="primary" disabled=${busy}>${busy ? 'Enqueueing…' : 'Enqueue'}</button>
    </div>
    <${Curl} body=${body} schema=${kind.schema} token=${who?.actor !== 'anyone'} />
  </form>`;
}

function Options({ of: o, set, kind, queues, errors }) {
  const wrong = (...names) =>
    errors
      .filter((e) => names.some((name) => e.pointer === `/${name}` || e.pointer.startsWith(`/${name}/`)))
      .map((e) => e.detail)
      .join(' · ');
  const input = (id, name, more) =>
    html`
      <input
        id=${id}
        autocomplete="off"
        value=${o[name]}
        aria-invalid=${more.bad ? 'true' : undefined}
        ...${{ ...more, bad: undefined }}
        onInput=${(e) => set({ [name]: e.target.value })}
      />
    `;
  const field = (label, name, member, more, hint) =>
    html`<${Field} label=${label} id=${`option-${name}`} hint=${hint} wrong=${wrong(member)}>
      ${input(`option-${name}`, name, { ...more, bad: wrong(member) })}
    </${Field}>`;
  const line = o.queue.trim() || 'default';
  const found = queues?.find((queue) => queue.name === line);
  const drained = isDrained(useObservable(known).runners.data, line);
  const stuck =
    queues &&
    (!found?.runners
      ? drained
        ? `The runners of ${line} are drained: the job will wait until one is resumed.`
        : `No living runner serves ${line}: the job will wait for one.`
      : found.paused
        ? `${line} is paused: the job will wait.`
        : null);
  return html`<div class="stack">
    ${field(
      'Queue',
      'queue',
      'queue',
      { list: 'queues', placeholder: 'default', spellcheck: false },
      stuck && html`<span class="warn wrap">${stuck}</span>`,
    )}
    <datalist id="queues">
      ${queues?.map((queue) => html`<option key=${queue.name} value=${queue.name}></option>`)}
    </datalist>
    <div class="field">
      <span class="label">When</span>
      <div class="row">
        <${Segment}
          label="When"
          of=${[['now', 'Now'], ['delay', 'After'], ['at', 'At']]}
          is=${o.mode}
          on=${(mode) => set({ mode })}
        />
        ${
          o.mode === 'delay' &&
          html`
            <label class="hidden-visually" for="option-delay">How long</label>
            ${input('option-delay', 'delay', { type: 'number', min: '0', step: 'any', required: true, class: 'short' })}
            <label>
              <span class="hidden-visually">Unit</span>
              <select value=${o.unit} onChange=${(e) => set({ unit: e.target.value })}>
                ${UNITS.map(([ms, text]) => html`<option key=${ms} value=${String(ms)}>${text}</option>`)}
              </select>
            </label>
          `
        }
        ${
          o.mode === 'at' &&
          html`
            <label class="hidden-visually" for="option-at">Your local time</label>
            ${input('option-at', 'at', { type: 'datetime-local', step: '1', required: true })}
          `
        }
      </div>
      ${
        o.mode === 'at' &&
        html`<span class="hint">Your local time${o.at && `: ${utc(Date.parse(o.at))}`}. A past one means now.</span>`
      }
      ${
        wrong('delay_ms', 'execute_at') &&
        html`<span class="wrong" role="alert">${wrong('delay_ms', 'execute_at')}</span>`
      }
    </div>
    <div class="fields">
      ${field(
        'Priority',
        'priority',
        'priority',
        { type: 'number', min: '0', max: '9', placeholder: '5' },
        '0 runs first, 9 last',
      )}
      ${field('Attempts', 'attempts', 'max_attempts', {
        type: 'number',
        min: '1',
        max: '100',
        placeholder: String(kind.max_attempts),
      })}
      ${field(
        'Time limit, seconds',
        'limit',
        'timeout_ms',
        { type: 'number', min: '0.001', max: '86400', step: 'any', placeholder: String(kind.timeout_ms / 1000) },
        'Of one attempt',
      )}
    </div>
    ${field(
      'Tags',
      'tags',
      'tags',
      { placeholder: 'tenant:42 nightly', spellcheck: false },
      'At most ten, with spaces between them',
    )}
    ${field(
      'Unique key',
      'unique',
      'unique_key',
      { maxlength: '255', spellcheck: false, disabled: !o.unique && pointersOf(o.fields).length > 0 },
      'At most one unfinished job of the kind has it',
    )}
    <${Field}
      label="Unique fields"
      id="option-fields"
      hint="Instead of a unique key: JSON pointers into the payload, one on each line. Their values are the key"
      wrong=${wrong('unique_fields')}
    >
      <textarea
        id="option-fields"
        class="low"
        rows="2"
        spellcheck=${false}
        disabled=${Boolean(o.unique)}
        value=${o.fields}
        placeholder="/to"
        aria-describedby="option-fields-hint"
        aria-invalid=${wrong('unique_fields') ? 'true' : undefined}
        onInput=${(e) => set({ fields: e.target.value })}
      ></textarea>
    </${Field}>
    ${
      (o.unique || pointersOf(o.fields).length > 0) &&
      html`<${Field} label="If an unfinished job has it" id="option-conflict" wrong=${wrong('on_conflict')}>
        <select id="option-conflict" value=${o.conflict} onChange=${(e) => set({ conflict: e.target.value })}>
          <option value="">show that job, enqueue nothing</option>
          <option value="reject">refuse</option>
          <option value="replace">cancel that job, unless it runs</option>
          <option value="postpone">put that job off to this due time, unless it runs</option>
        </select>
      </${Field}>
      ${
        o.conflict === 'postpone' &&
        field(
          'Put off for at most, in seconds',
          'max_wait',
          'max_wait_ms',
          { type: 'number', min: '0.001', step: 'any' },
          'After the job was accepted. Empty: requests that keep coming put it off for ever',
        )
      }
      <${Field} label="The job gives up the key" id="option-until" wrong=${wrong('unique_until')}>
        <select id="option-until" value=${o.until} onChange=${(e) => set({ until: e.target.value })}>
          <option value="">when it ends</option>
          <option value="start">to the next job that asks after its start</option>
        </select>
      </${Field}>
      ${field(
        'Key taken for at least, in seconds',
        'unique_for',
        'unique_for_ms',
        { type: 'number', min: '0.001', step: 'any' },
        'Also when the job completes before',
      )}`
    }
    ${field(
      'Order key',
      'order',
      'order_key',
      { maxlength: '255', spellcheck: false },
      'Jobs with the same one run one at a time, in the order in which they were accepted',
    )}
    ${
      o.order &&
      html`<${Field} label="If it fails for good" id="option-failure" wrong=${wrong('on_failure')}>
        <select id="option-failure" value=${o.failure} onChange=${(e) => set({ failure: e.target.value })}>
          <option value="">the jobs behind it wait for an operator</option>
          <option value="skip">the next one runs</option>
        </select>
      </${Field}>`
    }
    ${field(
      'Limit key',
      'shared',
      'limit_key',
      { maxlength: '255', spellcheck: false },
      'Limits by key bound how many jobs with the same one run at once',
    )}
    ${
      o.retry &&
      html`<div class="note">
        Backoff as that job's: ${backoff(o.retry)}.${' '}
        <button type="button" class="small" onClick=${() => set({ retry: null })}>Use the kind's</button>
      </div>`
    }
  </div>`;
}

/** The same with curl. Sensitive values are dots until asked for. */
function Curl({ body, schema, token }) {
  const [open, setOpen] = useState(false);
  const hidden = { ...body, payload: masked(body.payload, schema) };
  const secret = JSON.stringify(hidden) !== JSON.stringify(body);
  const sent = JSON.stringify(open ? body : hidden);
  const text = [
    `curl -X POST ${location.origin}/v1/jobs`,
    `-H 'Content-Type: application/json' -H "Idempotency-Key: $(uuidgen)"`,
    ...(token ? ['-H "Authorization: Bearer $TICKR_TOKEN"'] : []),
    `-d '${sent.replace(UNSEEN, unseen).replaceAll("'", "'\\''")}'`,
  ].join(' \\\n  ');
  const side = html`
    ${
      secret &&
      html`<button type="button" class="quiet small" onClick=${() => setOpen(!open)}>
        ${open ? 'hide sensitive values' : 'show sensitive values'}
      </button>`
    }
    <${Copy} text=${text} label="Copy the curl line" />
  `;
  return html`<${Panel} title="The same with curl" side=${side}><pre class="tall">${text}</pre></${Panel}>`;
}

function Done({ done: { job, made, replayed }, again, afresh }) {
  const fresh = useQuery(`/v1/jobs/${job.id}`, { on: (event) => event.data?.includes(job.id), every: 5000, pace: 300 });
  const it = fresh.data ?? job;
  return html`
    <div class=${`note ${made ? 'good' : 'warn'}`} role="status">
      <b>${made ? 'Accepted and durable.' : 'Nothing new was enqueued: this job has the unique key.'}</b>
      ${replayed && ' An earlier try of this form had been accepted already; this is that job.'}
      <dl class="facts">
        <dt>Job</dt>
        <dd><${JobLink} id=${it.id}>${it.id}</${JobLink}></dd>
        <dt>Kind</dt>
        <dd>${it.kind}</dd>
        <dt>Queue</dt>
        <dd>${it.queue}</dd>
        <dt>State</dt>
        <dd><${Badge} is=${it.state} /></dd>
        <dt>Due</dt>
        <dd><${Time} at=${it.execute_at} /></dd>
      </dl>
    </div>
    <div class="row">
      <a class="button" href=${`/jobs/${it.id}`}>To the job</a>
      <button type="button" class="primary" onClick=${again}>Another one like it</button>
      <button type="button" onClick=${afresh}>An empty form</button>
    </div>
  `;
}
