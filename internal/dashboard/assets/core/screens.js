// The screens: their addresses, the modules that draw them, and their places in the menu.

/**
 * `item` is the name, address, icon and shortcut in the menu. A screen without one is shown under another (`under`).
 */
export const screens = [
  { at: /^\/$/, load: () => import('../pages/overview.js'), item: ['Overview', '/', 'overview', 'o'] },
  { at: /^\/jobs$/, load: () => import('../pages/jobs.js'), item: ['Jobs', '/jobs', 'jobs', 'j'] },
  { at: /^\/jobs\/([^/]+)$/, load: () => import('../pages/job.js'), under: '/jobs' },
  { at: /^\/batches$/, load: () => import('../pages/batches.js'), item: ['Batches', '/batches', 'batches', 't'] },
  { at: /^\/batches\/([^/]+)$/, load: () => import('../pages/batch.js'), under: '/batches' },
  {
    at: /^\/dead-letters$/,
    load: () => import('../pages/dead-letters.js'),
    item: ['Dead letters', '/dead-letters', 'dead-letters', 'd'],
  },
  { at: /^\/dead-letters\/([^/]+)$/, load: () => import('../pages/dead-letter-group.js'), under: '/dead-letters' },
  { at: /^\/queues$/, load: () => import('../pages/queues.js'), item: ['Queues', '/queues', 'queues', 'q'] },
  { at: /^\/queues\/([^/]+)$/, load: () => import('../pages/queue.js'), under: '/queues' },
  { at: /^\/limits$/, load: () => import('../pages/limits.js'), item: ['Limits', '/limits', 'limits', 'l'] },
  { at: /^\/limits\/([^/]+)$/, load: () => import('../pages/limit.js'), under: '/limits' },
  {
    at: /^\/order-keys$/,
    load: () => import('../pages/order-keys.js'),
    item: ['Order keys', '/order-keys', 'order-keys', 'y'],
  },
  { at: /^\/outbox$/, load: () => import('../pages/outbox.js'), item: ['Outbox', '/outbox', 'outbox', 'b'] },
  {
    at: /^\/schedules$/,
    load: () => import('../pages/schedules.js'),
    item: ['Schedules', '/schedules', 'schedules', 's'],
  },
  { at: /^\/schedules\/([^/]+)$/, load: () => import('../pages/schedule.js'), under: '/schedules' },
  { at: /^\/runners$/, load: () => import('../pages/runners.js'), item: ['Runners', '/runners', 'runners', 'r'] },
  { at: /^\/index$/, load: () => import('../pages/redis-index.js'), item: ['Index health', '/index', 'index', 'i'] },
  {
    at: /^\/operations$/,
    load: () => import('../pages/operations.js'),
    item: ['Operations', '/operations', 'operations', 'p'],
  },
  { at: /^\/operations\/([^/]+)$/, load: () => import('../pages/operation.js'), under: '/operations' },
  { at: /^\/audit$/, load: () => import('../pages/audit.js'), item: ['Audit', '/audit', 'audit', 'a'] },
  {
    at: /^\/enqueue$/,
    load: () => import('../pages/enqueue.js'),
    item: ['Enqueue', '/enqueue', 'enqueue', 'e'],
    need: 'enqueue',
  },
  {
    at: /^\/api-keys$/,
    load: () => import('../pages/api-keys.js'),
    item: ['API keys', '/api-keys', 'api-keys', 'k'],
    need: 'admin',
  },
];
