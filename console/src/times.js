// When the LSNs of a timeline were: asked once for each, since that does not change.

import { useEffect, useState } from './ui.js';
import { get, pathOf } from './api.js';
import { lsn, lsnText } from './format.js';

const known = new Map();
const AT_ONCE = 4;
// As many halves of a history are looked at for its first commit.
const TRIES = 12;

async function timeOf(tenant, timeline, lsn, signal) {
  const key = `${timeline} ${lsn}`;
  if (known.has(key)) return known.get(key);
  let found = null;
  try {
    found = Date.parse(await get(`${pathOf(tenant, timeline)}/get_timestamp_of_lsn?lsn=${lsn}`, signal));
  } catch (error) {
    // No commit has left its time, or that is no longer kept: both are known for good.
    if (error.status !== 412 && error.status !== 404) throw error;
  }
  if (known.size > 20000) known.clear();
  known.set(key, found);
  return found;
}

/** About when the first commit was whose time is known, if that is not known of the beginning itself. */
async function startOf(tenant, timeline, from, to, signal) {
  const key = `${timeline} ${from}`;
  const found = await timeOf(tenant, timeline, from, signal);
  if (found !== null) return;
  let [low, high] = [lsn(from), lsn(to)], first = null;
  for (let tries = 0; tries < TRIES && high - low > 8; tries += 1) {
    const middle = tries === 0 ? high : Math.floor((low + high) / 16) * 8;
    const time = await timeOf(tenant, timeline, lsnText(middle), signal);
    if (time === null) low = middle;
    else [high, first] = [middle, time];
    if (tries === 0 && time === null) return;
  }
  known.set(key, first);
}

/** Asks for all of `wanted`, a few at a time; each is `[tenant, timeline, lsn]`, and the end where it is a beginning. */
async function timesOf(wanted, signal) {
  const left = [...wanted];
  const worker = async () => {
    for (let next = left.shift(); next && !signal.aborted; next = left.shift()) {
      const [tenant, timeline, at, end] = next;
      await (end ? startOf(tenant, timeline, at, end, signal) : timeOf(tenant, timeline, at, signal)).catch(() => null);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/**
 * When each timeline began and last changed, in milliseconds: `{id: {from, to, guessed}}`. A root begins where its
 * history that is kept does.
 */
export function useTimes(tenant, timelines) {
  const [, redraw] = useState(0);
  const open = timelines.filter((one) => one.last_record_lsn);
  const wanted = [];
  for (const one of open) {
    const parent = one.ancestor_timeline_id;
    wanted.push([tenant, one.timeline_id, parent ? one.ancestor_lsn : one.min_readable_lsn, one.last_record_lsn]);
    wanted.push([tenant, one.timeline_id, one.last_record_lsn]);
  }
  const signature = wanted.map((one) => one[1] + one[2]).join();
  useEffect(() => {
    const controller = new AbortController();
    const missing = wanted.filter(([, timeline, lsn]) => !known.has(`${timeline} ${lsn}`));
    if (missing.length) timesOf(missing, controller.signal).then(() => redraw((count) => count + 1));
    return () => controller.abort();
  }, [signature]);
  const at = (timeline, lsn) => known.get(`${timeline} ${lsn}`) ?? null;
  const times = {};
  for (const one of open) {
    const parent = one.ancestor_timeline_id;
    const from = at(one.timeline_id, parent ? one.ancestor_lsn : one.min_readable_lsn);
    // The newest that was found: WAL that arrives all the time is not asked for each time it is drawn.
    const to = at(one.timeline_id, one.last_record_lsn) ?? last.get(one.timeline_id) ?? from;
    if (to !== null) last.set(one.timeline_id, to);
    times[one.timeline_id] = { from, to };
  }
  return times;
}

const last = new Map();
