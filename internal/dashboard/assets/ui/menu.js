// The menu of screens at the side, with the choice of the theme.

import { may, me, signOut } from '../core/api.js';
import { cls, html, useState } from '../core/dom.js';
import { brief } from '../core/format.js';
import { observable, useObservable } from '../core/observable.js';
import { usePlace } from '../core/route.js';
import { screens } from '../core/screens.js';
import { Icon } from './base.js';
import { help } from './keyboard.js';
import { openPalette } from './palette.js';

/** Whether the menu is open, on a narrow page. */
export const menuOpen = observable(false);

export function Menu({ stats, deadLetters }) {
  const { path } = usePlace();
  const who = useObservable(me);
  const open = useObservable(menuOpen);
  const here = screens.find((screen) => screen.at.test(path));
  const current = here?.item?.[1] ?? here?.under;
  const pips = {
    '/dead-letters': deadLetters?.count ?? null,
    '/jobs': stats ? (stats.states.waiting ?? 0) + (stats.states.retrying ?? 0) + (stats.states.executing ?? 0) : null,
  };
  const items = screens.filter((screen) => screen.item && (!screen.need || may(screen.need, who)));
  return html`
    <nav class=${cls('side', open && 'open')} aria-label="Screens" id="menu">
      <a class="brand" href="/"><img src="/ui/icon.svg" alt="" />tickr</a>
      ${items.map(
        ({ item: [name, to, icon], begins }) => html`
          ${begins && html`<hr key=${`before ${to}`} />`}
          <a key=${to} class="item" href=${to} aria-current=${to === current ? 'page' : undefined}>
            <${Icon} of=${icon} />
            ${name}
            ${
              pips[to] > 0 &&
              html`<span class=${cls('pip', to === '/dead-letters' && 'bad')}>
                ${brief(pips[to], to === '/dead-letters' ? deadLetters.capped : !stats.exact)}
              </span>`
            }
          </a>
        `,
      )}
      <div class="foot">
        <${ThemeChoice} />
        <button type="button" class="quiet small" onClick=${openPalette}>Go to <kbd>Ctrl K</kbd></button>
        <button type="button" class="quiet small" onClick=${help}>Keyboard <kbd>?</kbd></button>
        <a class="soft" href="/docs">API reference</a>
        <span class="faint wrap">${who?.actor}${who?.scope && html` · ${who.scope}`}</span>
        ${
          who?.actor &&
          who.actor !== 'anyone' &&
          html`<button type="button" class="quiet small" onClick=${signOut}>Sign out</button>`
        }
      </div>
    </nav>
    ${open && html`<button class="veil" aria-label="Close the menu" onClick=${() => menuOpen.set(false)}></button>`}
  `;
}

function ThemeChoice() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? '');
  const choose = (event) => {
    const value = event.target.value;
    set(value);
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    try {
      if (value) localStorage.setItem('tickr.theme', value);
      else localStorage.removeItem('tickr.theme');
    } catch {
      /* it lasts as long as the page */
    }
  };
  return html`<label class="row">
    <span class="hidden-visually">Theme</span>
    <select value=${theme} onChange=${choose}>
      <option value="">System theme</option>
      <option value="light">Light</option>
      <option value="dark">Dark</option>
    </select>
  </label>`;
}
