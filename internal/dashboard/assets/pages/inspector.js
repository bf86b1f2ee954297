// One job beside a list, for the screens that have such a list.

import { html, useEffect, useRef } from '../core/dom.js';
import { mark } from '../ui/keyboard.js';
import { JobView } from './job.js';

/** On such a page the job covers the list. */
export const NARROW = '(max-width: 900px)';
/** A job that is passed on the way to another one is not read, in ms. */
export const PASSING = 120;

/** One job beside the list. `step` opens the next one (1) or the one before (-1). */
export function Inspector({ id, step, close }) {
  const box = useRef(null);
  useEffect(() => {
    // On a wide page the focus stays in the list, so that j and k go on from there.
    if (matchMedia(NARROW).matches) box.current.focus();
  }, []);
  useEffect(() => box.current.scrollTo(0, 0), [id]);
  // The keys go on from the job that a button of this panel opened.
  const stepped = useRef(false);
  const press = (by) => {
    stepped.current = true;
    step(by);
  };
  useEffect(() => {
    const row = stepped.current && document.querySelector('tr[data-row][data-current]');
    if (row) mark(row);
    stepped.current = false;
  }, [id]);
  return html`<aside class="inspector panel" aria-label="Job" ref=${box} tabindex="-1">
    <header>
      <span class="row tight grow">
        <button type="button" class="small" aria-label="Previous job" title="k" onClick=${() => press(-1)}>↑</button>
        <button type="button" class="small" aria-label="Next job" title="j" onClick=${() => press(1)}>↓</button>
      </span>
      <a class="button small" href=${`/jobs/${id}`}>Open page</a>
      <button type="button" class="small" data-escape aria-label="Close the job" onClick=${close}>✕</button>
    </header>
    <div class="body stack"><${JobView} key=${id} id=${id} aside gone=${close} /></div>
  </aside>`;
}
