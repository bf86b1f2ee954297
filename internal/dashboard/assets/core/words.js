// The words of a filter, as the search field and the facets change them.

const WORDS = /(?:[^\s"]|"(?:\\.|[^"\\])*")+/g;

/** The words of a filter. Spaces within quotes belong to a word. */
export const split = (text) => text.match(WORDS) ?? [];

/** A value as a filter writes it. */
export const quoted = (value) => (/[\s\u0085"\\|]|^-/.test(value) ? `"${value.replace(/[\\"]/g, '\\$&')}"` : value);

/** A filter with one of its words set, or taken away. What it left out of the field is taken away as well. */
export function withWord(text, field, value) {
  const rest = split(text).filter((word) => !word.replace(/^-/, '').startsWith(`${field}:`));
  return [...(value ? [`${field}:${value}`] : []), ...rest].join(' ');
}

/** The value of a word of a filter. */
export const wordOf = (text, field) =>
  split(text)
    .find((word) => word.startsWith(`${field}:`))
    ?.slice(field.length + 1) ?? null;

/** A value without the quotes of a filter. */
const unquoted = (written) =>
  written.startsWith('"') ? written.replace(/^"|"$/g, '').replace(/\\(.)/g, '$1') : written;

/** The values of a word. `|` separates them outside of quotes. */
export const valuesOf = (written) => (written.match(/(?:[^|"]|"(?:\\.|[^"\\])*")+/g) ?? []).map(unquoted);

/** What a filter says of a field: the values that it wants, and those that it does not want. */
export function termsOf(text, field) {
  const terms = { wanted: [], unwanted: [] };
  for (const word of split(text)) {
    const not = word.startsWith('-');
    const plain = not ? word.slice(1) : word;
    if (plain.startsWith(`${field}:`))
      terms[not ? 'unwanted' : 'wanted'].push(...valuesOf(plain.slice(field.length + 1)));
  }
  return terms;
}

/** A filter with other terms of a field. Of the wanted values one must hold, of the unwanted ones none. */
function withTerms(text, field, { wanted, unwanted }) {
  const rest = split(text).filter((word) => !word.replace(/^-/, '').startsWith(`${field}:`));
  const words = [];
  // A job may have several tags, and each word asks for one more. Every other field has one value.
  if (field === 'tag') words.push(...wanted.map((value) => `tag:${quoted(value)}`));
  else if (wanted.length) words.push(`${field}:${wanted.map(quoted).join('|')}`);
  words.push(...unwanted.map((value) => `-${field}:${quoted(value)}`));
  return [...words, ...rest].join(' ');
}

const without = (values, value) => values.filter((one) => one !== value);

/** A filter that wants this value of a field, or, if it does already, does not ask for it any more. */
export function toggled(text, field, value) {
  const { wanted, unwanted } = termsOf(text, field);
  return withTerms(text, field, {
    wanted: wanted.includes(value) ? without(wanted, value) : [...wanted, value],
    unwanted: without(unwanted, value),
  });
}

/** A filter that leaves out this value of a field, or, if it does already, lets it in again. */
export function excluded(text, field, value) {
  const { wanted, unwanted } = termsOf(text, field);
  return withTerms(text, field, {
    wanted: without(wanted, value),
    unwanted: unwanted.includes(value) ? without(unwanted, value) : [...unwanted, value],
  });
}
