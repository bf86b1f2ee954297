// A group of dead letters in words: dead letters of one kind that failed with the same error.

import { count } from './format.js';

/** The open ones of a group: `20,000+ dead letters of email`. */
export const openOf = (group) =>
  `${count(group.open, group.capped)} dead ${group.open === 1 ? 'letter' : 'letters'} of ${group.kind}`;

/**
 * How many open ones of a group failed in each of the last 24 hours, the oldest hour first; null where the server does
 * not say.
 */
export const recentOf = (group) => (group?.recent?.length > 1 ? group.recent : null);

/** The error of a group: as it was when it fits the normal form but for the case of letters, else the normal form. */
export const errorOf = (group) => (group.sample_error.toLowerCase() === group.error ? group.sample_error : group.error);
