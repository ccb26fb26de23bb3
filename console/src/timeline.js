// One timeline: how it is doing, its layers, its history, its slow reads and its computes.

import { html, useState, usePoll, Badge, Card, Copy, Facts, Problem, Table } from './ui.js';
import * as actions from './actions.js';
import { get, pathOf } from './api.js';
import { Bars, Line, STAGES, Stages, useSeries } from './charts.js';
import { Computes } from './computes.js';
import { ago, bytes, keyText, lags, lsn, micros, moment, nameOf, span } from './format.js';
import { History } from './history.js';
import { LayersView } from './layers.js';
import { State } from './tree.js';

const VIEWS = [['', 'Overview'], ['layers', 'Layers'], ['history', 'History'], ['slow', 'Slow reads'], ['computes', 'Computes']];

export function TimelineView({ tenant, id, view, timelines, hasComputes, changed }) {
  const poll = usePoll((signal) => get(pathOf(tenant, id), signal), 2, [tenant, id]);
  const [said, say] = useState(null);
  const timeline = poll.value && poll.value.timeline_id === id ? poll.value : timelines.find((one) => one.timeline_id === id);
  if (!timeline) {
    return html`<div><p><a href="#/">All branches</a></p>${poll.error ? html`<${Problem} error=${poll.error} />` : html`<p class="center">Loading.</p>`}</div>`;
  }
  if (!timeline.last_record_lsn) {
    return html`<div><p><a href="#/">All branches</a></p><h1>${id}</h1>
      <${Problem} error=${{ message: timeline.state.Broken.reason }}>It could not be opened.<//></div>`;
  }
  const parent = timelines.find((one) => one.timeline_id === timeline.ancestor_timeline_id);
  const after = () => { poll.again(); changed(); };
  return html`<div>
    <p class="path"><a href="#/">All branches</a>${parent ? html` / <a href=${`#/t/${tenant}/${parent.timeline_id}`}>${nameOf(parent)}</a>` : null} /</p>
    <h1>${nameOf(timeline)} <${State} timeline=${timeline} /></h1>
    ${timeline.state === 'Active' ? null : html`<${Problem} error=${{ message: timeline.state.Broken.reason }}>It takes no more writes.<//>`}
    <nav class="tabs" aria-label="Views of this timeline">${VIEWS.map(([name, title]) => html`<a key=${name}
      href=${`#/t/${tenant}/${id}${name ? `/${name}` : ''}`} aria-current=${name === view ? 'page' : undefined}>${title}</a>`)}</nav>
    <${Problem} error=${poll.error} />
    ${said ? html`<p role="status" class="done">${said}</p>` : null}
    ${view === 'layers' ? html`<${LayersView} tenant=${tenant} timeline=${timeline} />`
      : view === 'history' ? html`<${History} tenant=${tenant} timeline=${timeline} timelines=${timelines} changed=${after} />`
      : view === 'slow' ? html`<${SlowReads} tenant=${tenant} timeline=${timeline} />`
      : view === 'computes' ? html`<${Computes} tenant=${tenant} timelines=${timelines} timeline=${id} hasComputes=${hasComputes} />`
      : html`<${Overview} tenant=${tenant} timeline=${timeline} parent=${parent} at=${poll.at} say=${say} after=${after} />`}
  </div>`;
}

function Overview({ tenant, timeline, parent, at, say, after }) {
  const lag = lags(timeline), receiver = timeline.walreceiver, condition = timeline.condition;
  const behind = useSeries(lag ? lag.visible : null, at), unsafe = useSeries(lag ? lag.durable : null, at);
  const waiting = useSeries(timeline.upload_bytes, at);
  const remote = timeline.remote_consistent_lsn ? lsn(timeline.last_record_lsn) - lsn(timeline.remote_consistent_lsn) : null;
  const debt = Object.entries(condition.debt_bytes);
  const owed = debt.reduce((sum, [, value]) => sum + value, 0);
  const deleted = (answer) => {
    const slots = (answer.left_slots || []).map((one) => `${one.slot} on ${one.host}`).join(', ');
    after();
    location.hash = '#/';
    // Once the question that led here is closed.
    if (slots) setTimeout(() => actions.tell('Deleted', `Drop what is left, which keeps WAL there: the slots ${slots}`), 0);
  };
  return html`<div class="cards">
    <${Card} title="Timeline">
      <${Facts} rows=${[
        ['Id', html`<${Copy} text=${timeline.timeline_id} label="id" />`],
        ['Tenant', html`<${Copy} text=${timeline.tenant_id} label="tenant" />`],
        ['Postgres', timeline.pg_version],
        parent ? ['Branch of', html`<a href=${`#/t/${tenant}/${parent.timeline_id}`}>${nameOf(parent)}</a> at LSN ${timeline.ancestor_lsn}`] : null,
        timeline.detached_lsn ? ['Detached at', timeline.detached_lsn] : null,
        ['Ends at LSN', timeline.last_record_lsn],
        ['Branches of it', timeline.children.length],
        ['Generation', timeline.generation || null],
        timeline.expires_at ? ['Expires', moment(Date.parse(timeline.expires_at)), timeline.expired || ''] : null,
        timeline.protected ? ['Protected', 'it is not deleted'] : null,
        timeline.owner ? ['Owner', timeline.owner] : null,
        timeline.reason ? ['Reason', timeline.reason] : null,
        Object.keys(timeline.labels).length ? ['Labels', Object.entries(timeline.labels).map((one) => one.join('=')).join(', ')] : null,
        timeline.fenced ? ['Fenced', html`<${Badge} kind="bad">${timeline.fenced}<//>`] : null,
      ]} />
      <p class="buttons">
        <button type="button" onClick=${() => actions.branch(tenant, timeline, timeline.last_record_lsn, 'its present end',
          (made) => { say(`Made ${nameOf(made)}.`); after(); })}>Branch</button>
        <button type="button" onClick=${() => actions.archive(tenant, timeline, () => { say('Done.'); after(); })}>
          ${timeline.is_archived ? 'Take back' : 'Archive'}</button>
        <button type="button" class="danger" onClick=${() => actions.deleteBranch(tenant, timeline, deleted)}>Delete</button></p><//>
    <${Card} title="WAL">
      ${receiver ? html`<${Facts} rows=${[
        ['State', receiver.state.replace('_', ' ')], ['From', receiver.host],
        ['Behind the server', lag.visible === null ? 'not known' : bytes(lag.visible), 'WAL of the server that readers here do not see yet'],
        ['Not durable yet', bytes(lag.durable)],
        ['Last heard', ago(receiver.last_message_unix_ms)],
        ['Slot', receiver.slot],
        receiver.journal_error ? ['Journal', receiver.journal_error] : null,
      ]} />
      <${Problem} error=${receiver.last_error ? { message: receiver.last_error } : null}>Last error:<//>
      <${Line} values=${behind} label="behind the server" /><${Line} values=${unsafe} label="not durable yet" />`
        : html`<p class="quiet">It receives no WAL: nobody writes it.</p>`}<//>
    <${Card} title="Sizes">
      <${Bars} label="Sizes" rows=${[
        ['Database', timeline.current_logical_size, timeline.current_logical_size_is_accurate ? '' : 'about'],
        ['Layers', timeline.current_physical_size, `in ${timeline.layer_count}`],
        ['On this disk', timeline.resident_bytes], ['In the bucket', timeline.in_bucket_bytes],
        ['In memory', timeline.in_memory_bytes], ['Replaced, still read', timeline.replaced_bytes],
      ]} />
      <${Facts} rows=${[['Stored for each byte', condition.space_ratio, 'of the newest images of all pages']]} /><//>
    <${Card} title="Debt" aside=${html`<${Badge} kind=${condition.state === 'failed' || condition.state === 'no room' ? 'bad' : ''}>${condition.state}<//>`}>
      <p>${condition.reason}${condition.again_in_seconds !== null ? `; again in ${span(condition.again_in_seconds)}` : ''}</p>
      ${owed ? html`<${Bars} label="Debt by kind of job" rows=${debt} />` : html`<p class="quiet">Nothing is to be rewritten.</p>`}
      <${Facts} rows=${[
        ['L0 layers', timeline.l0_layer_count], ['Height', timeline.height, 'sorted delta layers above an image of the same keys'],
        ['Written for each byte', condition.write_amplification.total],
        timeline.compaction_error ? ['Last failure', timeline.compaction_error] : null,
      ]} /><//>
    <${Card} title="History kept" aside=${html`<a href=${`#/t/${tenant}/${timeline.timeline_id}/history`}>more</a>`}>
      <${Facts} rows=${[
        ['Every moment from LSN', timeline.min_readable_lsn], ['WAL of that history', bytes(timeline.pitr_history_size)],
        ['Bound by', condition.history?.bound_by],
        ['Holds', timeline.holds.map((one) => one.name).join(', ') || 'none'],
        ['Single moments below', timeline.retained_lsns.length],
        ['Their own bytes', condition.history ? bytes(condition.history.points.reduce((sum, one) => sum + one.bytes, 0)) : null],
      ]} /><//>
    <${Card} title="Uploads">
      ${timeline.remote_consistent_lsn === null && !timeline.in_bucket_bytes ? html`<p class="quiet">It is not in a bucket.</p>`
        : html`<${Facts} rows=${[
          ['Waiting', `${timeline.upload_layers} layers, ${bytes(timeline.upload_bytes)}`],
          ['Safe in the bucket', timeline.remote_consistent_lsn ? `up to LSN ${timeline.remote_consistent_lsn}` : 'not known yet'],
          ['Not in the bucket', remote === null ? null : `${bytes(Math.max(0, remote))} of WAL`],
        ]} /><${Line} values=${waiting} label="waiting for upload" />`}
      <${Problem} error=${timeline.upload_error ? { message: timeline.upload_error } : null}>The last upload failed.<//><//>
  </div>`;
}

function SlowReads({ tenant, timeline }) {
  const poll = usePoll((signal) => get(`${pathOf(tenant, timeline.timeline_id)}/slow_reads`, signal), 3, [timeline.timeline_id]);
  const reads = poll.value?.reads || [], threshold = poll.value?.threshold_micros;
  const longest = Math.max(...reads.map((one) => one.micros), 1);
  return html`<${Card} title="Slow reads" wide aside=${threshold ? `longer than ${micros(threshold)}; at most one a second is kept` : ''}>
    <${Problem} error=${poll.error} />
    <ul class="legend">${STAGES.map(([, name, what]) => html`<li key=${name}><span class=${`swatch ${name}`}></span>${name}: ${what}</li>`)}</ul>
    <${Table} label="Slow reads" head=${['When', 'Took', 'Where the time went', 'Of that', 'Read', 'Found', 'Visited', 'Not listed before']}
      empty=${threshold === 0 ? 'Slow reads are not looked for: slow_read_threshold is 0.' : 'No read was slow since the server started.'}
      rows=${reads.map((one) => ({ key: one.ended + one.first_key, cells: [
        moment(Date.parse(one.ended)), micros(one.micros), html`<${Stages} read=${one} longest=${longest} />`,
        STAGES.filter(([field]) => one[field] > 0).map(([field, name]) => `${name} ${micros(one[field])}`).join(', '),
        html`${one.keys} ${one.keys === 1 ? 'key' : 'keys'} from <span title=${one.first_key}>${keyText(one.first_key)}</span> at ${one.lsn}`,
        `${one.layers} layers, ${one.records} records, ${bytes(one.local_bytes)} here, ${bytes(one.bucket_bytes)} by ${one.bucket_requests} requests`,
        html`<details><summary>layers</summary><small>${one.visited}</small></details>`, one.untold || ''] }))} /><//>`;
}
