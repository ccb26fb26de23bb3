// The page as a whole: who is asking, what the server has, and which view is shown.

import { html, render, useEffect, useState, usePoll, Badge, Card, Facts, Problem } from './ui.js';
import { about, claims, get, listen, pathOf, signIn, signOut, token } from './api.js';
import { Computes } from './computes.js';
import { Dialogs, dismiss } from './dialog.js';
import { Fleet } from './fleet.js';
import { bytes, nameOf, shortId } from './format.js';
import { Moment } from './moment.js';
import { TimelineView } from './timeline.js';
import { Tree } from './tree.js';

const parts = () => location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);

function useHash() {
  const [route, set] = useState(parts());
  useEffect(() => {
    const changed = () => { set(parts()); window.scrollTo(0, 0); };
    window.addEventListener('hashchange', changed);
    return () => window.removeEventListener('hashchange', changed);
  }, []);
  return route;
}

function App() {
  const [known, setKnown] = useState(null);
  const [problem, setProblem] = useState(null);
  const [held, setHeld] = useState(token());
  const [reason, setReason] = useState('');
  const [stale, setStale] = useState(false);
  useEffect(() => listen((what, why) => {
    if (what === 'stale') setStale(true);
    if (what === 'signed-out') {
      // What was shown goes with the token.
      dismiss();
      setHeld(null);
      setReason(why);
    }
  }), []);
  useEffect(() => { about().then(setKnown, setProblem); }, []);
  if (!known) return problem ? html`<main><${Problem} error=${problem} /></main>` : html`<p class="center">Loading.</p>`;
  const needed = known.tokens && !held;
  const enter = (value) => { signIn(value); setReason(''); setHeld(token()); };
  return html`<div>
    ${stale ? html`<div class="stale" role="alert">This page is of another version than the server, which was started again.${' '}
      <button type="button" onClick=${() => location.reload()}>Load it again</button></div>` : null}
    ${needed ? html`<${SignIn} enter=${enter} reason=${reason} />`
      : html`<${Signed} key=${held || ''} known=${known} held=${held} />`}
    <${Dialogs} /></div>`;
}

function SignIn({ enter, reason }) {
  const [typed, set] = useState('');
  const submit = (event) => { event.preventDefault(); enter(typed); };
  return html`<main class="signin"><h1>pageserver</h1>
    <p>This server asks for a token: a JWT with the scope <code>pageserverapi</code> for everything, or <code>tenant</code>${' '}
      for one tenant.</p>
    ${reason ? html`<div class="problem" role="alert">${reason}</div>` : null}
    <form onSubmit=${submit}><label>Token <input type="password" name="token" value=${typed} required autocomplete="off"
      autofocus onInput=${(event) => set(event.target.value)} /></label>
      <button class="primary" type="submit">Sign in</button></form>
    <p class="quiet">It stays in this tab, and is gone when that is closed.</p></main>`;
}

// Tenants of which there are no timelines here.
const ABSENT = ['Broken', 'Standby'];

/** The tenants that the caller may see: all, or the one that its token names. */
async function tenantsOf(held, signal) {
  const said = held ? claims(held) : {};
  if (said.scope === 'tenant' || said.scope === 'tenant_admin') {
    return [await get(pathOf(encodeURIComponent(said.tenant_id || '')), signal)];
  }
  return get('/v1/tenant', signal);
}

function Signed({ known, held }) {
  const route = useHash();
  const status = usePoll((signal) => get('/v1/status', signal), 3, []);
  const poll = usePoll(async (signal) => {
    const tenants = await tenantsOf(held, signal);
    const lists = await Promise.all(tenants.map((one) => (ABSENT.includes(one.state.slug) ? []
      : get(`${pathOf(one.id)}/timeline`, signal))));
    return { tenants, timelines: new Map(tenants.map((one, at) => [one.id, lists[at]])), now: Date.now() };
  }, 3, [held]);
  const [kind, tenant, timeline, view] = route;
  const lists = poll.value?.timelines || new Map();
  return html`<div>
    <header><a class="brand" href="#/"><img src="/console/icon.svg" alt="" width="26" height="26" />pageserver</a>
      <nav aria-label="Main"><a href="#/" aria-current=${kind === '' ? 'page' : undefined}>Branches</a>
        <a href="#/computes" aria-current=${kind === 'computes' ? 'page' : undefined}>Computes</a>
        <a href="#/server" aria-current=${kind === 'server' ? 'page' : undefined}>Server</a>
        <a href="/v1/doc">Interface</a></nav>
      <${Health} status=${status} />
      ${held ? html`<button type="button" class="small" onClick=${() => signOut('')}>Sign out</button>` : null}</header>
    <main><${Problem} error=${poll.error} />
      ${!poll.value ? (poll.error ? null : html`<p class="center">Loading.</p>`)
        : kind === 't' ? html`<${TimelineView} key=${timeline} tenant=${tenant} id=${timeline} view=${view || ''}
            timelines=${lists.get(tenant) || []} hasComputes=${known.computes} changed=${poll.again} />`
        : kind === 'computes' ? html`<div><h1>Computes</h1><${Computes} timelines=${[...lists.values()].flat()} hasComputes=${known.computes} /></div>`
        : kind === 'server' ? html`<${Server} status=${status.value} tenants=${poll.value.tenants} />`
        : html`<${Branches} data=${poll.value} known=${known} changed=${poll.again} />`}</main></div>`;
}

function Health({ status }) {
  if (status.error) return html`<span class="health"><${Badge} kind="bad">no answer<//></span>`;
  const { disk, fenced_tenants: fenced } = status.value || {};
  if (!status.value) return null;
  return html`<span class="health">
    ${fenced.length ? html`<${Badge} kind="bad">${fenced.length} fenced<//>` : null}
    ${disk && disk.intake !== 'Open' ? html`<${Badge} kind=${disk.intake === 'Slow' ? 'warn' : 'bad'}>intake: ${disk.intake.toLowerCase()}<//>` : null}
    ${disk && disk.free !== null ? html`<${Badge}>${bytes(disk.free)} free<//>` : null}</span>`;
}

function Branches({ data, known, changed }) {
  if (!data.tenants.length) {
    return html`<${Card} title="There is nothing here yet" wide><p>Follow a running Postgres, of which this server then has
      every moment from now on:</p><p><code>pagectl follow "host=... user=..."</code></p><//>`;
  }
  return html`<div>${data.tenants.map((one) => one.state.slug === 'Standby' ? html`<${Followed} key=${one.id} tenant=${one} />` : html`<${Tenant} key=${one.id} tenant=${one} known=${known}
    timelines=${data.timelines.get(one.id) || []} now=${data.now} alone=${data.tenants.length === 1} changed=${changed} />`)}</div>`;
}

/** A tenant that another server owns. */
function Followed({ tenant }) {
  const { owner } = tenant;
  return html`<section aria-label=${`Tenant ${tenant.id}`}>
    <h1>Tenant <code title=${tenant.id}>${shortId(tenant.id)}</code> <${Badge}>standby<//></h1>
    ${tenant.reason ? html`<${Problem} error=${{ message: tenant.reason }}>It is not followed.<//>` : null}
    <p>This server is a standby of it. ${owner ? html`Its branches are at its owner, server <code>${owner.server}</code> on ${owner.host}.`
      : 'It has not found its owner yet.'} <a href="#/server">All servers</a></p></section>`;
}

function Tenant({ tenant, timelines, now, alone, known, changed }) {
  const [cursor, setCursor] = useState(null);
  const [said, say] = useState(null);
  const chosen = cursor && timelines.find((one) => one.timeline_id === cursor.timeline);
  const broken = timelines.filter((one) => !one.last_record_lsn);
  const made = (what) => {
    if (what && what.timeline_id) say(html`Made <a href=${`#/t/${tenant.id}/${what.timeline_id}`}>${nameOf(what)}</a>.`);
    else if (what && what.connstr) say(html`${what.name} is ready: <code>psql "${what.connstr} dbname=postgres"</code>`);
    else say('Done.');
    changed();
  };
  return html`<section aria-label=${`Tenant ${tenant.id}`}>
    <h1>${alone ? 'Branches' : html`Tenant <code title=${tenant.id}>${shortId(tenant.id)}</code>`}
      <span class="aside">${timelines.length} ${timelines.length === 1 ? 'branch' : 'branches'},
        ${' '}${bytes(tenant.current_physical_size)}${tenant.fenced ? html` <${Badge} kind="bad">fenced<//>` : null}</span></h1>
    ${tenant.reason || tenant.fenced ? html`<${Problem} error=${{ message: tenant.reason || tenant.fenced }}>
      ${tenant.reason ? 'It could not be attached.' : 'Another server has taken it over.'}<//>` : null}
    ${broken.map((one) => html`<${Problem} key=${one.timeline_id} error=${{ message: one.state.Broken.reason }}>${one.timeline_id} could not be opened.<//>`)}
    ${said ? html`<p role="status" class="done">${said}</p>` : null}
    <${Tree} tenant=${tenant.id} timelines=${timelines.filter((one) => one.last_record_lsn)} cursor=${cursor}
      setCursor=${setCursor} now=${now} />
    ${chosen ? html`<${Moment} tenant=${tenant.id} timeline=${chosen} cursor=${cursor} setCursor=${setCursor} made=${made}
      hasComputes=${known.computes} />` : null}</section>`;
}

// How this server stands to a tenant.
const ROLES = { Active: ['good', 'owner'], Fenced: ['bad', 'fenced'], Broken: ['bad', 'broken'], Unleased: ['warn', 'owner without a lease'],
  Standby: ['', 'standby'] };

function Server({ status, tenants }) {
  if (!status) return null;
  const { disk } = status;
  return html`<div><h1>Server</h1><div class="cards">
    <${Card} title="This server"><${Facts} rows=${[['Version', status.version], ['Durable means', status.durability === 'journal' ? 'in the journal on its disk' : 'in the bucket'],
      ['Tenants', tenants.length], ['Fenced', status.fenced_tenants.length || 'none']]} /><//>
    ${disk ? html`<${Card} title="Local disk"><${Facts} rows=${[['Intake', disk.intake.toLowerCase()], ['Room for more', bytes(disk.room)],
      ['Layers', bytes(disk.resident)], ['Of those not uploaded', bytes(disk.not_uploaded)], ['In memory', bytes(disk.in_memory)],
      ['Free', disk.free === null ? null : bytes(disk.free)]]} /><//>` : null}
    <${Card} title="Tenants and who owns them" wide><div class="scroll" tabindex="0" role="region" aria-label="Tenants"><table>
      <thead><tr>${['Tenant', 'Role of this server', 'Generation', 'Timelines', 'Layers', 'On this disk', 'In the bucket'].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${tenants.map((one) => html`<tr key=${one.id}><td><code>${one.id}</code></td>
        <td><${Badge} kind=${ROLES[one.state.slug]?.[0]}>${ROLES[one.state.slug]?.[1] || one.state.slug}<//></td>
        <td>${one.generation ?? 'no bucket'}</td><td>${one.timelines.length}</td><td>${bytes(one.current_physical_size)}</td>
        <td>${bytes(one.resident_bytes)}</td><td>${bytes(one.in_bucket_bytes)}</td></tr>`)}</tbody></table></div><//>
    <${Fleet} />
  </div></div>`;
}

const root = document.getElementById('app');
root.replaceChildren();
render(html`<${App} />`, root);
