import { bytesOf, wellFormed } from './json.js';

/** Most bytes of the log of an attempt. */
export const MAX_LOG_BYTES = 16 * 1_024;
const MAX_LINE_BYTES = 4 * 1_024;
/** Room for the line that says how many lines were dropped. */
const NOTE_BYTES = 64;
// Characters that control a terminal, without the tab.
const CONTROL = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/** Level of a line in the log of an attempt. */
export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

/** The newest lines of an attempt, at most 16 KiB. */
export class AttemptLog {
  #lines: string[] = [];
  #bytes = 0;
  #dropped = 0;

  /** Add a text. Each of its lines becomes a line of the log. */
  add(level: LogLevel, text: string): void {
    const time = new Date().toISOString().slice(11, 23);
    for (const line of text.split(/\r?\n/)) this.#push(`${time} ${level.toUpperCase().padEnd(5)} ${printable(line)}`);
  }

  /** Return the lines, or undefined when there are none. */
  text(): string | undefined {
    if (this.#lines.length === 0) return undefined;
    const note = this.#dropped > 0 ? [`(${this.#dropped} earlier lines were dropped)`] : [];
    return [...note, ...this.#lines].map((line) => `${line}\n`).join('');
  }

  #push(line: string): void {
    this.#lines.push(line);
    this.#bytes += bytesOf(line) + 1;
    while (this.#bytes > MAX_LOG_BYTES - NOTE_BYTES) {
      this.#bytes -= bytesOf(this.#lines.shift() as string) + 1;
      this.#dropped += 1;
    }
  }
}

function printable(line: string): string {
  const text = wellFormed(line, MAX_LINE_BYTES).replace(
    CONTROL,
    (sign) => `\\u{${(sign.codePointAt(0) as number).toString(16)}}`,
  );
  if (bytesOf(text) <= MAX_LINE_BYTES) return text;
  // The cut may fall into a character, which then becomes one sign.
  return `${Buffer.from(text, 'utf8')
    .subarray(0, MAX_LINE_BYTES - 8)
    .toString('utf8')
    .replace(/\ufffd$/, '')}…`;
}
