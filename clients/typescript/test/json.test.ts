import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ExactNumber, parse, stringify } from 'tickr';

test('numbers of 64 bits and long decimals survive exactly', () => {
  const text = '{"n":9223372036854775807,"d":-12345678901234567890.123456789,"e":1e400,"s":[0.1,2.50,1e3,-7]}';
  const value = parse(text) as Record<string, unknown>;
  assert.equal(value['n'], 9223372036854775807n);
  assert.ok(value['d'] instanceof ExactNumber);
  assert.equal(String(value['d']), '-12345678901234567890.123456789');
  assert.deepEqual(value['s'], [0.1, 2.5, 1000, -7]);
  const expected = '{"n":9223372036854775807,"d":-12345678901234567890.123456789,"e":1e400,"s":[0.1,2.5,1000,-7]}';
  assert.equal(stringify(value), expected);
});

test('a number that a double holds exactly stays a number, however long it is written', () => {
  for (const text of [
    '9007199254740991',
    '0.10000000000000000',
    '1.5e-7',
    '123456789012345680000e0',
    '-0.0000000001e-20',
  ]) {
    assert.equal(typeof parse(`[${text}]`), 'object');
    const [value] = parse(`[${text}]`) as unknown[];
    assert.equal(typeof value, 'number', text);
    assert.equal(value, Number(text));
  }
});

test('a number of very many digits is read at once', () => {
  const began = performance.now();
  const text = `1.${'0'.repeat(250_000)}1`;
  const { x } = parse(`{"x":${text}}`) as { x: unknown };
  assert.ok(x instanceof ExactNumber && x.text === text);
  // Cutting the zeros off by an expression took a minute.
  assert.ok(performance.now() - began < 5_000, `${performance.now() - began} ms`);
});

test('an exact number counts as the nearest number, and JSON.stringify writes that', () => {
  const long = new ExactNumber('0.12345678901234567890');
  assert.equal(Number(long), 0.12345678901234568);
  assert.equal(JSON.stringify({ long }), '{"long":0.12345678901234568}');
  assert.throws(() => new ExactNumber('0x10'), SyntaxError);
});

test('the reader agrees with JSON.parse', () => {
  const risky = '1234567890123456';
  const texts = [
    '{}',
    '[]',
    '[1,[2,{"a":null}],true,false]',
    '{"a\\u0041\\"":"\\ud83d\\ude00"," ":{"__proto__":{"x":1}}}',
    ' "x" ',
  ];
  for (const text of texts) assert.deepEqual(parse(`[${risky},${text}]`), JSON.parse(`[${risky},${text}]`), text);
  for (const text of ['', '{', '[1,]', '{"a":1,}', '01', '"\\x"', 'nul', '[1] 2', '{"a" 1}', '1.', '-', '"\n"']) {
    assert.throws(() => JSON.parse(`[${risky},${text}]`), SyntaxError, text);
    assert.throws(() => parse(`[${risky},${text}]`), SyntaxError, text);
  }
  assert.throws(() => parse(`${'['.repeat(10_000)}${risky}`), SyntaxError);
});

test('values are written as JSON.stringify writes them', () => {
  const value = {
    a: undefined,
    b: [undefined, () => 1],
    c: new Date(0),
    d: Infinity,
    e: 'ü"\ud800',
    f: new Map(),
    g: -0,
  };
  assert.equal(stringify({ ...value, big: 1n }), `${JSON.stringify(value).slice(0, -1)},"big":1}`);
  assert.equal(stringify(undefined), 'null');
  const loop: Record<string, unknown> = { big: 1n };
  loop['self'] = loop;
  assert.throws(() => stringify(loop), TypeError);
});
