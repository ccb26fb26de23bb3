// How much history a timeline keeps, and what keeps it.

import { html, useState, usePoll, Card, Facts, Problem, Table } from './ui.js';
import * as actions from './actions.js';
import { get, pathOf } from './api.js';
import { ago, bytes, lsn, moment, nameOf, span } from './format.js';

export function History({ tenant, timeline, timelines, changed }) {
  const path = pathOf(tenant, timeline.timeline_id);
  const poll = usePoll(async (signal) => {
    const [history, holds] = await Promise.all([get(`${path}/history`, signal), get(`${path}/holds`, signal)]);
    return { history, holds };
  }, 5, [path]);
  const [said, say] = useState(null);
  const [problem, setProblem] = useState(null);
  const look = timeline.condition?.history;
  const { history, holds } = poll.value || {};
  const again = () => { poll.again(); changed(); };
  const collect = async () => {
    setProblem(null);
    const names = (id) => { const one = timelines.find((other) => other.timeline_id === id); return one ? nameOf(one) : id; };
    try {
      await actions.collect(tenant, names, (done) => {
        say(`Removed ${bytes(done.reduce((sum, one) => sum + one.removed_bytes, 0))}.`);
        again();
      });
    } catch (error) {
      setProblem(error);
    }
  };
  const branches = timelines.filter((one) => one.ancestor_timeline_id === timeline.timeline_id);
  return html`<div class="cards">
    <${Problem} error=${poll.error || problem} />
    ${history ? html`<${Card} title="Window" aside=${html`<button type="button" class="small"
        onClick=${() => actions.setWindow(tenant, timeline, history, again)}>change</button>`}>
      <${Facts} rows=${[
        ['Kept by time', `${history.pitr_interval}${history.own.pitr_interval ? ' (its own)' : ''}`],
        ['At least', bytes(history.gc_horizon)],
        ['At most', history.history_max_bytes ? bytes(history.history_max_bytes) : 'no limit'],
        ['Every moment since', history.min_readable_time ? `${moment(Date.parse(history.min_readable_time))} (LSN ${history.min_readable_lsn})` : `LSN ${history.min_readable_lsn}`],
        ['WAL of that history', bytes(timeline.pitr_history_size)],
        /^0+\/0+$/.test(history.next_gc_cutoff_lsn) ? null : ['Could begin at', `LSN ${history.next_gc_cutoff_lsn}, ${bytes(Math.max(0, lsn(history.next_gc_cutoff_lsn) - lsn(history.gc_cutoff_lsn)))} of WAL later`],
        ['Bound by', history.bound_by],
      ]} /><//>` : null}
    <${Card} title="Removal" aside=${html`<button type="button" class="small" onClick=${collect}>what would go?</button>`}>
      <${Facts} rows=${[
        ['Last looked', look ? `${span(look.seconds_ago)} ago` : 'not since the start'],
        ['Last removed', timeline.condition?.seconds_since_removal === null ? 'nothing since the start' : `${span(timeline.condition.seconds_since_removal)} ago`],
        ['Waits for removal', bytes(timeline.condition?.waiting_bytes.history)],
        ['Waits for readers', bytes(timeline.condition?.waiting_bytes.read)],
        ['Waits for the bucket', bytes(timeline.condition?.waiting_bytes.unconfirmed)],
      ]} /><p role="status">${said}</p><//>
    <${Card} title="What pins history" wide aside="single moments that are kept below the window, and what each alone needs">
      <${Table} label="What pins history" head=${['LSN', 'Because of', 'Layers', 'Bytes']}
        empty=${look ? 'Nothing but the window.' : 'That is known once it was looked for history to remove: every gc_period, or now, by "what would go?".'}
        rows=${(look?.points || []).map((point) => ({ key: point.lsn + point.why,
          cells: [point.lsn, point.why, point.layers, bytes(point.bytes)] }))} /><//>
    <${Card} title="Holds and leases" wide>
      <${Table} label="Holds and leases" head=${['LSN', 'What', '']} empty="There are none."
        rows=${[...(holds?.holds || []).map((one) => ({ key: `h${one.name}`, cells: [one.lsn, html`hold <b>${one.name}</b>`,
          html`<button type="button" class="small danger" onClick=${() => actions.release(tenant, timeline, one.name, again)}
            aria-label=${`delete the hold ${one.name}`}>delete</button>`] })),
        ...(holds?.leases || []).map((one) => ({ key: `l${one.lsn}`, cells: [one.lsn, `lease until ${moment(Date.parse(one.valid_until))}`, ''] }))]} /><//>
    <${Card} title="Branches of it" wide>
      <${Table} label="Branches of it" head=${['LSN', 'Branch', 'State']} empty="There are none."
        rows=${branches.map((one) => ({ key: one.timeline_id, cells: [one.ancestor_lsn,
          html`<a href=${`#/t/${tenant}/${one.timeline_id}`}>${nameOf(one)}</a>`, one.is_archived ? `archived ${ago(Date.parse(one.archived_at))}` : ''] }))} /><//>
  </div>`;
}
