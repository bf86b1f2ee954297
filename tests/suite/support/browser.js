// What a test sees of a page, and where it clicks: things are found by role and name, as a reader of screens finds them.
// Runs in each page before the page's own scripts, put there by the driver, so the page's policy does not concern it.
(() => {
  const roles = {
    button: 'button, [role=button], summary, a.button',
    link: 'a[href]',
    field: 'input, textarea, select',
    option: '[role=option]',
    heading: 'h1, h2, h3, h4',
    row: 'tr',
  };
  const places = 'tr, li, article, section, fieldset, form, dialog';
  const squeeze = (text) => (text ?? '').replace(/\s+/g, ' ').trim();
  const seen = (el) => el.checkVisibility({ visibilityProperty: true }) && el.getClientRects().length > 0;

  /** A text without its spaces and capitals. Whatever can be read of an element is part of what its `textContent` has then. */
  const bare = (text) => (text ?? '').replace(/\s+/g, '').toLowerCase();

  /** Whether an element may have this name. Unlike [`nameOf`], this lays out nothing. */
  function mayBeNamed(el, name) {
    const named = el.labels?.length || ['aria-labelledby', 'aria-label', 'title', 'placeholder'].some((by) => el.hasAttribute(by));
    return named || bare(el.textContent).includes(name);
  }

  function nameOf(el) {
    const by = el.getAttribute('aria-labelledby');
    if (by) return squeeze(by.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? '').join(' '));
    if (el.hasAttribute('aria-label')) return squeeze(el.getAttribute('aria-label'));
    if (el.labels?.length) {
      // A label may hold its own field: the choices of a select are no part of its name.
      const label = el.labels[0].cloneNode(true);
      for (const inner of label.querySelectorAll('input, textarea, select, .hint, .wrong')) inner.remove();
      return squeeze(label.textContent);
    }
    return squeeze(el.innerText) || squeeze(el.title) || squeeze(el.placeholder);
  }

  /** How many places around an element there are until one has this text. */
  function distance(el, near) {
    let steps = 0;
    for (let place = el.closest(places); place; place = place.parentElement?.closest(places)) {
      if (squeeze(place.innerText).includes(near)) return steps;
      steps += 1;
    }
    return Infinity;
  }

  /**
   * The best match: the nearest one, and of those an exact name before one that begins so, before one that has it. While
   * a dialog is open, there is nothing else.
   */
  function find({ role, name, near }) {
    const root = [...document.querySelectorAll('dialog[open]')].at(-1) ?? document;
    const wanted = squeeze(name);
    const likely = bare(name);
    let best = null;
    let rank = Infinity;
    for (const el of root.querySelectorAll(roles[role])) {
      if (!mayBeNamed(el, likely) || !seen(el)) continue;
      const has = nameOf(el);
      if (!has.includes(wanted)) continue;
      const here = (near ? 3 * distance(el, near) : 0) + (has === wanted ? 0 : has.startsWith(wanted) ? 1 : 2);
      if (here < rank) [best, rank] = [el, here];
    }
    return best;
  }

  // Tests ask the same until the answer is the wanted one, and each question lays the page out anew. So an answer is kept
  // until the page changes, and never for longer than this: style sheets may change what is shown as well.
  const KEPT_MS = 300;
  const kept = new Map();
  new MutationObserver(() => kept.clear()).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
  for (const type of ['resize', 'focus', 'blur']) window.addEventListener(type, () => kept.clear(), { capture: true });
  function ask(question, wanted) {
    const key = JSON.stringify([question, wanted]);
    const before = kept.get(key);
    if (before && performance.now() - before.at < KEPT_MS) return before.answer;
    const answer = eye[question](wanted);
    kept.set(key, { answer, at: performance.now() });
    return answer;
  }

  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const middle = (el) => {
    const box = el.getClientRects()[0];
    return box && { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  };

  /** Whether a click on this element is one on `el`, wherever on the page it is. */
  const isOn = (top, el) => el.contains(top) || top.closest?.('label')?.control === el;
  const CLICK = ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click'];

  let pressed = null;
  let under = null;
  let clicked = null;
  let guard = null;
  const unguard = () => {
    for (const type of CLICK) window.removeEventListener(type, guard, { capture: true });
  };
  const eye = {
    /** The middle of something that stands still and that a click reaches, or why it cannot be clicked. */
    async target(wanted) {
      unguard();
      const el = find(wanted);
      if (!el) return { not: 'is not there' };
      if (el.disabled) return { not: 'is disabled' };
      el.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
      const before = middle(el);
      await frame();
      await frame();
      const at = el.isConnected && middle(el);
      if (!before || !at || at.x !== before.x || at.y !== before.y) return { not: 'moves' };
      const top = document.elementFromPoint(at.x, at.y);
      // An element that takes no mouse is clicked through the one around it.
      if (!top || !(isOn(top, el) || top.contains(el))) return { not: `is covered by ${top?.outerHTML.slice(0, 200)}` };
      // Another element may come here before the mouse does. A click on that one must have no effect.
      [pressed, clicked] = [null, false];
      guard = (event) => {
        // All around the element, the one that was aimed at is the only one that may take the click.
        if (isOn(event.target, el) || event.target === top) {
          if (event.type === 'mousedown') [pressed, under] = [el, event.target];
          // If the screen moves between press and release, the click goes to what both have around them.
          clicked ||= event.type === 'click' && event.target === under;
        } else if (!pressed) {
          event.preventDefault();
          event.stopImmediatePropagation();
        }
      };
      for (const type of CLICK) window.addEventListener(type, guard, { capture: true });
      return at;
    },
    /**
     * Whether the element was clicked. An option acts when it is pressed, and is gone then. A button that is gone between
     * press and release was not clicked: the screen was drawn anew.
     */
    hit() {
      unguard();
      return clicked || (pressed !== null && !pressed.isConnected && !pressed.matches('button, a'));
    },
    /** Put the caret into a field, with all of its text marked. Fields that are not typed into are set. */
    focus(wanted, text) {
      const el = find({ role: 'field', ...wanted });
      if (!el) return { not: 'is not there' };
      if (el.disabled) return { not: 'is disabled' };
      el.scrollIntoView({ block: 'center', behavior: 'instant' });
      el.focus();
      if (el.localName === 'select' || /^(date|datetime-local|time|range|color)$/.test(el.type)) {
        const choice = el.localName === 'select' ? [...el.options].find((option) => squeeze(option.textContent) === text || option.value === text) : { value: text };
        if (!choice) return { not: `has no choice ${text}, but ${[...el.options].map((option) => squeeze(option.textContent))}` };
        Object.getOwnPropertyDescriptor(Object.getPrototypeOf(el), 'value').set.call(el, choice.value);
        el.dispatchEvent(new Event('input', { bubbles: true }));
        el.dispatchEvent(new Event('change', { bubbles: true }));
        return { set: true };
      }
      el.select();
      return { typed: document.activeElement === el };
    },
    value: (wanted) => find({ role: 'field', ...wanted })?.value ?? null,
    has: (wanted) => find(wanted) !== null,
    /** The answer of `has` or `reads`, which may be as old as the page is unchanged. */
    ask,
    /** All that can be read. Style sheets may change capitals, so they do not count. */
    text: () => squeeze(document.body?.innerText),
    reads: (text) =>
      bare(document.body?.textContent).includes(bare(text)) &&
      squeeze(document.body?.innerText).toLowerCase().includes(squeeze(text).toLowerCase()),
    /** A screen is there when its heading is, and nothing is on its way any more. */
    settled: () => document.readyState === 'complete' && document.querySelector('h1') !== null && document.querySelector('[aria-busy=true]') === null,
    /** Go where a link would lead, without loading the page anew. */
    async follow(path) {
      const link = document.createElement('a');
      link.href = path;
      document.body.append(link);
      link.click();
      link.remove();
      // What is there now goes with the next frame.
      await frame();
      await frame();
    },
    /** What stands out of the page to the right, widest first. */
    overflow() {
      const most = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= most) return [];
      const out = [...document.querySelectorAll('body *')].filter((el) => seen(el) && el.getBoundingClientRect().right > most + 1);
      return out.slice(0, 3).map((el) => `${el.localName}.${el.className} to ${Math.round(el.getBoundingClientRect().right)}: ${squeeze(el.innerText).slice(0, 40)}`);
    },
  };
  Object.defineProperty(window, '__eye', { value: eye });
  document.addEventListener('securitypolicyviolation', (event) => {
    console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`);
  });
})();
