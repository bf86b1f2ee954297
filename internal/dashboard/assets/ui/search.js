// A search through the jobs that goes on by itself until it has a page, and says how far it has come.

import { get, url } from '../core/api.js';
import { html, useMemo, useRef } from '../core/dom.js';
import { count, plural, utc } from '../core/format.js';
import { observable, useObservable } from '../core/observable.js';
import { useQuery } from '../core/query.js';

const PAGE = 50;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The next page of the server. One that has too many searches is asked again. */
export async function patiently(query, signal) {
  for (let wait = 1000; ; wait = Math.min(2 * wait, 15000)) {
    try {
      return await get('/v1/jobs', query, signal);
    } catch (problem) {
      if (problem.code !== 'overloaded' || signal.aborted) throw problem;
      await pause(wait * (1 + Math.random()));
      if (signal.aborted) throw problem;
    }
  }
}

/**
 * The newest jobs of a filter, or the oldest ones for `sort` `oldest`, or those behind a cursor: `rows` as far as they
 * are found. The server looks at a bounded number of jobs for each request, so a search may take many. It is read again
 * when `happens` happens, unless it took more than one request.
 */
export function useSearch(q, cursor, happens, sort = '') {
  const path = url('/v1/jobs', { q, limit: PAGE, cursor, sort });
  const own = useMemo(() => ({ so_far: observable(null), stopped: false, from: null }), [path]);
  const soFar = useObservable(own.so_far);
  const long = useRef(null);
  const read = async (_, signal) => {
    const { rows, next, searched } = own.from ?? { rows: [], next: cursor, searched: 0 };
    const found = { path, rows: [...rows], next, searched, to: null, requests: 0 };
    own.stopped = false;
    try {
      do {
        const page = await patiently({ q, limit: PAGE - found.rows.length, cursor: found.next, sort }, signal);
        found.rows.push(...page.data);
        found.next = page.next_cursor;
        found.searched += page.searched;
        found.to = page.searched_to;
        found.requests += 1;
        if (found.next && found.rows.length < PAGE) own.so_far.set({ ...found, rows: [...found.rows] });
      } while (found.next && found.rows.length < PAGE && !own.stopped);
    } catch (problem) {
      // The next reading goes on where this one stood. Until then none is under way.
      if (!signal.aborted) {
        if (found.requests > 0) own.from = found;
        own.so_far.set(null);
      }
      throw problem;
    }
    own.from = null;
    own.so_far.set(null);
    long.current = found.requests > 1 ? path : null;
    return found;
  };
  const live = !cursor && long.current !== path && !soFar;
  const page = useQuery(path, { on: live && happens, every: live ? 15000 : 0, pace: 3000, read });
  const done = page.loading ? null : page.data;
  const found = soFar && (!done || own.from) ? soFar : (done ?? (page.error ? null : page.data));
  const searching = Boolean(soFar);
  const short = Boolean(done?.next) && done.rows.length < PAGE;
  return {
    /** The listing that the rows belong to: the one before, until there are rows of this one. */
    path: found?.path ?? path,
    known: Boolean(found),
    rows: found?.rows ?? [],
    error: page.error,
    /** The server has answered for this filter. */
    understood: Boolean(soFar || (!page.loading && !page.error)),
    searching,
    /** Stopped before there was a page. */
    stopped: short && !searching,
    next: done?.next ?? null,
    /** The cursor of the next page, behind a full one. */
    older: done && !short && !searching ? done.next : null,
    /** It took many requests, so it is not repeated by itself. */
    long: Boolean(done) && long.current === path,
    /** The search goes from the oldest job to the newest. */
    forwards: sort === 'oldest',
    /** Of the search that is under way, also while the rows are those of the one before. */
    searched: (soFar ?? found)?.searched ?? 0,
    to: (soFar ?? found)?.to ?? null,
    stop: () => {
      own.stopped = true;
    },
    goOn: () => {
      own.from = done;
      page.reload();
    },
    reload: page.reload,
  };
}

/** How far a search is, and how to stop it or let it go on. Nothing for one that found its page at once. */
export function SearchState({ page }) {
  if (page.error || !(page.searching || page.stopped || page.long)) return null;
  const back =
    page.to &&
    html`, ${page.forwards ? 'up' : 'back'} to${' '}
      <time datetime=${page.to}>${utc(Date.parse(page.to)).slice(0, 16)} UTC</time>`;
  const rest = page.forwards ? 'Newer' : 'Older';
  return html`<div class="searched row apart" role="status">
    <span>
      ${page.searching ? 'Searching: looked at' : 'Looked at'} <b class="num">${count(page.searched)}</b> jobs${back},
      ${' '}${plural(page.rows.length, 'job')} found${page.stopped ? `. ${rest} ones were not searched.` : ''}
    </span>
    ${
      page.searching
        ? html`<button type="button" class="small" onClick=${page.stop}>Stop</button>`
        : page.stopped
          ? html`<button type="button" class="small" onClick=${page.goOn}>Keep searching</button>`
          : html`<button type="button" class="small" onClick=${page.reload}>Search again</button>`
    }
  </div>`;
}
