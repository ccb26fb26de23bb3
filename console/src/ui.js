// What all views are made of: markup, small components, and asking again from time to time.

import { h, render, Fragment } from './vendor/preact.js';
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);
export { h, render, Fragment, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** Asks at once, then every `seconds`, as long as the page is seen; slowly where answers take long. */
export function usePoll(ask, seconds, inputs) {
  const [state, set] = useState({ value: null, error: null, at: 0 });
  const again = useRef(() => {});
  useEffect(() => {
    let timer = null, ended = false, running = false;
    const controller = new AbortController();
    set((old) => ({ ...old, error: null }));
    const once = async () => {
      if (ended || running) return;
      clearTimeout(timer);
      const began = performance.now();
      running = true;
      try {
        const value = await ask(controller.signal);
        if (!ended) set({ value, error: null, at: Date.now() });
      } catch (error) {
        if (!ended && error.name !== 'AbortError') set((old) => ({ ...old, error }));
      }
      running = false;
      const pause = Math.max(seconds * 1000, 10 * (performance.now() - began));
      if (!ended) timer = setTimeout(() => (document.hidden ? null : once()), pause);
    };
    const seen = () => { if (!document.hidden) once(); };
    document.addEventListener('visibilitychange', seen);
    again.current = once;
    once();
    return () => {
      ended = true;
      clearTimeout(timer);
      controller.abort();
      document.removeEventListener('visibilitychange', seen);
    };
  }, inputs);
  return { ...state, again: () => again.current() };
}

/** Something that has failed, with what to do. */
export function Problem({ error, children }) {
  if (!error) return null;
  return html`<div class="problem" role="alert"><b>${children || 'That did not work.'}</b> ${error.message}</div>`;
}

export async function copyText(text) {
  // Only pages of safe origins have the clipboard.
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (!done) throw new Error('the browser does not allow it');
}

/** Text to take along. */
export function Copy({ text, label }) {
  const [said, say] = useState('');
  const copy = async () => {
    try {
      await copyText(text);
      say('copied');
    } catch {
      say('select it and copy it yourself');
    }
    setTimeout(() => say(''), 2000);
  };
  return html`<span class="copy"><code>${text}</code>
    <button type="button" class="small" onClick=${copy} aria-label=${`copy ${label || text}`}>copy</button>
    <span role="status">${said}</span></span>`;
}

export function Badge({ kind, children }) {
  return html`<span class=${`badge ${kind || ''}`}>${children}</span>`;
}

export function Card({ title, children, wide, aside }) {
  return html`<section class=${wide ? 'card wide' : 'card'} aria-label=${title}>
    <h2>${title}${aside ? html`<span class="aside">${aside}</span>` : null}</h2>${children}</section>`;
}

/** Names and what they are. Rows without a value are left out. */
export function Facts({ rows }) {
  const known = rows.filter((row) => row && row[1] !== null && row[1] !== undefined && row[1] !== '');
  return html`<dl class="facts">${known.map(([name, value, title]) =>
    html`<div key=${name}><dt title=${title}>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A table that can be scrolled sideways on small screens. */
export function Table({ head, rows, empty, label }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${head.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}>${row.cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
