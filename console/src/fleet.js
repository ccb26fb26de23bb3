// All servers on the bucket of this one: which of them owns what, which are standbys, and how far each of them is.

import { html, usePoll, Badge, Card, Problem, Table } from './ui.js';
import { get } from './api.js';
import { bytes, shortId, span } from './format.js';

const KIND = { owner: 'good', standby: '', former: 'bad' };
// Servers say what they are every few seconds.
const SILENT = 60;

/** The servers, if there are several; one alone is a quiet line. */
export function Fleet() {
  const poll = usePoll((signal) => get('/v1/fleet', signal), 5, []);
  const fleet = poll.value;
  // A token of one tenant says nothing of servers.
  if (poll.error && poll.error.status === 403) return null;
  if (!fleet) return html`<${Problem} error=${poll.error}>The other servers are not known.<//>`;
  const servers = new Map(fleet.servers.map((one) => [one.id, one]));
  const { tenants } = fleet;
  if (fleet.servers.length === 1) {
    return html`<p class="quiet wide" data-fleet="1">No other server is on this one's bucket: its tenants have no standby.</p>`;
  }
  return html`<${Card} title="All servers on this bucket" wide aside=${fleet.tenants_left_out ? `${fleet.tenants_left_out} further tenants are not listed` : ''}>
    <${Problem} error=${poll.error} />
    <${Table} label="Servers" head=${['Server', 'Console', 'Owns', 'Standby of', 'Lease', 'Heard', 'Version']} empty=""
      rows=${fleet.servers.map((one) => ({ key: one.id, cells: [
        html`<span data-server=${one.id}>${name(one)}</span>`, link(one), one.owns, one.standby_of, lease(one.lease), heard(one), one.version || ''] }))} />
    <h3>Who has what</h3>
    <${Table} label="Roles" head=${['Tenant', 'Server', 'Role', 'Generation', 'How far', 'Behind', 'Timelines', '']} empty="There are no tenants."
      rows=${tenants.flatMap((tenant) => tenant.roles.map((one) => ({ key: tenant.id + one.server, cells: role(tenant, one, servers.get(one.server)) })))} />
    <p class="quiet">Of an owner: what readers there see, and how far that is behind the Postgres that writes. Of a standby: what its
      journal has. Who owns a tenant is in the bucket; the rest is what servers say there every few seconds.</p><//>`;
}

const name = (server) => html`${server.host || 'unknown'} <code title=${server.id}>${server.id.slice(0, 12) || '?'}</code>${server.is_this ? html` <${Badge}>this one<//>` : ''}`;

// The address is another server's word: nothing but a link to a page comes of it.
function link(server) {
  if (server.is_this || !server.url || !/^https?:\/\//.test(server.url)) return '';
  return html`<a href=${server.url} rel="noreferrer noopener">${server.url.replace(/^https?:\/\//, '').replace(/\/$/, '')}</a>`;
}

function lease(one) {
  if (!one) return 'none';
  return html`${one.is_overdue ? html`<${Badge} kind="bad">overdue<//> ` : ''}renewed ${span(one.renewed_seconds_ago)} ago`;
}

function heard(server) {
  if (server.is_this) return 'now';
  if (server.said_seconds_ago === null) return 'says nothing';
  const text = `${span(server.said_seconds_ago)} ago`;
  return server.said_seconds_ago > SILENT ? html`<${Badge} kind="warn">${text}<//>` : text;
}

function role(tenant, { server, role: what, said }, of) {
  const [first] = said?.timelines || [];
  const count = said ? said.timelines.length + said.timelines_left_out : 0;
  const error = said?.error || said?.timelines.map((one) => one.error).find(Boolean) || '';
  return [
    html`<code title=${tenant.id}>${shortId(tenant.id)}</code>`, of ? name(of) : server,
    html`<${Badge} kind=${KIND[what]}>${what}<//>`, said?.generation ?? tenant.generation ?? '',
    !said ? 'not known' : first ? html`<span title=${first.timeline_id}>${first.name || shortId(first.timeline_id)}</span> ${first.lsn}`
      : what === 'standby' ? 'what the bucket has' : 'nobody writes',
    first && first.lag_bytes !== null ? bytes(first.lag_bytes) : '', count || '', error ? html`<${Badge} kind="warn">${error}<//>` : '',
  ];
}
