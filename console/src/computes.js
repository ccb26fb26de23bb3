// Computes: what the server knows of them, and, where it knows who runs them, their state, logs, start and stop.

import { html, useState, usePoll, Badge, Card, Copy, Facts, Problem, Table } from './ui.js';
import { computeToken, computes, keepComputeToken } from './api.js';
import * as actions from './actions.js';
import { ago, bytes, handle, lags, nameOf, quoted } from './format.js';

const KIND = { running: 'good', crashed: 'bad' };

/** Computes that write, as those who receive their WAL know them. */
export function Writers({ timelines }) {
  const writers = timelines.filter((one) => one.walreceiver && one.walreceiver.writer);
  const rows = writers.map((one) => {
    const { writer, host, state, last_message_unix_ms: last } = one.walreceiver;
    const lag = lags(one);
    return { key: one.timeline_id, cells: [
      writer.name, html`<a href=${`#/t/${one.tenant_id}/${one.timeline_id}`}>${nameOf(one)}</a>`, host,
      html`<${Badge} kind=${state === 'streaming' ? 'good' : 'warn'}>${state.replace('_', ' ')}<//>`,
      lag.visible === null ? '' : bytes(lag.visible), ago(last),
      html`<${Copy} label="command to connect" text=${`pagectl compute connect ${quoted(writer.name)}`} />`,
    ] };
  });
  return html`<${Card} title="Computes that write" wide aside="as this server receives their WAL">
    <${Table} label="Computes that write" head=${['Compute', 'Branch', 'Host', 'WAL', 'Behind', 'Heard', 'Connect on its host']}
      rows=${rows} empty="No compute writes a branch of this tenant." />
    <p class="quiet">Computes run on hosts of their own. There, <code>pagectl compute list</code> has all of them, and${' '}
      <code>start</code>, <code>stop</code> and <code>logs</code>.</p><//>`;
}

/** The computes of the machine where `pagectl compute serve` runs. */
export function Computes({ tenant, timelines, timeline, hasComputes }) {
  const [asked, setAsked] = useState(Boolean(computeToken()));
  const writers = timeline ? timelines.filter((one) => one.timeline_id === timeline) : timelines;
  if (!hasComputes) {
    return html`<div><${Writers} timelines=${writers} />
      ${timeline ? html`<${Commands} timeline=${writers[0]} />` : null}
      <p class="quiet">To see, start and stop computes here, run <code>pagectl compute serve</code> on this machine, and
        set <code>console_computes</code> to its address.</p></div>`;
  }
  return html`<div>${asked ? html`<${Served} tenant=${tenant} timeline=${timeline} timelines=${timelines}
      forget=${() => { keepComputeToken(''); setAsked(false); }} />`
    : html`<${Ask} done=${() => setAsked(true)} />`}
    <${Writers} timelines=${writers} />
    ${timeline ? html`<${Commands} timeline=${writers[0]} />` : null}</div>`;
}

function Commands({ timeline }) {
  if (!timeline) return null;
  const name = handle(timeline);
  return html`<${Card} title="Connect" wide>
    <p>A Postgres on this branch, on the machine where the command runs:</p>
    <${Copy} label="command" text=${`pagectl compute start --branch ${quoted(name)}`} />
    <p>Through <code>pagectl gateway</code>, which starts it when it is asked (its usual port, on the host of this page):</p>
    <${Copy} label="connection string" text=${`psql "host=${location.hostname} port=6432 user=postgres options='-cbranch=${name}'"`} /><//>`;
}

function Ask({ done }) {
  const [typed, set] = useState('');
  const submit = (event) => {
    event.preventDefault();
    keepComputeToken(typed);
    done();
  };
  return html`<${Card} title="Computes of this machine" wide>
    <form onSubmit=${submit} class="tools"><label class="grow">Token of <code>pagectl compute serve</code>
      <input type="password" name="compute-token" value=${typed} required autocomplete="off"
        onInput=${(event) => set(event.target.value)} /></label>
      <button class="primary" type="submit">Show them</button></form>
    <p class="quiet">Whoever has it may start programs there. It stays in this tab.</p><//>`;
}

function Served({ timeline, timelines, forget }) {
  const poll = usePoll((signal) => computes('GET', '', undefined, signal), 4, []);
  const [log, setLog] = useState(null);
  const [problem, setProblem] = useState(null);
  if (poll.error && poll.error.status === 403) {
    return html`<${Card} title="Computes of this machine" wide><${Problem} error=${poll.error} />
      <button type="button" onClick=${forget}>Give another token</button><//>`;
  }
  const known = new Map(timelines.map((one) => [one.timeline_id, one]));
  const all = (poll.value?.computes || []).filter((one) => !timeline || one.timeline_id === timeline);
  const show = async (name) => {
    setProblem(null);
    try {
      setLog({ name, ...(await computes('GET', `/${encodeURIComponent(name)}/logs?lines=200`)) });
    } catch (error) {
      setProblem(error);
    }
  };
  const start = async (name) => {
    setProblem(null);
    try {
      await computes('POST', `/${encodeURIComponent(name)}/start`, {});
    } catch (error) {
      setProblem(error);
    }
    poll.again();
  };
  return html`<${Card} title="Computes of this machine" wide aside=${html`<button type="button" class="small" onClick=${forget}>forget the token</button>`}>
    <${Problem} error=${poll.error || problem} />
    ${all.map((one) => html`<article class="compute" key=${one.name} data-compute=${one.name}>
      <h3>${one.name} <${Badge} kind=${KIND[one.state]}>${one.state}<//>${' '}
        ${one.mode === 'read-only' ? html`<${Badge}>read-only<//>` : null}</h3>
      ${one.trouble ? html`<div class="problem">${one.trouble}</div>` : null}
      <${Facts} rows=${[
        ['Branch', known.has(one.timeline_id) ? html`<a href=${`#/t/${one.tenant_id}/${one.timeline_id}`}>${one.branch}</a>` : one.branch],
        ['Began at LSN', one.boot_lsn], ['Postgres', one.pg_version], ['Port', one.port], ['Storage', one.storage],
        ['Options', one.told],
      ]} />
      ${one.connstr ? html`<p>Connect: <${Copy} label=${`connection string of ${one.name}`} text=${`psql "${one.connstr} dbname=postgres"`} /></p>` : null}
      <p class="buttons">
        ${one.state === 'running'
          ? html`<button type="button" class="danger" onClick=${() => actions.stopCompute(one.name, poll.again)}>Stop</button>`
          : html`<${Busy} act=${() => start(one.name)}>Start<//>`}
        <button type="button" onClick=${() => show(one.name)}>Log</button></p>
      ${log && log.name === one.name ? html`<div><pre tabindex="0" class="log" aria-label=${`log of ${one.name}`}>${log.log || 'It is empty.'}</pre>
        <button type="button" class="small" onClick=${() => setLog(null)}>close the log</button></div>` : null}
    </article>`)}
    ${poll.value && !all.length ? html`<p class="quiet">There are none${timeline ? ' of this branch' : ''}.</p>` : null}
    ${timeline && known.has(timeline) ? html`<p><button type="button" class="primary" onClick=${() => actions.openCompute(
      { branch: handle(known.get(timeline)), name: known.get(timeline).name || '' },
      html`<p>Starts a Postgres that reads and writes the branch <b>${nameOf(known.get(timeline))}</b>. A branch has one
        such compute at most.</p>`, poll.again)}>Start a compute on this branch</button></p>` : null}
  <//>`;
}

/** A button that cannot be pressed again until it is done. */
function Busy({ act, children }) {
  const [busy, set] = useState(false);
  const press = async () => {
    set(true);
    await act();
    set(false);
  };
  return html`<button type="button" disabled=${busy} onClick=${press}>${busy ? 'Working...' : children}</button>`;
}
