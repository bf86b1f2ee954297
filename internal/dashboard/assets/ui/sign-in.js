// The page on which an operator gives an API key.

import { signIn } from '../core/api.js';
import { html, useState } from '../core/dom.js';
import { Trouble } from './base.js';

export function SignIn() {
  const [state, set] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    const { key, keep } = event.target.elements;
    set({ busy: true, error: null });
    try {
      await signIn(key.value, keep.checked);
    } catch (error) {
      set({
        busy: false,
        error: error.status === 401 ? { message: 'Invalid API key: it may be mistyped, or revoked.' } : error,
      });
    }
  };
  return html`<main class="signin">
    <form class="panel stack" onSubmit=${submit}>
      <div class="brand"><img src="/ui/icon.svg" alt="" /><h1>tickr</h1></div>
      <div class="field">
        <label for="key">API key</label>
        <input id="key" name="key" type="password" required autocomplete="current-password" autofocus />
        <span class="hint">
          Made by <code>tickr api-keys create NAME --scope read</code>, or a token of <code>TICKR_API_TOKENS</code>.
        </span>
      </div>
      <label class="row"><input type="checkbox" name="keep" /> Keep it on this device</label>
      <${Trouble} error=${state.error} of="change" />
      <button class="primary" type="submit" disabled=${state.busy}>Sign in</button>
    </form>
  </main>`;
}
