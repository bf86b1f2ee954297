// The screens: their addresses, the modules that draw them, and their places in the menu.

/**
 * The module of a screen. A browser remembers that a module did not come, so after a failure it is asked for by another
 * name.
 */
export async function load({ page }, again = 0) {
  const module = await import(`../pages/${page}.js${again ? `?again=${again}` : ''}`);
  return module.default;
}

/**
 * `item` is the name, address, icon and shortcut in the menu. A screen without one is shown under another (`under`),
 * and has a `name` unless its title is the last part of its address. With one that `begins` there begins a part of the
 * menu: jobs, what they wait in, what executes them, and what is made by hand.
 */
export const screens = [
  { at: /^\/$/, page: 'overview', item: ['Overview', '/', 'overview', 'o'] },
  { at: /^\/jobs$/, page: 'explorer', item: ['Explorer', '/jobs', 'jobs', 'j'] },
  { at: /^\/jobs\/([^/]+)$/, page: 'job', under: '/jobs' },
  { at: /^\/tail$/, page: 'tail', item: ['Tail', '/tail', 'tail', 'f'] },
  { at: /^\/batches$/, page: 'batches', item: ['Batches', '/batches', 'batches', 't'] },
  { at: /^\/batches\/([^/]+)$/, page: 'batch', under: '/batches' },
  {
    at: /^\/dead-letters$/,
    page: 'dead-letters',
    item: ['Dead letters', '/dead-letters', 'dead-letters', 'd'],
  },
  { at: /^\/dead-letters\/([^/]+)$/, page: 'dead-letter-group', under: '/dead-letters' },
  { at: /^\/queues$/, page: 'queues', begins: true, item: ['Queues', '/queues', 'queues', 'q'] },
  { at: /^\/queues\/([^/]+)$/, page: 'queue', under: '/queues' },
  { at: /^\/limits$/, page: 'limits', item: ['Limits', '/limits', 'limits', 'l'] },
  { at: /^\/limits\/([^/]+)$/, page: 'limit', under: '/limits' },
  {
    at: /^\/order-keys$/,
    page: 'order-keys',
    item: ['Order keys', '/order-keys', 'order-keys', 'y'],
  },
  { at: /^\/outbox$/, page: 'outbox', item: ['Outbox', '/outbox', 'outbox', 'b'] },
  {
    at: /^\/schedules$/,
    page: 'schedules',
    item: ['Schedules', '/schedules', 'schedules', 's'],
  },
  { at: /^\/schedules\/([^/]+)$/, page: 'schedule', under: '/schedules' },
  { at: /^\/runners$/, page: 'runners', begins: true, item: ['Runners', '/runners', 'runners', 'r'] },
  { at: /^\/index$/, page: 'redis-index', item: ['Index health', '/index', 'index', 'i'] },
  {
    at: /^\/operations$/,
    page: 'operations',
    item: ['Operations', '/operations', 'operations', 'p'],
  },
  { at: /^\/operations\/([^/]+)$/, page: 'operation', under: '/operations' },
  { at: /^\/audit$/, page: 'audit', item: ['Audit', '/audit', 'audit', 'a'] },
  { at: /^\/incident$/, page: 'incident', name: 'Incident', under: '/' },
  {
    at: /^\/enqueue$/,
    page: 'enqueue',
    begins: true,
    item: ['Enqueue', '/enqueue', 'enqueue', 'e'],
    need: 'enqueue',
  },
  {
    at: /^\/api-keys$/,
    page: 'api-keys',
    item: ['API keys', '/api-keys', 'api-keys', 'k'],
    need: 'admin',
  },
];
