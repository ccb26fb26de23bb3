// Talks to the server that this page is from, and to no other. The token is kept in this tab only, and sent as a header:
// the browser sends nothing by itself, so that no other page can act with it.

const TOKEN = 'token';
const COMPUTES = 'compute-token';

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const listeners = new Set();
let launched = null;

/** Notified of `signed-out` (with a reason) and `stale` (the server has another version of this page). */
export function listen(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

function tell(what, reason) {
  for (const heard of listeners) heard(what, reason);
}

export const token = () => sessionStorage.getItem(TOKEN);
export const computeToken = () => sessionStorage.getItem(COMPUTES);

export function signIn(value) {
  sessionStorage.setItem(TOKEN, value.trim());
}

export function keepComputeToken(value) {
  if (value) sessionStorage.setItem(COMPUTES, value.trim());
  else sessionStorage.removeItem(COMPUTES);
}

export function signOut(reason) {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(COMPUTES);
  tell('signed-out', reason || '');
}

/** What a token says of itself; only the server knows whether it is true. */
export function claims(value) {
  try {
    const part = value.split('.')[1].replace(/-/g, '+').replace(/_/g, '/');
    return JSON.parse(atob(part));
  } catch {
    return {};
  }
}

async function call(method, path, { body, signal, headers = {} } = {}) {
  const used = token();
  const sent = { ...headers };
  if (used) sent.Authorization = `Bearer ${used}`;
  if (body !== undefined) sent['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(path, {
      method, headers: sent, signal, credentials: 'omit', cache: 'no-store', redirect: 'error',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof TypeError === false) throw error;
    throw new ApiError(0, 'The server does not answer. It is asked again; is it running?');
  }
  notice(answer);
  const type = answer.headers.get('content-type') || '';
  const value = type.includes('json') ? await answer.json() : await answer.text();
  if (answer.ok) return value;
  const said = value && value.msg ? value.msg : `${answer.status} ${answer.statusText}`;
  if (answer.status === 401 && used === token()) {
    signOut(used ? `The token is not accepted (any more): ${said}` : '');
  }
  throw new ApiError(answer.status, said);
}

/** A server that was started again may have another version of this page. */
function notice(answer) {
  const now = answer.headers.get('pageserver_launch_timestamp');
  if (!now || now === launched) return;
  const first = launched === null;
  launched = now;
  if (!first) {
    about().then((it) => { if (it.version !== version()) tell('stale'); }).catch(() => {});
  }
}

export const version = () => document.querySelector('meta[name=version]').content;
export const about = () => call('GET', '/console/about');

export const get = (path, signal) => call('GET', path, { signal });
export const post = (path, body) => call('POST', path, { body });
export const put = (path, body) => call('PUT', path, { body });
export const del = (path) => call('DELETE', path);

/** Asks `pagectl compute serve`, through the server. */
export const computes = (method, below, body, signal) =>
  call(method, `/console/computes${below}`, { body, signal, headers: { 'X-Compute-Token': computeToken() || '' } });

export const pathOf = (tenant, timeline) => `/v1/tenant/${tenant}${timeline ? `/timeline/${timeline}` : ''}`;
