// Elements as tagged templates. Every value that is put into one is text: nothing in this program makes HTML of strings.
import { h, Fragment } from '../vendor/preact.mjs';
import htm from '../vendor/htm.mjs';

export const html = htm.bind(h);
export { Fragment };
export { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect, useId } from '../vendor/hooks.mjs';

/** Words of a class attribute; what is false is left out. */
export const cls = (...words) => words.filter(Boolean).join(' ');
