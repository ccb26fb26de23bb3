// The moment that the cursor has picked: which LSN that is, and what can be made of it.

import { html, useEffect, useState, Copy, Problem } from './ui.js';
import * as actions from './actions.js';
import { get, pathOf } from './api.js';
import { handle, isLsn, iso, moment, nameOf, quoted, span } from './format.js';

const WAIT = 250;
const KINDS = {
  past: 'That is before the history that is kept. It begins at the LSN shown.',
  future: 'No commit is after that moment: it is the end of the branch as it is now.',
  nodata: 'No commit has left its time as yet: it is the end of the branch as it is now.',
};

/** What a text means: an LSN, or a time that the server understands. */
async function resolve(tenant, timeline, text, signal) {
  if (isLsn(text)) {
    const time = await get(`${pathOf(tenant, timeline)}/get_timestamp_of_lsn?lsn=${text}`, signal);
    return { lsn: text, kind: 'present', ms: Date.parse(time) };
  }
  const time = encodeURIComponent(text);
  return get(`${pathOf(tenant, timeline)}/get_lsn_by_timestamp?timestamp=${time}`, signal);
}

export function Moment({ tenant, timeline, cursor, setCursor, made, hasComputes }) {
  const [typed, setTyped] = useState(null);
  const text = (typed ?? iso(cursor.ms)).trim();
  // What was found is of a text: never of the one before.
  const asked = `${timeline.timeline_id} ${text}`;
  const [answer, setAnswer] = useState({});
  const { found = null, error = null } = answer.asked === asked ? answer : {};
  useEffect(() => setTyped(null), [cursor.ms, cursor.timeline]);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(() => {
      resolve(tenant, timeline.timeline_id, text, controller.signal)
        .then((value) => setAnswer({ asked, found: value }))
        .catch((failure) => { if (failure.name !== 'AbortError') setAnswer({ asked, error: failure }); });
    }, WAIT);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [asked]);

  // The cursor goes to a time, if that is one as exact as the cursor; other moments are only told.
  const type = (value) => {
    const ms = /^\d{4}-\d\d-\d\dT[\d:]+(\.\d{1,3})?(Z|[+-]\d\d:\d\d)$/.test(value.trim()) ? Date.parse(value.trim()) : NaN;
    if (Number.isNaN(ms) || ms > Date.now()) return setTyped(value);
    setTyped(null);
    return setCursor({ ...cursor, ms });
  };
  const when = isLsn(text) ? `LSN ${text}` : typed ?? moment(cursor.ms);
  const ready = found && found.kind !== 'past';
  const branchName = handle(timeline);
  const host = location.hostname;
  const lsn = found?.lsn ?? '...';
  return html`<section class="card wide moment" aria-label="The picked moment" aria-live="polite">
    <h2>${nameOf(timeline)} at ${when}
      <span class="aside">${typed === null ? `${span((Date.now() - cursor.ms) / 1000)} ago` : ''}</span></h2>
    <div class="tools"><label class="grow">Moment <input value=${text} spellcheck="false" autocomplete="off"
        aria-describedby="moment-hint" onChange=${(event) => type(event.target.value)} /></label>
      <button type="button" onClick=${() => setCursor(null)}>Put the cursor away</button></div>
    <small id="moment-hint">A time (RFC 3339), an LSN, or such as: 10 minutes ago</small>
    <${Problem} error=${error}>That is no moment of this branch.<//>
    <p>${found ? html`LSN <b data-lsn=${found.lsn}>${found.lsn}</b>. ${KINDS[found.kind] || ''}`
      : error ? null : 'Looking for the last commit before...'}</p>
    <p class="buttons">
      <button type="button" class="primary" disabled=${!ready}
        onClick=${() => actions.branch(tenant, timeline, found.lsn, when, made)}>Branch from here</button>
      ${hasComputes ? html`<button type="button" disabled=${!ready} onClick=${() => actions.openCompute(
        { branch: branchName, at: found.lsn, read_only: true, name: `${timeline.name || 'moment'}-${found.lsn.replace('/', '-')}` },
        html`<p>Starts a read-only Postgres that sees <b>${nameOf(timeline)}</b> as of ${when} (LSN ${found.lsn}).
          Nothing is written to any branch.</p>`, made)}>Open this moment</button>` : null}
      <button type="button" disabled=${!ready}
        onClick=${() => actions.hold(tenant, timeline, found.lsn, when, made)}>Keep this moment</button>
    </p>
    <details><summary>The same by command, and connection strings</summary>
      <p>Read it without a branch, through <code>pagectl gateway</code> (its usual port, on the host of this page):</p>
      <${Copy} label="connection string" text=${`psql "host=${host} port=6432 user=postgres options='-cbranch=${branchName}@${lsn}'"`} />
      <p>Open it as a compute of the machine where the command runs:</p>
      <${Copy} label="command to open" text=${`pagectl compute start NAME --read-only --branch ${quoted(branchName)} --at ${lsn}`} />
      <p>Branch from it:</p>
      <${Copy} label="command to branch" text=${`pagectl timeline branch --timeline ${quoted(branchName)} --at-lsn ${lsn}`} />
    </details>
  </section>`;
}
