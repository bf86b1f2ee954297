// Elements as tagged templates. Every value that is put into one is text: nothing in this program makes HTML of
// strings. A line break and the spaces around it vanish beside a tag or a value: a space that is meant there is written
// `${' '}`.

import htm from '../vendor/htm.mjs';
import { Fragment, h } from '../vendor/preact.mjs';

export const html = htm.bind(h);
export { Fragment };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from '../vendor/hooks.mjs';

/** Words of a class attribute; what is false is left out. */
export const cls = (...words) => words.filter(Boolean).join(' ');
