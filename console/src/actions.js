// What changes something: each asks first, and says what it will do.

import { html, Fragment } from './ui.js';
import { ask } from './dialog.js';
import { computes, del, pathOf, post, put } from './api.js';
import { bytes, handle, nameOf, newId } from './format.js';

const NAME = { name: 'name', label: 'Name', required: true, pattern: '[A-Za-z0-9][A-Za-z0-9_.\\-]{0,62}' };

/** Says something that must not be missed. */
export const tell = (title, says) => ask({ title, says: html`<p>${says}</p>`, action: 'OK', run: async () => null });

/** Makes a branch at an LSN; `when` says in words which moment that is. */
export function branch(tenant, timeline, lsn, when, done) {
  ask({
    title: `Branch from ${nameOf(timeline)}`,
    says: html`<p>Makes a new branch with everything that was committed on <b>${nameOf(timeline)}</b> up to${' '}
      <b>${when}</b> (LSN ${lsn}). It takes no time and no space by itself, whatever the size.
      History before that moment is kept as long as the branch exists.</p>`,
    fields: [{ ...NAME, hint: 'a letter or digit, then letters, digits and _ . -', value: '' }],
    action: 'Make the branch',
    run: async ({ name }) => {
      const made = await post(`${pathOf(tenant)}/timeline`, {
        new_timeline_id: newId(), ancestor_timeline_id: timeline.timeline_id, ancestor_start_lsn: lsn, name,
      });
      done(made);
    },
  });
}

/** Keeps a moment by name. */
export function hold(tenant, timeline, lsn, when, done) {
  ask({
    title: `Keep a moment of ${nameOf(timeline)}`,
    says: html`<p>Keeps <b>${when}</b> (LSN ${lsn}) readable until the hold is deleted, however old it becomes. What
      that moment alone needs stays on the disk and in the bucket.</p>`,
    fields: [{ name: 'name', label: 'Name', required: true, hint: 'such as: before the migration' }],
    action: 'Keep it',
    run: async ({ name }) => {
      await put(`${pathOf(tenant, timeline.timeline_id)}/holds/${encodeURIComponent(name)}`, { lsn });
      done();
    },
  });
}

export function release(tenant, timeline, name, done) {
  ask({
    title: `Delete the hold ${name}`,
    says: html`<p>The next removal of history may take what this hold has kept. <b>What is gone does not come back.</b></p>`,
    action: 'Delete the hold',
    dangerous: true,
    run: async () => {
      await del(`${pathOf(tenant, timeline.timeline_id)}/holds/${encodeURIComponent(name)}`);
      done();
    },
  });
}

export function deleteBranch(tenant, timeline, done) {
  const what = timeline.ancestor_timeline_id ? 'branch' : 'timeline: it is not a branch, and its cluster is gone with it';
  ask({
    title: `Delete ${nameOf(timeline)}`,
    says: html`<${Fragment}><p>Deletes this ${what}. Everything that was written to it since it was made is removed,
      ${' '}<b>here and in the bucket, for good</b>: ${bytes(timeline.current_physical_size)} in
      ${' '}${timeline.layer_count} layers. What it inherits stays with the branch that it was made of.</p>
      ${timeline.walreceiver ? html`<p>It receives WAL at present
        (${timeline.walreceiver_status}): the slot that is left there is named afterwards.</p>` : null}<//>`,
    type: handle(timeline),
    action: 'Delete it',
    dangerous: true,
    run: async () => done(await del(pathOf(tenant, timeline.timeline_id))),
  });
}

export function archive(tenant, timeline, done) {
  const archived = timeline.is_archived;
  ask({
    title: archived ? `Take ${nameOf(timeline)} back into service` : `Archive ${nameOf(timeline)}`,
    says: archived
      ? html`<p>It takes in WAL again. The history that went while it was archived does not come back.</p>`
      : html`<p>It takes in nothing more and can be read at its end only, where holds, leases and branches do not keep
          more: <b>the history before goes at the next removal, and does not come back.</b></p>`,
    action: archived ? 'Take it back' : 'Archive it',
    dangerous: !archived,
    run: async () => {
      const state = archived ? 'Unarchived' : 'Archived';
      done(await put(`${pathOf(tenant, timeline.timeline_id)}/archival_config`, { state }));
    },
  });
}

/** How much history a timeline keeps. */
export function setWindow(tenant, timeline, history, done) {
  ask({
    title: `History of ${nameOf(timeline)}`,
    says: html`<p>What falls out of a shorter window goes at the next removal, and <b>does not come back</b>; a longer one
      keeps more from now on. An empty field is what the server's settings say.</p>`,
    fields: [
      { name: 'pitr_interval', label: 'Keep what arrived within', value: history.own.pitr_interval || '',
        placeholder: history.pitr_interval, hint: 'such as 7d or 12h' },
      { name: 'gc_horizon', label: 'Keep at least so many bytes of WAL', value: history.own.gc_horizon ?? '',
        placeholder: String(history.gc_horizon), pattern: '[0-9]*' },
      { name: 'history_max_bytes', label: 'Keep at most so many bytes of WAL (0: no limit)',
        value: history.own.history_max_bytes ?? '', placeholder: String(history.history_max_bytes), pattern: '[0-9]*' },
    ],
    action: 'Set the window',
    dangerous: true,
    run: async (values) => {
      const number = (text) => (String(text).trim() === '' ? null : Number(text));
      await put(`${pathOf(tenant, timeline.timeline_id)}/history`, {
        pitr_interval: values.pitr_interval.trim() || null,
        gc_horizon: number(values.gc_horizon), history_max_bytes: number(values.history_max_bytes),
      });
      done();
    },
  });
}

/** Removes what nothing keeps, of the whole tenant: shows first what that is. */
export async function collect(tenant, names, done) {
  const would = await post(`${pathOf(tenant)}/gc?dry_run=true`);
  const total = would.reduce((sum, one) => sum + one.removed_bytes, 0);
  ask({
    title: 'Remove history that nothing keeps',
    says: html`<${Fragment}><p>Of all branches of this tenant, at once, instead of at the next round. <b>It does not
      come back.</b> ${total ? '' : 'At present nothing would go.'}</p>
      <ul>${would.filter((one) => one.removed_layers).map((one) => html`<li key=${one.timeline_id}>
        <b>${names(one.timeline_id)}</b>: ${one.removed_layers} layers, ${bytes(one.removed_bytes)}, below LSN
        ${' '}${one.cutoff}</li>`)}</ul><//>`,
    action: total ? `Remove ${bytes(total)}` : 'Look once more, and remove',
    dangerous: true,
    run: async () => done(await post(`${pathOf(tenant)}/gc`)),
  });
}

/** Opens a moment, read-only, or a branch, as a compute. */
export function openCompute(wanted, says, done) {
  ask({
    title: wanted.read_only ? 'Open a moment' : `Start a compute on ${wanted.branch}`,
    says,
    fields: [{ ...NAME, label: 'Name of the compute', value: wanted.name || '',
      hint: 'a letter or digit, then letters, digits and _ . -' }],
    action: 'Start it',
    run: async ({ name }) => done(await computes('POST', '', { ...wanted, name })),
  });
}

export function stopCompute(name, done) {
  ask({
    title: `Stop ${name}`,
    says: html`<p>Everybody who is connected to this compute is cut off. What was committed is kept: stopping waits until
      its branch has all of it.</p>`,
    action: 'Stop it',
    dangerous: true,
    run: async () => done(await computes('POST', `/${encodeURIComponent(name)}/stop`)),
  });
}
