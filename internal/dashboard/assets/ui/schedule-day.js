// The ticks of schedules in the last day: a row for each schedule, a column for each quarter of an hour.

import { seg, url } from '../core/api.js';
import { html, useMemo } from '../core/dom.js';
import { plural } from '../core/format.js';
import { useQuery } from '../core/query.js';
import { Panel, Skeleton, Time, Trouble } from './base.js';
import { Sheet } from './sheet.js';

const happens = ['schedule_ticked', 'schedule_deleted'];
const legend = [
  ['tick-fired', 'fired'],
  ['tick-failed', 'a job failed'],
  ['tick-skipped', 'skipped'],
  ['', 'no tick'],
];

/** What happened in a step, or null for nothing. */
function cellOf(strip, i) {
  const [fired, failed, skipped] = [strip.fired[i], strip.failed[i], strip.skipped[i]];
  if (!fired && !skipped) return null;
  const parts = [fired && `${fired} fired`, failed && `${failed} of them failed`, skipped && `${skipped} skipped`];
  return {
    is: failed ? 'tick-failed' : skipped ? 'tick-skipped' : 'tick-fired',
    text: parts.filter(Boolean).join(', '),
    href: `/schedules/${seg(strip.schedule)}`,
  };
}

/** `names` are those of at most fifty schedules. */
export function ScheduleDay({ names }) {
  const path = names.length ? url('/v1/history/ticks', { schedules: names.join() }) : null;
  const { data, error, reload } = useQuery(path, { on: happens, every: 30000, pace: 5000 });
  const sheet = useMemo(
    () =>
      data && {
        columns: data.at_ms,
        step: data.step_ms,
        rows: data.schedules
          .map((strip) => ({
            name: strip.schedule,
            href: `/schedules/${seg(strip.schedule)}`,
            cells: data.at_ms.map((_, i) => cellOf(strip, i)),
          }))
          .filter(({ cells }) => cells.some(Boolean)),
      },
    [data],
  );
  if (!names.length) return null;
  const partial = data?.schedules.filter((strip) => strip.counted_from) ?? [];
  return html`<${Panel} title="The last 24 hours" side=${html`<span class="faint">ticks by quarter of an hour</span>`}>
    <${Trouble} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${sheet?.rows.length === 0 && html`<p class="faint">None of these schedules ticked in the last 24 hours.</p>`}
    ${
      sheet?.rows.length > 0 &&
      html`<${Sheet}
        of=${sheet}
        label="Ticks of the last 24 hours by schedule and time"
        noun="Schedule"
        legend=${legend}
      >
        Enter or a click opens the schedule.
      </${Sheet}>`
    }
    ${
      partial.length > 0 &&
      html`<p class="faint">
        ${plural(partial.length, 'schedule')} ticked so often that only the newest ticks are counted:
        ${partial.slice(0, 5).map(
          (strip, i) => html`
            ${i > 0 && ','} ${strip.schedule} from <${Time} at=${strip.counted_from} />
          `,
        )}
      </p>`
    }
  </${Panel}>`;
}
