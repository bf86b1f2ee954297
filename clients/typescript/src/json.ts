// JSON that keeps every number. `JSON.parse` rounds integers beyond 2^53 and long decimals without a word, and ids of
// 64 bits are common in payloads.

const PLAIN_INTEGER = /^-?\d+$/;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
/** A double holds any decimal of up to 15 digits, so only longer numbers and exponents need a second look. */
const RISKY = /\d[\d.]{15,}|\d[eE]/;
const MAX_LEVELS = 512;

/** Set when `JSON.stringify` met a number that it cannot write. */
let sawExact = false;

/**
 * A JSON number that no `number` and no `bigint` holds, such as a decimal with 25 digits.
 *
 * `text` has all its digits. In arithmetic it behaves like the nearest `number`. {@link stringify}, and so every
 * payload and result, writes all digits again; `JSON.stringify` of your own writes the nearest number.
 */
export class ExactNumber {
  readonly text: string;

  constructor(text: string) {
    NUMBER.lastIndex = 0;
    if (NUMBER.exec(text)?.[0] !== text) throw new SyntaxError(`${JSON.stringify(text)} is no JSON number`);
    this.text = text;
  }

  valueOf(): number {
    return Number(this.text);
  }

  toString(): string {
    return this.text;
  }

  toJSON(): number {
    sawExact = true;
    return Number(this.text);
  }
}

/**
 * Read JSON. Integers that a `number` cannot hold exactly become a `bigint`, other such numbers an {@link
 * ExactNumber}.
 *
 * @throws SyntaxError when the text is not JSON.
 */
export function parse(text: string): unknown {
  return RISKY.test(text) ? new Reader(text).whole() : JSON.parse(text);
}

/**
 * Write JSON, as `JSON.stringify` does, but with every digit of a `bigint` and of an {@link ExactNumber}. A value
 * that JSON cannot have (`undefined`, a function) becomes `null`.
 *
 * @throws TypeError when the value contains itself.
 */
export function stringify(value: unknown): string {
  sawExact = false;
  try {
    const text = JSON.stringify(value) as string | undefined;
    if (!sawExact) return text ?? 'null';
  } catch (error) {
    // A bigint stops JSON.stringify. Any other error happens again below.
    if (!(error instanceof TypeError)) throw error;
  }
  return write(value, '', []) ?? 'null';
}

function write(given: unknown, key: string, within: object[]): string | undefined {
  let value = given;
  if (value instanceof ExactNumber) return value.text;
  if (typeof value === 'bigint') return value.toString();
  if (typeof value === 'object' && value !== null && 'toJSON' in value && typeof value.toJSON === 'function') {
    value = value.toJSON(key);
  }
  if (value instanceof ExactNumber) return value.text;
  if (typeof value === 'bigint') return value.toString();
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return JSON.stringify(value);
  if (within.includes(value)) throw new TypeError('a value that contains itself cannot be written as JSON');
  within.push(value);
  let text: string;
  if (Array.isArray(value)) {
    text = `[${value.map((item, place) => write(item, String(place), within) ?? 'null').join(',')}]`;
  } else {
    const fields: string[] = [];
    for (const [name, item] of Object.entries(value)) {
      const written = write(item, name, within);
      if (written !== undefined) fields.push(`${JSON.stringify(name)}:${written}`);
    }
    text = `{${fields.join(',')}}`;
  }
  within.pop();
  return text;
}

/** A reader of one JSON text. */
class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  whole(): unknown {
    const value = this.#value(0);
    this.#space();
    if (this.#at < this.#text.length) throw this.#unexpected();
    return value;
  }

  #value(level: number): unknown {
    if (level > MAX_LEVELS) throw new SyntaxError(`JSON of more than ${MAX_LEVELS} levels`);
    this.#space();
    switch (this.#text[this.#at]) {
      case '{':
        return this.#object(level);
      case '[':
        return this.#array(level);
      case '"':
        return this.#string();
      case 't':
        return this.#word('true', true);
      case 'f':
        return this.#word('false', false);
      case 'n':
        return this.#word('null', null);
      default:
        return this.#number();
    }
  }

  #object(level: number): Record<string, unknown> {
    const object: Record<string, unknown> = {};
    this.#at += 1;
    if (this.#next('}')) return object;
    do {
      this.#space();
      if (this.#text[this.#at] !== '"') throw this.#unexpected();
      const name = this.#string();
      if (!this.#next(':')) throw this.#unexpected();
      const value = this.#value(level + 1);
      // An assignment to `__proto__` would set the prototype.
      Object.defineProperty(object, name, { value, configurable: true, enumerable: true, writable: true });
    } while (this.#next(','));
    if (!this.#next('}')) throw this.#unexpected();
    return object;
  }

  #array(level: number): unknown[] {
    const array: unknown[] = [];
    this.#at += 1;
    if (this.#next(']')) return array;
    do array.push(this.#value(level + 1));
    while (this.#next(','));
    if (!this.#next(']')) throw this.#unexpected();
    return array;
  }

  #string(): string {
    const start = this.#at;
    for (let at = start + 1; at < this.#text.length; at += 1) {
      const unit = this.#text.charCodeAt(at);
      if (unit === 0x5c) at += 1;
      else if (unit === 0x22) {
        this.#at = at + 1;
        return JSON.parse(this.#text.slice(start, this.#at)) as string;
      }
    }
    throw new SyntaxError('JSON ends within a string');
  }

  #number(): unknown {
    NUMBER.lastIndex = this.#at;
    const text = NUMBER.exec(this.#text)?.[0];
    if (text === undefined) throw this.#unexpected();
    this.#at += text.length;
    return exactly(text);
  }

  #word<T>(word: string, value: T): T {
    if (!this.#text.startsWith(word, this.#at)) throw this.#unexpected();
    this.#at += word.length;
    return value;
  }

  #next(sign: string): boolean {
    this.#space();
    if (this.#text[this.#at] !== sign) return false;
    this.#at += 1;
    return true;
  }

  #space(): void {
    while (' \t\n\r'.includes(this.#text[this.#at] ?? 'x')) this.#at += 1;
  }

  #unexpected(): SyntaxError {
    return new SyntaxError(`unexpected ${JSON.stringify(this.#text[this.#at] ?? 'end')} in JSON at ${this.#at}`);
  }
}

function exactly(text: string): number | bigint | ExactNumber {
  const number = Number(text);
  if (PLAIN_INTEGER.test(text)) return Number.isSafeInteger(number) ? number : BigInt(text);
  return Number.isFinite(number) && sameDecimal(text, String(number)) ? number : new ExactNumber(text);
}

function sameDecimal(one: string, other: string): boolean {
  const [left, right] = [canonical(one), canonical(other)];
  return left.digits === right.digits && (left.digits === '' || left.exponent === right.exponent);
}

/** Return the digits without zeros around them, and the power of ten of the last one. */
function canonical(text: string): { digits: string; exponent: number } {
  const [mantissa = '', power = '0'] = text.replace(/^-/, '').toLowerCase().split('e', 2);
  const [whole = '', fraction = ''] = mantissa.split('.', 2);
  const digits = (whole + fraction).replace(/^0+/, '');
  const trimmed = withoutZerosAtTheEnd(digits);
  return { digits: trimmed, exponent: Number(power) - fraction.length + digits.length - trimmed.length };
}

/** Cut zeros off the end. `replace(/0+$/, '')` would begin anew at each zero, and take a minute for a long number. */
function withoutZerosAtTheEnd(digits: string): string {
  let end = digits.length;
  while (end > 0 && digits.charCodeAt(end - 1) === 0x30) end -= 1;
  return digits.slice(0, end);
}

/** Return how many arrays and objects of a JSON text lie within each other. */
export function levelsOf(json: string): number {
  let [depth, deepest] = [0, 0];
  let isInString = false;
  for (let at = 0; at < json.length; at += 1) {
    const unit = json.charCodeAt(at);
    if (unit === 0x22) isInString = !isInString;
    else if (isInString) at += unit === 0x5c ? 1 : 0;
    else if (unit === 0x5b || unit === 0x7b) depth += 1;
    else if (unit === 0x5d || unit === 0x7d) depth -= 1;
    deepest = Math.max(deepest, depth);
  }
  return deepest;
}

/** Return the number of bytes of the text in UTF-8. */
export function bytesOf(text: string): number {
  return Buffer.byteLength(text, 'utf8');
}

/** Cut a text to this many characters, and make it valid Unicode: a server refuses half a surrogate pair. */
export function wellFormed(text: string, characters: number): string {
  const sound = Buffer.from(text, 'utf8').toString('utf8');
  if (sound.length <= characters) return sound;
  return Array.from(sound).slice(0, characters).join('');
}
