// The client of the chat. Texts of users reach the page as text nodes only, and the policy of the server runs no script
// but this file.
//
// A message has its id before it is sent, waits in `outbox` until the server has acknowledged it, and is sent again
// after five seconds or a break. Of each conversation one message is under way at a time: the server takes a message
// whose number fits, so a second one could overtake a first one that it refuses. Received ids are kept, so a message
// that arrives twice is shown once. `cursor` is the place in the inbox up to which nothing is missing; a gap behind it
// is fetched.

const $ = (id) => document.getElementById(id);
const RESEND_MS = 5_000;
/** After as many tries the connection is given up, and the message waits for the next one. */
const TRIES = 4;
/** The longest wait for a part of the inbox. */
const SYNC_MS = 30_000;
const TYPING_MS = 3_000;
const PRESENCE_MS = 30_000;
/** The first pause before what the server could not do is asked for again, and the longest one. */
const AGAIN_MS = 1_000;
const LONGEST_AGAIN_MS = 15_000;

const state = {
  user: null,
  device: null,
  socket: null,
  connectTimer: null,
  greeted: false,
  pause: 250,
  conversations: new Map(),
  open: null,
  cursor: null,
  newest: 0,
  syncing: false,
  syncTimer: null,
  /** What is asked for again soon, by the type of its frame. */
  repeats: new Map(),
  repeatPause: AGAIN_MS,
  /** What is shown as wrong is that a server does not answer. */
  unavailable: false,
  seen: new Set(),
  outbox: [],
  /** The message of each conversation that is under way to the server. */
  flying: new Map(),
  typing: new Map(),
  typedAt: 0,
  presence: new Map(),
};

/** Make an element with a text, which is never read as HTML. */
function make(name, text, attributes = {}) {
  const el = document.createElement(name);
  if (text !== undefined) el.textContent = text;
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  return el;
}

const kept = (name) => `chat:${state.user}:${name}`;
/** Each message that waits has a key of its own: the tabs of a user share the storage. */
const keptMessage = (id) => kept(`outbox:${id}`);
const keep = (waiting) => localStorage.setItem(keptMessage(waiting.message_id), JSON.stringify(waiting));

/** Take a message out of the queue, and out of the storage. */
function unkeep(id) {
  state.outbox = state.outbox.filter((waiting) => waiting.message_id !== id);
  localStorage.removeItem(keptMessage(id));
}

/** Return the messages that wait in the storage, oldest first. */
function keptMessages() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(keptMessage('')));
  const found = keys.map((key) => JSON.parse(localStorage.getItem(key)));
  return found.sort((a, b) => a.at.localeCompare(b.at) || a.client_seq - b.client_seq);
}

/** Return the time of today, or the day with its time. */
function clock(at) {
  const date = new Date(at);
  const time = { hour: '2-digit', minute: '2-digit' };
  if (date.toDateString() === new Date().toDateString()) return date.toLocaleTimeString([], time);
  return date.toLocaleString([], { day: 'numeric', month: 'short', ...time });
}

async function call(method, path, body) {
  const headers = { 'content-type': 'application/json' };
  if (state.user) headers['chat-user'] = state.user;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  const value = text ? JSON.parse(text) : null;
  if (!answer.ok) throw new Error(value?.detail ?? answer.statusText);
  return value;
}

function complain(id, error) {
  $(id).textContent = error ? String(error.message ?? error) : '';
}

// Sign in

async function signIn(name) {
  const { user, last_seen } = await call('POST', '/sign-in', { name });
  state.user = user;
  state.device = localStorage.getItem(kept('device')) ?? `web-${crypto.randomUUID().slice(0, 8)}`;
  localStorage.setItem(kept('device'), state.device);
  state.outbox = keptMessages();
  document.title = `${user} · Chat`;
  $('me').textContent = user;
  $('privacy').value = last_seen;
  $('sign-in').hidden = true;
  $('chat').hidden = false;
  connect();
}

// The socket

function showLine(word, text) {
  $('line').dataset.state = word;
  $('line').textContent = text;
}

function connect() {
  const where = location.origin.replace(/^http/, 'ws');
  const socket = new WebSocket(`${where}/ws?user=${encodeURIComponent(state.user)}&device=${state.device}`);
  state.socket = socket;
  socket.onmessage = (event) =>
    hear(JSON.parse(event.data)).catch((error) => {
      complain('wrong', error);
      if (state.socket === socket) hangUp();
    });
  socket.onclose = () => {
    if (state.socket === socket) lost();
  };
}

const jitter = (pause) => pause * (0.75 + Math.random() / 2);

/** There is no connection any more. Later ends of the old one change nothing, so there is never more than one. */
function lost() {
  state.socket = null;
  state.greeted = false;
  state.syncing = false;
  clearTimeout(state.syncTimer);
  state.repeats.forEach(clearTimeout);
  state.repeats.clear();
  state.flying.forEach((flight) => clearTimeout(flight.timer));
  state.flying.clear();
  showLine('offline', 'offline, trying again');
  showPresence();
  clearTimeout(state.connectTimer);
  state.connectTimer = setTimeout(connect, jitter(state.pause));
  state.pause = Math.min(state.pause * 2, 4_000);
}

/**
 * Give up this connection. The next one says, asks for and loads everything again, so this mends whatever went wrong.
 * The end is not waited for: a server that does not answer may not answer that either.
 */
function hangUp() {
  const { socket } = state;
  if (!socket) return;
  Object.assign(socket, { onmessage: null, onclose: null });
  socket.close();
  lost();
}

function say(frame) {
  if (!state.greeted || state.socket.readyState !== WebSocket.OPEN) return false;
  state.socket.send(JSON.stringify(frame));
  return true;
}

const hears = {
  hello() {
    state.greeted = true;
    showLine('online', 'online');
    // What waits here goes first, and does not depend on calls that may fail.
    new Set(state.outbox.map((waiting) => waiting.conversation_id)).forEach(post);
    sync();
    if (state.open) say({ type: 'open', conversation_id: state.open });
    load(state.socket);
  },
  async message(frame) {
    await add(frame);
    if (frame.sender !== state.user) say({ type: 'ack', message_id: frame.message_id });
    if (frame.place !== undefined) arrived(frame.place);
  },
  async batch(frame) {
    for (const message of frame.messages) await add(message);
    state.cursor = Math.max(state.cursor ?? 0, frame.place);
    if (frame.messages.length > 0) tellSynced();
    state.syncing = false;
    clearTimeout(state.syncTimer);
    state.pause = 250;
    state.repeatPause = AGAIN_MS;
    if (state.unavailable) complain('wrong');
    state.unavailable = false;
    if (frame.more || state.newest > state.cursor) sync();
  },
  ack(frame) {
    const message = find(frame.conversation_id, frame.message_id);
    if (message) {
      Object.assign(message, { seq: frame.seq, at: frame.at, waits: false });
      extend(state.conversations.get(frame.conversation_id), frame.seq);
    }
    settle(frame);
    arrived(frame.place);
    draw();
  },
  nack(frame) {
    // Another device of this user has sent meanwhile. The message gets the number that is next.
    const { conversation_id: id, expected } = frame;
    if (state.flying.get(id)?.id !== frame.message_id) return;
    const conversation = state.conversations.get(id);
    if (conversation) conversation.expected = expected;
    renumber(id, expected);
    land(id);
    post(id);
  },
  delivery_receipt(frame) {
    const conversation = state.conversations.get(frame.conversation_id);
    if (!conversation) return;
    if (conversation.is_group) return loadSoon(conversation);
    for (const id of frame.message_ids) {
      const message = find(frame.conversation_id, id);
      if (message) message.delivered = 1;
    }
    draw();
  },
  read_receipt(frame) {
    const conversation = state.conversations.get(frame.conversation_id);
    if (!conversation) return;
    if (conversation.is_group) return loadSoon(conversation);
    let unsure = false;
    for (const message of conversation.messages.values()) {
      if (message.sender !== state.user || message.seq > frame.seq || message.waits) continue;
      // One of which no delivery was told may have been refused, and then the reader has not read it.
      if (message.delivered) message.read = 1;
      else unsure = true;
    }
    if (unsure) loadSoon(conversation);
    draw();
  },
  typing(frame) {
    const key = `${frame.conversation_id} ${frame.user}`;
    clearTimeout(state.typing.get(key)?.timer);
    const over = () => {
      state.typing.delete(key);
      showTyping();
    };
    const timer = setTimeout(over, frame.expires_ms);
    state.typing.set(key, { conversation: frame.conversation_id, user: frame.user, timer });
    showTyping();
  },
  presence(frame) {
    for (const one of frame.users) state.presence.set(one.user, one);
    showPresence();
  },
  async news(frame) {
    const id = frame.conversation_id;
    await loadHistory(state.conversations.get(id) ?? (await loadConversation(id)));
  },
  async conversation(frame) {
    await loadConversation(frame.conversation_id);
    await loadWhole(frame.conversation_id);
  },
  resync() {
    // What was pushed meanwhile did not come here. The inbox has a part of it, and the conversations have the rest.
    state.conversations.forEach((conversation) => {
      conversation.loaded = null;
    });
    sync();
    load(state.socket);
  },
  error(frame) {
    complain('wrong', frame.detail);
    state.unavailable = frame.code === 'unavailable';
    if (state.unavailable) repeat(frame.to);
    else if (frame.message_id) refuse(frame);
  },
};

/** What is asked for again. A message that waits has a timer of its own, and the rest is said again anyway. */
const repeats = {
  sync() {
    state.syncing = false;
    sync();
  },
  synced: () => tellSynced(),
  // The list says what the server knows to be read. The rest is told again when the conversation is shown.
  read: () => loadConversations().catch(() => repeat('read')),
};

/** Ask again for what the server could not do, after a pause that grows until it can. */
function repeat(type) {
  if (!repeats[type] || state.repeats.has(type)) return;
  const timer = setTimeout(() => {
    state.repeats.delete(type);
    repeats[type]();
  }, jitter(state.repeatPause));
  state.repeats.set(type, timer);
  state.repeatPause = Math.min(2 * state.repeatPause, LONGEST_AGAIN_MS);
}

async function hear(frame) {
  await hears[frame.type]?.(frame);
}

// The inbox

function sync() {
  if (state.syncing) return;
  state.syncing = say(state.cursor === null ? { type: 'sync' } : { type: 'sync', after: state.cursor });
  clearTimeout(state.syncTimer);
  if (state.syncing) state.syncTimer = setTimeout(hangUp, SYNC_MS);
}

const tellSynced = () => say({ type: 'synced', place: state.cursor });

let syncedTimer = null;

/** A place was used. If those before it are there, the cursor moves; else the gap is fetched. */
function arrived(place) {
  state.newest = Math.max(state.newest, place);
  if (state.cursor === null || place > state.cursor + 1) return sync();
  if (place <= state.cursor) return;
  state.cursor = place;
  syncedTimer ??= setTimeout(() => {
    syncedTimer = null;
    tellSynced();
  }, 1_000);
}

const find = (conversation, id) => state.conversations.get(conversation)?.messages.get(id);

/** Add a message once, however often it comes. If its conversation cannot be read, it is not confirmed either. */
async function add(message) {
  const id = message.conversation_id;
  const conversation = state.conversations.get(id) ?? (await loadConversation(id));
  const first = !state.seen.has(message.message_id);
  state.seen.add(message.message_id);
  const known = conversation.messages.get(message.message_id);
  // A receipt may have come while the answer of a call was on its way, which says less then.
  const told = (tick) => Math.max(known?.[tick] ?? 0, message[tick] ?? 0);
  const ticks = { delivered: told('delivered'), read: told('read') };
  conversation.messages.set(message.message_id, { ...known, ...message, ...ticks, waits: false });
  extend(conversation, message.seq);
  if (message.sender === state.user) {
    settle(message);
  } else if (first) {
    clearTyping(conversation.id, message.sender);
    if (message.seq > conversation.read_seq) conversation.unread += 1;
  }
  draw();
}

/** A message came by itself. Up to `whole` no message of the conversation is missing here. */
function extend(conversation, seq) {
  if (seq === conversation.whole + 1) conversation.whole = seq;
}

/** The server has a message of this user, from this device or another one. What waits behind it is next. */
function settle({ conversation_id: id, message_id, client_seq }) {
  const conversation = state.conversations.get(id);
  const expected = Math.max(conversation?.expected ?? 1, client_seq + 1);
  if (conversation) conversation.expected = expected;
  unkeep(message_id);
  if (state.flying.get(id)?.id === message_id) land(id);
  if (!state.flying.has(id)) {
    renumber(id, expected);
    post(id);
  }
}

// Conversations

async function loadConversations() {
  const { conversations } = await call('GET', '/conversations');
  // The list begins with the newest ones, and ends after some hundred.
  conversations.forEach(meet);
  draw();
}

/** Load a conversation that is not in the list, or not yet. */
async function loadConversation(id) {
  const conversation = meet(await call('GET', `/conversations/${encodeURIComponent(id)}`));
  draw();
  return conversation;
}

/** Load the messages of a conversation, unless this connection has done so. The list may not have had it. */
async function loadWhole(id) {
  const { socket } = state;
  if (!state.greeted) return;
  const conversation = state.conversations.get(id) ?? (await loadConversation(id));
  if (conversation.loaded === socket) return;
  await loadHistory(conversation);
  conversation.loaded = socket;
}

function meet(one) {
  const known = state.conversations.get(one.id) ?? { messages: new Map(), unread: 0 };
  state.conversations.set(one.id, Object.assign(known, one, { expected: one.next_client_seq }));
  return known;
}

/**
 * Load the conversations, and the newest messages of each. A call that fails stops no other one, and is made again while
 * this connection lasts.
 */
async function load(socket, wait = AGAIN_MS) {
  if (state.socket !== socket || socket.readyState !== WebSocket.OPEN) return;
  const wrong = [];
  await loadConversations().catch((error) => wrong.push(error));
  for (const conversation of state.conversations.values()) {
    if (conversation.loaded === socket) continue;
    const loaded = () => {
      conversation.loaded = socket;
    };
    await loadHistory(conversation).then(loaded, (error) => wrong.push(error));
  }
  if (wrong.length > 0) {
    complain('wrong', wrong[0]);
    setTimeout(() => load(socket, Math.min(2 * wait, LONGEST_AGAIN_MS)), jitter(wait));
  } else if (wait > AGAIN_MS) complain('wrong');
}

/**
 * Load the newest messages of a conversation, with their ticks, and in front of them all that are missing here. The
 * first time these are the ones that the user has not read.
 */
async function loadHistory(conversation) {
  const path = `/conversations/${encodeURIComponent(conversation.id)}/messages`;
  let after = Math.max(0, Math.min(conversation.last_seq - 200, conversation.whole ?? conversation.read_seq));
  do {
    const { messages, more } = await call('GET', `${path}?after=${after}`);
    for (const message of messages) {
      await add(message);
      after = message.seq;
      conversation.last_seq = Math.max(conversation.last_seq, after);
    }
    conversation.partly = more && messages.length > 0;
  } while (conversation.partly);
  conversation.whole = Math.max(conversation.whole ?? 0, after);
  // Messages that wait here are shown as well.
  for (const waiting of state.outbox) {
    if (waiting.conversation_id === conversation.id) show(waiting);
  }
  draw();
}

function loadSoon(conversation) {
  conversation.timer ??= setTimeout(() => {
    conversation.timer = null;
    loadHistory(conversation).catch(() => {});
  }, 200);
}

function choose(id) {
  const before = state.conversations.get(state.open);
  if (before) before.draft = $('text').value;
  $('text').value = state.conversations.get(id)?.draft ?? '';
  state.open = id;
  say({ type: 'open', conversation_id: id });
  loadWhole(id).catch((error) => complain('wrong', error));
  draw();
  $('text').focus();
}

const nameOf = (conversation) =>
  conversation.is_group ? conversation.name : conversation.members.find((member) => member !== state.user);

// Messages of this user

function show(waiting) {
  const conversation = state.conversations.get(waiting.conversation_id);
  if (!conversation || state.seen.has(waiting.message_id)) return;
  conversation.messages.set(waiting.message_id, { sender: state.user, delivered: 0, read: 0, waits: true, ...waiting });
}

const waitingIn = (id) => state.outbox.filter((waiting) => waiting.conversation_id === id);

function write(content) {
  const conversation = state.conversations.get(state.open);
  const newest = waitingIn(conversation.id).at(-1);
  const waiting = {
    conversation_id: conversation.id,
    message_id: crypto.randomUUID(),
    client_seq: newest ? newest.client_seq + 1 : conversation.expected,
    content,
    at: new Date().toISOString(),
  };
  state.outbox.push(waiting);
  keep(waiting);
  show(waiting);
  post(conversation.id);
  draw();
}

/** Send the first message of a conversation that waits, unless it is under way. */
function post(id) {
  const [first] = waitingIn(id);
  if (!first || state.flying.has(id)) return;
  send(first, 1);
}

function send(waiting, count) {
  const { conversation_id: id, message_id, client_seq, content } = waiting;
  if (!say({ type: 'send', conversation_id: id, message_id, client_seq, content })) return;
  const again = () => (count < TRIES ? send(waiting, count + 1) : hangUp());
  state.flying.set(id, { id: message_id, timer: setTimeout(again, RESEND_MS) });
}

/** The server does not take a message and would not take it later either. It holds up nothing behind it. */
function refuse({ message_id, detail }) {
  const refused = state.outbox.find((waiting) => waiting.message_id === message_id);
  if (!refused) return;
  const { conversation_id: id, client_seq } = refused;
  unkeep(message_id);
  const message = find(id, message_id);
  if (message) {
    // It stays where it is now, and what is sent later is shown behind it.
    const seqs = [...state.conversations.get(id).messages.values()].map((one) => one.seq ?? 0);
    Object.assign(message, { waits: false, refused: detail, behind: Math.max(...seqs) + 0.5 });
  }
  if (state.flying.get(id)?.id === message_id) land(id);
  renumber(id, client_seq);
  post(id);
  draw();
}

/** The message that was under way has its answer. */
function land(id) {
  clearTimeout(state.flying.get(id)?.timer);
  state.flying.delete(id);
}

/** Give the messages of a conversation that wait the numbers that the server expects next. */
function renumber(id, expected) {
  const waiting = waitingIn(id);
  if (waiting.length === 0 || waiting[0].client_seq === expected) return;
  waiting.forEach((message, place) => {
    message.client_seq = expected + place;
    keep(message);
  });
}

// What is shown

let drawing = false;

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    // The open conversation first: what it shows is not unread any more.
    drawTalk();
    drawList();
  });
}

/** The elements of each list, by key, with what they show. */
const arranged = new WeakMap();

/**
 * Show items `{key, said}` as the children of a list. Each has one element that stays while its key is there, so a
 * selection, the focus and a click that has begun stay as well. `fill` is called when `said` has changed.
 */
function arrange(list, items, build, fill) {
  const known = arranged.get(list) ?? new Map();
  arranged.set(list, known);
  const wanted = new Set(items.map((item) => item.key));
  // What is gone goes first, so that no other element has to move.
  for (const [key, { element }] of known) {
    if (wanted.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  items.forEach((item, place) => {
    const said = JSON.stringify(item.said);
    const entry = known.get(item.key) ?? { element: build(item) };
    known.set(item.key, entry);
    if (entry.said !== said) fill(entry.element, item);
    entry.said = said;
    if (list.children[place] !== entry.element) list.insertBefore(entry.element, list.children[place] ?? null);
  });
}

function drawList() {
  const items = [...state.conversations.values()].map((conversation) => ({
    key: conversation.id,
    said: [nameOf(conversation), conversation.unread, conversation.id === state.open],
  }));
  const build = ({ key }) => {
    const button = make('button', undefined, { type: 'button' });
    button.onclick = () => choose(key);
    const entry = make('li');
    entry.append(button);
    return entry;
  };
  arrange($('conversations'), items, build, (entry, { said: [name, unread, open] }) => {
    const button = entry.firstChild;
    button.replaceChildren(make('span', name));
    if (unread > 0) button.append(make('span', String(unread), { class: 'unread' }));
    if (open) button.setAttribute('aria-current', 'true');
    else button.removeAttribute('aria-current');
  });
}

function tick(conversation, message) {
  if (message.refused) return ['refused', '✗', message.refused];
  if (message.waits) return ['waits', '🕓', 'waits for the server'];
  const others = message.of ?? conversation.members.length - 1;
  const readers = message.read ?? 0;
  if (readers > 0 && conversation.is_group && conversation.receipts === 'full') {
    return ['read', `✓✓ read by ${readers} of ${others}`, 'read'];
  }
  if (readers > 0) return ['read', '✓✓', 'read'];
  if (message.delivered >= others && others > 0) return ['delivered', '✓✓', 'delivered'];
  return ['sent', '✓', 'sent'];
}

function drawTalk() {
  const conversation = state.conversations.get(state.open);
  $('talk').hidden = !conversation;
  $('none').hidden = Boolean(conversation);
  if (!conversation) return;
  $('title').textContent = nameOf(conversation);
  const messages = [...conversation.messages.values()];
  const place = (message) => message.seq ?? message.behind ?? Infinity;
  messages.sort((a, b) => place(a) - place(b) || a.client_seq - b.client_seq);
  const list = $('messages');
  // A reader who has scrolled up stays there, until another conversation is opened or a message is written.
  const mine = messages.findLast((message) => message.sender === state.user)?.message_id;
  const turned = arranged.get(list)?.shown !== `${conversation.id} ${mine}`;
  const atEnd = turned || list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  const items = messages.map((message) => {
    const mine = message.sender === state.user;
    return { key: message.message_id, message, mine, said: [message.at, mine && tick(conversation, message)] };
  });
  const build = ({ message, mine }) => {
    const entry = make('li', undefined, { class: mine ? 'mine' : 'theirs' });
    if (!mine && conversation.is_group) entry.append(make('span', message.sender, { class: 'sender' }));
    entry.append(make('span', message.content, { class: 'content' }), make('span', undefined, { class: 'foot' }));
    return entry;
  };
  arrange(list, items, build, (entry, { said: [at, ticked] }) => {
    entry.lastChild.replaceChildren(make('time', clock(at), { datetime: at }));
    if (!ticked) return;
    const [word, text, label] = ticked;
    entry.lastChild.append(make('span', text, { class: 'tick', 'data-state': word, title: label }));
  });
  arranged.get(list).shown = `${conversation.id} ${mine}`;
  if (atEnd) list.scrollTop = list.scrollHeight;
  markRead(conversation, messages);
  showPresence();
  showTyping();
}

/** Tell the server once that the user has seen the newest message of the others. */
function markRead(conversation, messages) {
  if (document.visibilityState === 'hidden' || conversation.partly) return;
  conversation.unread = 0;
  const newest = messages.findLast((message) => message.sender !== state.user && message.seq !== undefined);
  if (!newest || newest.seq <= conversation.read_seq) return;
  const told = say({ type: 'read', conversation_id: conversation.id, read_up_to: newest.message_id });
  if (told) conversation.read_seq = newest.seq;
}

function showPresence() {
  const conversation = state.conversations.get(state.open);
  if (!conversation) return;
  const others = conversation.members.filter((member) => member !== state.user);
  const known = others.map((other) => state.presence.get(other)).filter(Boolean);
  let text = '';
  if (!state.greeted) text = '';
  else if (conversation.is_group) {
    text = `${conversation.members.length} members, ${known.filter((one) => one.status === 'online').length + 1} online`;
  } else if (known[0]?.status === 'online') text = 'online';
  else if (known[0]?.status === 'unavailable') text = 'last seen: unavailable';
  else if (known[0]?.last_seen) text = `last seen ${clock(known[0].last_seen)}`;
  else if (known[0]) text = 'offline';
  $('presence').textContent = text;
}

function clearTyping(conversation, user) {
  const key = `${conversation} ${user}`;
  clearTimeout(state.typing.get(key)?.timer);
  state.typing.delete(key);
}

function showTyping() {
  const users = [...state.typing.values()].filter((one) => one.conversation === state.open).map((one) => one.user);
  $('typing').textContent = users.length ? `${users.join(', ')} ${users.length === 1 ? 'is' : 'are'} typing…` : '';
}

// What the user does

$('sign-in').onsubmit = (event) => {
  event.preventDefault();
  complain('sign-in-wrong');
  signIn($('name').value).catch((error) => complain('sign-in-wrong', error));
};

function submits(id, act) {
  $(id).onsubmit = (event) => {
    event.preventDefault();
    complain('wrong');
    act().catch((error) => complain('wrong', error));
  };
}

submits('new-direct', async () => {
  const { id } = await call('POST', '/conversations', { with: $('with').value });
  $('with').value = '';
  await loadConversation(id);
  choose(id);
});

submits('new-group', async () => {
  const members = $('group-members').value.split(',').map((name) => name.trim()).filter(Boolean);
  const body = { name: $('group-name').value, members, receipts: $('group-receipts').value };
  const { id } = await call('POST', '/conversations', body);
  $('new-group').reset();
  $('new-group').closest('details').open = false;
  await loadConversation(id);
  choose(id);
});

submits('write', async () => {
  const content = $('text').value.trim();
  if (!content || !state.open) return;
  $('text').value = '';
  state.typedAt = 0;
  write(content);
});

$('text').oninput = () => {
  const now = Date.now();
  if (!state.open || now - state.typedAt < TYPING_MS) return;
  if (say({ type: 'typing_start', conversation_id: state.open })) state.typedAt = now;
};

submits('new-contact', async () => {
  const name = $('contact').value.trim().toLowerCase();
  await call('PUT', `/contacts/${encodeURIComponent(name)}`);
  $('contact').value = '';
  $('contact-added').textContent = `${name} is one of your contacts.`;
});

$('privacy').onchange = () => {
  const body = { last_seen: $('privacy').value };
  call('PUT', '/privacy', body).catch((error) => complain('wrong', error));
};

document.onvisibilitychange = () => draw();
// The presence of the others is asked for again, in case a word about it was lost.
setInterval(() => state.open && say({ type: 'open', conversation_id: state.open }), PRESENCE_MS);

const as = new URLSearchParams(location.search).get('as');
if (as) {
  signIn(as).catch((error) => {
    $('name').value = as;
    $('sign-in').hidden = false;
    complain('sign-in-wrong', error);
  });
} else $('sign-in').hidden = false;
