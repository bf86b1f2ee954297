// Dialogs: one at a time, opened from anywhere with a promise for the answer.
import { me, postOnce } from '../core/api.js';
import { cls, html, useEffect, useRef, useState } from '../core/dom.js';
import { observable, useObservable } from '../core/observable.js';
import { place } from '../core/route.js';
import { Field, Trouble } from './base.js';

const open = observable(null);

/**
 * Show a dialog. `body` is a function of `{values, set, close}` that returns its content. The button `action` calls
 * `submit(values, once)`, which may throw a problem: that is shown, and the dialog stays. `once` is a `post` for what
 * must not be done twice when the button is pressed again. Resolves with what `submit` returned, or undefined when it
 * was closed.
 * A dialog is about what is behind it: it is closed when the user goes elsewhere or the session ends, unless it is
 * `lasting`.
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
  lasting = false,
}) {
  const opener = document.activeElement;
  const once = postOnce();
  return new Promise((resolve) =>
    open.set({ title, body, action, danger, values, submit, once, ready, broad, cancel, lasting, resolve, opener }),
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

/** What the screen shows: its path, and the job beside its list. */
const shownAt = ({ path, query }) => `${path} ${query.get('job') ?? ''}`;

function Open({ asked }) {
  const element = useRef(null);
  const [values, setValues] = useState(asked.values);
  const [state, setState] = useState({ busy: false, error: null });
  const close = (answer) => {
    if (open.get() !== asked) return;
    const { opener, resolve } = asked;
    element.current.close();
    open.set(null);
    // What opened it has the focus again, and the heading when that is gone: a user of the keyboard keeps the place.
    const back = opener?.isConnected && opener !== document.body ? opener : document.querySelector('main h1');
    back?.focus({ preventScroll: true });
    resolve(answer);
  };
  // What comes of a request must be seen, also elsewhere.
  const busy = useRef(false);
  busy.current = state.busy;
  useEffect(() => {
    element.current.showModal();
    if (asked.lasting) return undefined;
    const at = shownAt(place.get());
    const quiet = [
      place.listen((there) => shownAt(there) !== at && !busy.current && close()),
      me.listen((who) => who?.unknown && !busy.current && close()),
    ];
    return () => {
      for (const end of quiet) end();
    };
  }, []);
  const set = (change) => setValues((old) => ({ ...old, ...(typeof change === 'function' ? change(old) : change) }));
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      close(await asked.submit(values, asked.once));
    } catch (error) {
      // The session has ended, so nothing was changed, and the page asks for an API key. Any other error must be seen.
      if (error.status === 401 && me.get()?.unknown && !asked.lasting) close();
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
          <${Trouble} error=${state.error} of="change" />
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
