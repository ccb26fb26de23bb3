// Numbers, LSNs and times as people read them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(count) {
  if (count === null || count === undefined) return '';
  let value = Math.abs(Number(count)), unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  const text = unit > 0 && value < 100 ? value.toFixed(1) : value.toFixed(0);
  return `${count < 0 ? '-' : ''}${text} ${UNITS[unit]}`;
}

/** An LSN as a number: exact below 2^53, which is 8 PiB of WAL. */
export function lsn(text) {
  const [high, low] = text.split('/');
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}

export const lsnText = (value) =>
  `${Math.floor(value / 2 ** 32).toString(16).toUpperCase()}/${(value % 2 ** 32).toString(16).toUpperCase()}`;

export const isLsn = (text) => /^[0-9a-fA-F]{1,8}\/[0-9a-fA-F]{1,8}$/.test(text);

const plural = (count, what) => `${count} ${what}${count === 1 ? '' : 's'}`;

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60 ? `${whole % 60} s` : ''}`.trim();
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${plural(Math.floor(whole / 86400), 'day')} ${Math.floor((whole % 86400) / 3600)} h`;
}

export const ago = (ms) => (ms ? `${span((Date.now() - ms) / 1000)} ago` : 'never');

export function micros(count) {
  if (count < 1000) return `${count} us`;
  if (count < 1e6) return `${(count / 1000).toFixed(count < 1e4 ? 1 : 0)} ms`;
  return `${(count / 1e6).toFixed(2)} s`;
}

/** Local time, to the second, with the date unless it is today. */
export function moment(ms) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export const iso = (ms) => new Date(ms).toISOString();

/** A random id of a timeline. */
export function newId() {
  const raw = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(raw, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export const shortId = (id) => `${id.slice(0, 8)}...`;
export const nameOf = (timeline) => timeline.name || shortId(timeline.timeline_id);
/** What commands take. */
export const handle = (timeline) => timeline.name || timeline.timeline_id;

/** Text as one word of a shell. */
export const quoted = (text) => (/^[\w./@:=+-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`);

/** What a key is of: as in the table of an SQL database. */
export function keyText(key) {
  if (/^f+$/i.test(key)) return 'the last key';
  const part = (from, to) => parseInt(key.slice(from, to), 16);
  if (part(0, 2) !== 0) return 'metadata';
  const [space, db, rel, fork, block] = [part(2, 10), part(10, 18), part(18, 26), part(26, 28), part(28, 36)];
  if (!space && !db && !rel && !block) return 'the first key';
  if (!rel) return 'directory of relations';
  return `relation ${space}/${db}/${rel}${fork ? ` fork ${fork}` : ''} block ${block}`;
}

/** How far a timeline's WAL is from readers, and from what is durable; in bytes. */
export function lags(timeline) {
  const receiver = timeline.walreceiver;
  if (!receiver) return null;
  const applied = lsn(receiver.applied_lsn);
  const end = receiver.server_end_lsn ? lsn(receiver.server_end_lsn) : null;
  const durable = Math.max(lsn(receiver.flushed_lsn), receiver.journaled_lsn ? lsn(receiver.journaled_lsn) : 0);
  return {
    visible: end === null ? null : Math.max(0, end - applied),
    durable: Math.max(0, applied - durable),
    ended: end,
  };
}
