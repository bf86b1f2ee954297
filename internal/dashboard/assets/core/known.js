// What the frame around the screens knows of the server, for the screens: `{stats, ready, runners, index}`, each as
// `useQuery` returns it.
import { observable } from './observable.js';

const nothing = { data: null, error: null, loading: true, reload: () => {} };

export const known = observable({ stats: nothing, ready: nothing, runners: nothing, index: nothing });
/** Since when the server or MySQL does not answer, as far as this page knows: the time of the last good reading. */
export const outage = observable(null);
