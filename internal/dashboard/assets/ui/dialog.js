// Dialogs: one at a time, opened from anywhere with a promise for the answer.
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { observable, useObservable } from '../core/observable.js';
import { Field, Trouble } from './base.js';

const open = observable(null);

/**
 * Show a dialog. `body` is a function of `{values, set, close}` that returns its content. The button `action` calls
 * `submit(values)`, which may throw a problem: that is shown, and the dialog stays. Resolves with what `submit`
 * returned, or undefined when it was closed.
 */
export function ask({
  title,
  body,
  action = 'OK',
  danger = false,
  values = {},
  submit = () => true,
  ready = null,
  broad = false,
  cancel = 'Cancel',
}) {
  const opener = document.activeElement;
  return new Promise((resolve) =>
    open.set({ title, body, action, danger, values, submit, ready, broad, cancel, resolve, opener }),
  );
}

/**
 * A question that an action asks first. `danger` is for what ends or removes something. `about` names what it is done
 * to.
 */
export const confirm = (title, text, action, submit, { danger = false, about } = {}) =>
  ask({
    title,
    body: () => html`${about && html`<p class="wrap">${about}</p>`}<p>${text}</p>`,
    action,
    danger,
    submit,
  });

/** A field of a dialog with one input for `values[name]`. The properties that are left over are those of the input. */
export const InputField = ({ label, id, name, hint, values, set, ...input }) =>
  html`<${Field} label=${label} id=${id} hint=${hint}>
    <input id=${id} ...${input} value=${values[name]} onInput=${(e) => set({ [name]: e.target.value })} />
  </${Field}>`;

export function Dialogs() {
  const asked = useObservable(open);
  return asked ? html`<${Open} key=${asked.title} asked=${asked} />` : null;
}

function Open({ asked }) {
  const element = useRef(null);
  const [values, setValues] = useState(asked.values);
  const [state, setState] = useState({ busy: false, error: null });
  useEffect(() => {
    element.current.showModal();
  }, []);
  const close = (answer) => {
    const { opener, resolve } = asked;
    element.current.close();
    open.set(null);
    // What opened it has the focus again, and the heading when that is gone: a user of the keyboard keeps the place.
    const back = opener?.isConnected && opener !== document.body ? opener : document.querySelector('main h1');
    back?.focus({ preventScroll: true });
    resolve(answer);
  };
  const set = (change) => setValues((old) => ({ ...old, ...(typeof change === 'function' ? change(old) : change) }));
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      close(await asked.submit(values));
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`
    <dialog
      ref=${element}
      class=${cls(asked.broad && 'broad')}
      aria-label=${asked.title}
      onCancel=${(event) => {
        event.preventDefault();
        // What comes of a request must be seen: it may be the only sight of a new API key.
        if (!state.busy) close();
      }}
      onClose=${() => {
        // A browser lets no page refuse a second Escape.
        if (state.busy && element.current?.isConnected) element.current.showModal();
      }}
    >
      <form method="dialog" onSubmit=${submit}>
        <header><h2>${asked.title}</h2></header>
        <div class="body stack tight">
          ${asked.body({ values, set, close, busy: state.busy })}
          <${Trouble} error=${state.error} />
        </div>
        <footer>
          <button type="button" disabled=${state.busy} onClick=${() => close()}>${asked.cancel}</button>
          ${
            asked.action &&
            html`
              <button
                type="submit"
                class=${asked.danger ? 'danger' : 'primary'}
                disabled=${state.busy || (asked.ready && !asked.ready(values))}
              >
                ${state.busy ? 'Working…' : asked.action}
              </button>
            `
          }
        </footer>
      </form>
    </dialog>
  `;
}
