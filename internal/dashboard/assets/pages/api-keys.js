// API keys: who may call the API, and for what.

import { call, me, seg, signIn } from '../core/api.js';
import { html } from '../core/dom.js';
import { plural } from '../core/format.js';
import { useObservable } from '../core/observable.js';
import { useQuery } from '../core/query.js';
import { Badge, Copy, Empty, Head, Panel, Skeleton, Time, Trouble, tell, useMay } from '../ui/base.js';
import { ask, InputField } from '../ui/dialog.js';

const SCOPES = [
  ['read', 'Reads everything', 'For dashboards and monitoring. It sees all payloads, and changes nothing.'],
  ['enqueue', 'Enqueues jobs', 'For programs that make jobs. It reads a job back by its id, and sees nothing else.'],
  ['admin', 'Everything', 'For operators and deployments: cancels, pauses, deletes, and makes and revokes API keys.'],
];
/** A scope that the dashboard shows, and the command line gives. */
const WORK = [
  'work',
  'Executes jobs',
  'For remote workers: it fetches jobs and reports on them, and sees nothing else.',
];
const NAME = '[a-z0-9][a-z0-9_.\\-]{0,63}';

export default function ApiKeys() {
  const may = useMay('admin');
  const who = useObservable(me);
  const keys = useQuery(may ? '/v1/api-keys' : null, { every: 15000 });
  const all = keys.data?.data ?? [];
  const good = all.filter((key) => !key.revoked_at);
  const revoked = all.filter((key) => key.revoked_at);
  const open = who?.actor === 'anyone';
  const reload = keys.reload;
  if (!may)
    return html`
      <${Head} title="API keys" />
      <${Empty} title="This API key sees no API keys">
        Listing and making them needs the scope <code>admin</code>.
      </${Empty}>
    `;
  const add = html`<button type="button" class="primary" onClick=${() => make(open, reload)}>Make an API key</button>`;
  return html`
    <${Head}
      title="API keys"
      sub=${
        keys.data &&
        (good.length
          ? `${plural(good.length, 'valid API key')}, ${revoked.length} revoked`
          : 'Who may call the API, and for what')
      }
    >
      ${add}
    </${Head}>
    <${Trouble} error=${keys.error} retry=${reload} />
    ${
      open &&
      html`<div class="note warn">
        <b>The API is open.</b> There is no API key and no token, so every program that reaches this port may do
        everything; therefore it listens on loopback alone.
        <p>
          The first API key closes it, here and on all runners within 2 s: from then on every call needs an API key,
          this page too. Programs that call without one are refused until they have theirs. Revoking all API keys does
          not open it again.
        </p>
      </div>`
    }
    ${!keys.data && !keys.error && html`<${Skeleton} />`}
    ${
      keys.data &&
      all.length === 0 &&
      html`<${Panel} title="All API keys">
        <${Empty} title="No API keys yet">
          ${
            open
              ? html`Make the first one with the scope <code>admin</code>, for yourself. `
              : 'Calls come with tokens of the configuration (TICKR_API_TOKENS), each good for everything. ' +
                'API keys have a name, a scope, and an end. '
          }
          The command line does the same:
          <div>
            <pre>tickr api-keys create ops --scope admin
tickr api-keys create shop --scope enqueue</pre>
          </div>
        </${Empty}>
      </${Panel}>`
    }
    ${
      good.length > 0 &&
      html`<section class="panel scroll" aria-label="Valid API keys">
        <${Table}
          rows=${good}
          who=${who}
          reload=${reload}
          last=${good.filter((key) => key.scope === 'admin').length === 1}
        />
      </section>`
    }
    ${
      revoked.length > 0 &&
      html`<section class="panel scroll" aria-label="Revoked API keys">
        <details>
          <summary class="body">${plural(revoked.length, 'API key')} revoked</summary>
          <${Table} rows=${revoked} />
        </details>
      </section>`
    }
    <${Panel} title="What the scopes allow">
      <dl class="facts">
        ${[...SCOPES, WORK].map(
          ([scope, , about]) => html`<dt key=${scope}><${Scope} is=${scope} /></dt><dd>${about}</dd>`,
        )}
      </dl>
      <p class="faint">
        An API key goes into the header <code>Authorization: Bearer</code>. tickr keeps only its SHA-256. Give each
        program and each person an API key of their own: what they did stands in the <a href="/audit">audit</a> under
        its name.
      </p>
    </${Panel}>
  `;
}

const Scope = ({ is }) => html`<${Badge} is=${is === 'admin' ? 'warn' : 'waiting'}>${is}</${Badge}>`;

/** What an API key is limited to, beside its scope. */
const limitsOf = ({ kinds, queues, producer }) =>
  [
    kinds && `kinds: ${kinds.join(', ')}`,
    queues && `queues: ${queues.join(', ')}`,
    producer && `producer: ${producer}`,
  ].filter(Boolean);

const Table = ({ rows, who, reload, last }) => html`<table class="cards">
  <thead>
    <tr>
      <th>Name</th>
      <th>Scope</th>
      <th>Made</th>
      <th>${who ? 'Last used' : 'Revoked'}</th>
      ${who && html`<th><span class="hidden-visually">Actions</span></th>`}
    </tr>
  </thead>
  <tbody>
    ${rows.map(
      (key) => html`<tr key=${key.name}>
        <td data-label="Name" class="wrap">
          <span>
            <b>${key.name}</b>
            ${who?.actor === `key:${key.name}` && html` <${Badge} is="good">yours</${Badge}>`}
          </span>
        </td>
        <td data-label="Scope" class="wrap">
          <div class="stack tighter">
            <span><${Scope} is=${key.scope} /></span>
            ${limitsOf(key).map((text) => html`<span key=${text} class="soft">${text}</span>`)}
          </div>
        </td>
        <td data-label="Made">
          <span class="clip" title=${key.created_by}><${Time} at=${key.created_at} /> by ${key.created_by}</span>
        </td>
        ${
          who
            ? html`
              <td data-label="Last used">
                ${key.last_used_at ? html`<${Time} at=${key.last_used_at} />` : html`<span class="faint">never</span>`}
              </td>
              <td class="right">
                <button
                  type="button"
                  class="small danger"
                  aria-label=${`Revoke ${key.name}`}
                  onClick=${() => revoke(key, who, last && key.scope === 'admin', reload)}
                >
                  Revoke
                </button>
              </td>
            `
            : html`<td data-label="Revoked">
              <span class="clip" title=${key.revoked_by}><${Time} at=${key.revoked_at} /> by ${key.revoked_by}</span>
            </td>`
        }
      </tr>`,
    )}
  </tbody>
</table>`;

async function make(open, reload) {
  const made = await ask({
    title: open ? 'Make the first API key' : 'Make an API key',
    action: 'Make it',
    values: { name: '', scope: open ? 'admin' : 'enqueue', sure: false },
    ready: (values) => !open || values.sure,
    body: ({ values, set }) => html`
      <${InputField}
        label="Name"
        id="key-name"
        name="name"
        hint="Of the program or person: a-z 0-9 _ . -. A name belongs to one API key for ever."
        required
        pattern=${NAME}
        maxlength="64"
        autocomplete="off"
        spellcheck=${false}
        placeholder="shop"
        values=${values}
        set=${set}
      />
      <fieldset>
        <legend>Scope</legend>
        <div class="stack tight">
          ${SCOPES.map(
            ([scope, name, about]) => html`<label class="row top item" key=${scope}>
              <input type="radio" name="scope" checked=${values.scope === scope} onChange=${() => set({ scope })} />
              <span><b>${scope}</b> · ${name}<br /><span class="faint">${about}</span></span>
            </label>`,
          )}
        </div>
      </fieldset>
      ${
        open &&
        html`
          <div class="note warn">
            <b>This closes the API.</b> Every call needs an API key from then on, this page too.
            ${
              values.scope !== 'admin' &&
              html`
                ${' '}<b>And this one is no admin API key:</b> it cannot make another; only${' '}
                <code>tickr api-keys create --in-store</code> on a machine that reaches MySQL can.
              `
            }
          </div>
          <label class="row top item">
            <input type="checkbox" checked=${values.sure} onChange=${(e) => set({ sure: e.target.checked })} />
            <span>I will copy the API key, and give one to each program that calls the API.</span>
          </label>
        `
      }
    `,
    submit: async ({ name, scope }) => {
      const key = await call('PUT', `/v1/api-keys/${seg(name)}`, { body: { scope } });
      // The page itself needs a key now: that one, if it is good for it.
      if (open && key.scope !== 'enqueue') await signIn(key.token, false).catch(() => {});
      return key;
    },
  });
  if (!made) return;
  reload();
  // It cannot be shown again, so no slip of a finger takes it away.
  while (
    !(await show(made, open)) &&
    !(await ask({
      title: 'Is the API key copied?',
      action: 'Close',
      cancel: 'Show it again',
      danger: true,
      lasting: true,
      body: () => html`<p>It is never shown again. A lost API key is revoked, and another one made.</p>`,
    }))
  );
}

const show = (made, open) =>
  ask({
    title: `The API key ${made.name}`,
    action: 'I have copied it',
    cancel: 'Close',
    broad: true,
    lasting: true,
    body: () => html`
      <div class="note warn">
        <b>It is shown now and never again.</b> Put it where secrets belong. Who has it may do what${' '}
        <code>${made.scope}</code> allows, until it is revoked.
      </div>
      <div class="row item">
        <pre class="grow mono" id="key-token">${made.token}</pre>
        <${Copy} text=${made.token} label="Copy the API key" />
      </div>
      <p class="faint">
        Used so: <code class="wrap">curl -H "Authorization: Bearer $TICKR_TOKEN" ${location.origin}/v1/whoami</code>
      </p>
      ${
        open &&
        made.scope !== 'enqueue' &&
        html`<p class="soft">This page goes on with this API key until it is closed. Next time it asks for one.</p>`
      }
    `,
  });

const revoke = (key, who, last, reload) =>
  ask({
    title: `Revoke the API key ${key.name}?`,
    action: 'Revoke',
    danger: true,
    body: () => html`
      <p>
        It is refused within 2 s everywhere, for good.${' '}
        ${
          key.last_used_at
            ? html`
              It was last used <${Time} at=${key.last_used_at} />: programs that use it are refused from then on.
            `
            : 'It was never used.'
        }${' '}
        The name cannot be given again.
      </p>
      ${
        who?.actor === `key:${key.name}` &&
        html`<div class="note bad">
          <b>It is the API key that you use here.</b> You will be asked for another one.
        </div>`
      }
      ${
        last &&
        html`<div class="note bad">
          <b>It is the only admin API key.</b> Without another, or a token of TICKR_API_TOKENS, no API key can be made
          here; <code>tickr api-keys create --in-store</code> can.
        </div>`
      }
    `,
    submit: async () => {
      await call('DELETE', `/v1/api-keys/${seg(key.name)}`);
      tell(`${key.name} is refused from now on`);
      reload();
      return true;
    },
  });
