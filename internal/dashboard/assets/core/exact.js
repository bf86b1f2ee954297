// JSON whose numbers stay as they were written. JavaScript changes some of them: 9007199254740993, 1.10, 1e400.

/** A number that a JavaScript number would change, as its text. */
export class Exact {
  constructor(text) {
    this.text = text;
  }
  toString() {
    return this.text;
  }
  toJSON() {
    return typeof JSON.rawJSON === 'function' ? JSON.rawJSON(this.text) : Number(this.text);
  }
}

// No text of the server begins like this, because it is made anew by each page.
const MARK = `exact-${Math.random().toString(36).slice(2)}${Math.random().toString(36).slice(2)}:`;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const WRITTEN = new RegExp(`"${MARK}([^"]*)"`, 'g');

/** The value of a JSON text, with `Exact` in place of the numbers that would change. */
export function parseExact(text) {
  let some = false;
  const marked = text.replace(TOKENS, (token) => {
    if (token[0] === '"' || String(Number(token)) === token) return token;
    some = true;
    return `"${MARK}${token}"`;
  });
  if (!some) return JSON.parse(text);
  return JSON.parse(marked, (_, value) =>
    typeof value === 'string' && value.startsWith(MARK) ? new Exact(value.slice(MARK.length)) : value,
  );
}

/** JSON of a value, with the numbers as they were written. */
export function writeExact(value, indent) {
  // `toJSON` is asked before the function here, so this looks at the value where it stands.
  const text = JSON.stringify(
    value,
    function mark(name, plain) {
      return this[name] instanceof Exact ? MARK + this[name].text : plain;
    },
    indent,
  );
  return text?.replace(WRITTEN, '$1');
}

/** Members of answers that are values of clients, not of the API. */
const FOREIGN = ['payload', 'result', 'content', 'exchange', 'detail', 'value'];

function take(body, twin) {
  for (const [name, value] of Object.entries(body)) {
    if (FOREIGN.includes(name)) body[name] = twin[name];
    else if (value && typeof value === 'object') take(value, twin[name]);
  }
}

/** The body of an answer: the values of clients are exact, and the figures of the API are plain numbers. */
export function parseAnswer(text) {
  const body = JSON.parse(text);
  if (body && typeof body === 'object' && FOREIGN.some((name) => text.includes(`"${name}":`)))
    take(body, parseExact(text));
  return body;
}
