// A button that opens a small pane. A click elsewhere or Escape closes it.

import { cls, html, useEffect, useRef } from '../core/dom.js';

export function Drop({ label, small, end, id, children }) {
  const box = useRef(null);
  useEffect(() => {
    const close = () => {
      box.current.open = false;
    };
    const pressed = (event) => {
      if (box.current.open && !box.current.contains(event.target)) close();
    };
    const key = (event) => {
      if (event.key !== 'Escape' || !box.current.open) return;
      event.stopPropagation();
      close();
      box.current.querySelector('summary').focus();
    };
    const own = box.current;
    document.addEventListener('pointerdown', pressed);
    own.addEventListener('keydown', key);
    return () => {
      document.removeEventListener('pointerdown', pressed);
      own.removeEventListener('keydown', key);
    };
  }, []);
  // A link leads to another list of the same screen, and the pane would cover it.
  const follow = (event) => {
    if (event.target.closest('a')) box.current.open = false;
  };
  return html`<details class=${cls('drop', end && 'end')} id=${id} ref=${box}>
    <summary class=${cls('button', small && 'small')}>${label}</summary>
    <div class="pane stack tight" onClick=${follow}>${children}</div>
  </details>`;
}
