// A filter as the API gives it, in the words of the filter bar, as a sentence, and as the request of an operation.

import { url } from '../core/api.js';
import { plural, utc } from '../core/format.js';
import { quoted } from '../core/words.js';

/** The longest filter that a listing takes, in bytes. */
const LONGEST = 2000;
/** The most values that a word of a filter takes. The retry of a batch with many nested ones has more. */
const MOST_VALUES = 20;

const plain = {
  state: 'state',
  kind: 'kind',
  queue: 'queue',
  unique_key: 'unique_key',
  order_key: 'order',
  limit_key: 'limit',
  host: 'host',
  batch: 'batch',
  error: 'error',
  fingerprint: 'group',
  dead_letter: 'dead_letter',
  schedule: 'schedule',
  operation: 'operation',
  runner: 'runner',
};
const moments = { created: 'accepted', due: 'due', finished: 'ended' };
const ranges = ['attempt_from', 'attempt_to', 'took_from_ms', 'took_below_ms'];
const known = new Set([
  ...Object.keys(plain),
  ...Object.keys(moments).flatMap((word) => [`${word}_after`, `${word}_before`]),
  ...ranges,
  'tags',
  'payload',
  'texts',
  'ids',
  'choices',
]);

const has = (value) => value !== null && value !== undefined;
const inQuotes = (text) => `"${text.replace(/[\\"]/g, '\\$&')}"`;
/** `{word}` stands for a text, a number, a boolean or null of this spelling. */
const isWord = (value) => typeof value === 'object' && value !== null && has(value.word);

/** The conditions of a filter but for its choices: `[field, value]`, and an empty field for a text to search for. */
function conditionsOf(filter) {
  const found = Object.entries(plain)
    .filter(([name]) => filter[name])
    .map(([name, word]) => [word, quoted(String(filter[name]))]);
  for (const word of Object.keys(moments)) {
    const after = filter[`${word}_after`];
    const before = filter[`${word}_before`];
    if (after || before)
      found.push([word, after && before ? `${after}..${before}` : after ? `>${after}` : `<${before}`]);
  }
  const { attempt_from: least, attempt_to: most, took_from_ms: from, took_below_ms: below } = filter;
  if (has(least) || has(most))
    found.push(['attempt', has(least) && has(most) ? `${least}..${most}` : has(least) ? `>=${least}` : `<=${most}`]);
  // The upper end of a range belongs to it, and the API gives the first length behind it.
  if (has(from) && below > 0) found.push(['took', `${from}ms..${below - 1}ms`]);
  else {
    if (has(from)) found.push(['took', `>=${from}ms`]);
    if (has(below)) found.push(['took', `<${below}ms`]);
  }
  for (const tag of filter.tags ?? []) found.push(['tag', quoted(tag)]);
  for (const [path, value] of Object.entries(filter.payload ?? {}))
    found.push([
      `payload.${path}`,
      typeof value === 'string' ? inQuotes(value) : isWord(value) ? value.word : String(value),
    ]);
  for (const text of filter.texts ?? []) found.push(['', inQuotes(text)]);
  for (const id of filter.ids ?? []) found.push(['id', id]);
  return found;
}

const written = ([field, value]) => (field ? `${field}:${value}` : value);

/** A choice as one word, or null for one that no word says. */
function choiceWord({ not, of }) {
  const each = of.map(conditionsOf);
  const strange = of.some((one) => one.choices?.length || unknownIn(one).length || isTyped(one.payload));
  if (strange || each.length === 0 || each.length > MOST_VALUES) return null;
  if (each.some((conditions) => conditions.length !== 1)) return null;
  const parts = each.map(([condition]) => condition);
  // A plain word is an id when it looks like one, so ids and texts may stand beside one another.
  const bare = parts.every(([field]) => field === '' || field === 'id');
  if (!bare && parts.some(([field]) => field !== parts[0][0])) return null;
  const field = bare && parts.some(([name]) => name === '') ? '' : parts[0][0];
  return `${not ? '-' : ''}${written([field, parts.map(([, value]) => value).join('|')])}`;
}

/** Members of a filter that this page does not know. A newer server may have more. */
const unknownIn = (filter) => Object.keys(filter).filter((name) => !known.has(name) && has(filter[name]));

/** Does it ask for a number, a boolean or null? A word would find texts with the same spelling as well. */
const isTyped = (payload) => Object.values(payload ?? {}).some((value) => typeof value !== 'string' && !isWord(value));

/** The words of a filter, and whether they say all of it. */
function wordsOf(filter) {
  const choices = (filter.choices ?? []).map(choiceWord);
  return {
    words: [...conditionsOf(filter).map(written), ...choices.filter(Boolean)],
    whole: choices.every(Boolean) && unknownIn(filter).length === 0,
  };
}

/** A filter in the words of the filter bar, as far as they can say it. */
export const filterText = (filter) => wordsOf(filter).words.join(' ');

/** The listing of the jobs that a filter means now; null when the address cannot say it. */
export function filterLink(filter) {
  const { words, whole } = wordsOf(filter);
  const q = words.join(' ');
  return whole && !isTyped(filter.payload) && new TextEncoder().encode(q).length <= LONGEST
    ? url('/jobs', { q })
    : null;
}

/** The filter of a request that means the same jobs: null for all of them, undefined when no request can say it. */
export function requestOf({ ids, payload, ...rest }) {
  const { words, whole } = wordsOf(rest);
  if (!whole) return undefined;
  const filter = {};
  if (words.length) filter.q = words.join(' ');
  if (ids?.length) filter.ids = ids;
  const values = Object.entries(payload ?? {});
  // The request takes exact values by their paths, and words in the text alone.
  const plainWords = values.filter(([, value]) => isWord(value));
  if (plainWords.length)
    filter.q = [filter.q, filterText({ payload: Object.fromEntries(plainWords) })].filter(Boolean).join(' ');
  const exact = values.filter(([, value]) => !isWord(value));
  if (exact.length) filter.payload = Object.fromEntries(exact);
  return Object.keys(filter).length ? filter : null;
}

/** A filter as a sentence says it. */
export function filterWords(filter) {
  const ids = filter.ids?.length;
  const subject = ids
    ? plural(ids, 'selected job')
    : filter.dead_letter
      ? `${filter.dead_letter} dead letters`
      : filter.state
        ? `${filter.state} jobs`
        : 'jobs';
  const parts = [];
  if (filter.kind) parts.push(`of the kind ${filter.kind}`);
  if (filter.queue) parts.push(`in the queue ${filter.queue}`);
  if (filter.fingerprint) parts.push(`of the group ${filter.fingerprint}`);
  if (filter.schedule) parts.push(`made by the schedule ${filter.schedule}`);
  if (filter.unique_key) parts.push(`with the key “${filter.unique_key}”`);
  if (filter.order_key) parts.push(`with the order key “${filter.order_key}”`);
  if (filter.batch) parts.push(`of the batch ${filter.batch}`);
  if (filter.limit_key) parts.push(`with the limit key “${filter.limit_key}”`);
  if (filter.host) parts.push(`to the host ${filter.host}`);
  if (filter.operation) parts.push(`made by the operation ${filter.operation}`);
  if (filter.texts?.length) parts.push(`with ${filter.texts.map((text) => `“${text}”`).join(', ')}`);
  if (filter.tags?.length) parts.push(`tagged ${filter.tags.join(', ')}`);
  if (filter.error) parts.push(`whose error says “${filter.error}”`);
  for (const [word, said] of Object.entries(moments)) {
    const [after, before] = [filter[`${word}_after`], filter[`${word}_before`]].map(
      (at) => at && utc(Date.parse(at)).replace(/\.\d+/, ''),
    );
    if (after || before)
      parts.push(`${said}${after ? ` after ${after}` : ''}${before ? `${after ? ' and' : ''} before ${before}` : ''}`);
  }
  for (const [path, value] of Object.entries(filter.payload ?? {}))
    parts.push(`with ${path} = ${typeof value === 'string' ? inQuotes(value) : (value?.word ?? value)} in the payload`);
  // The rest has no words of its own in a sentence.
  const rest = Object.fromEntries([...ranges, 'runner', 'choices'].map((name) => [name, filter[name]]));
  const { words } = wordsOf(rest);
  if (words.length) parts.push(`that match ${words.join(' ')}`);
  const unsaid = (filter.choices ?? []).filter((choice) => !choiceWord(choice));
  for (const { not, of } of unsaid.filter((choice) => choice.of.length > MOST_VALUES))
    parts.push(`that match ${not ? 'none' : 'one'} of ${of.length} conditions`);
  const missing = [...unknownIn(filter), ...unsaid.filter((choice) => choice.of.length <= MOST_VALUES)];
  if (missing.length) parts.push('with conditions that this page does not know');
  return parts.length || ids || filter.dead_letter || filter.state ? [subject, ...parts].join(' ') : 'all jobs';
}
