// Elements as tagged templates. Every value that is put into one is text: nothing in this program makes HTML of
// strings. A line break and the spaces around it vanish beside a tag or a value: a space that is meant there is written
// `${' '}`.

import htm from '../vendor/htm.mjs';
import { Fragment, h } from '../vendor/preact.mjs';

// Characters that turn the direction of the text around them. They would make it look like another text.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
/** A text with these characters written out. */
export const legible = (text) =>
  text.replace(TURNS, (turn) => `\\u${turn.charCodeAt(0).toString(16).padStart(4, '0')}`);
const seen = (child) => (typeof child === 'string' ? legible(child) : Array.isArray(child) ? child.map(seen) : child);

// What is typed stays as it is: the value of a field is no child.
export const html = htm.bind((type, props, ...children) =>
  h(type, props?.title ? { ...props, title: seen(props.title) } : props, ...children.map(seen)),
);
export { Fragment };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from '../vendor/hooks.mjs';

/** Words of a class attribute; what is false is left out. */
export const cls = (...words) => words.filter(Boolean).join(' ');
