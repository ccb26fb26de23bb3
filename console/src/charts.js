// Small pictures of numbers.

import { html, useRef } from './ui.js';
import { bytes, micros } from './format.js';

/** Keeps the last values of something that is asked for again and again. */
export function useSeries(value, at, length = 120) {
  const series = useRef([]);
  const seen = useRef(0);
  if (at && at !== seen.current && value !== null && value !== undefined) {
    seen.current = at;
    series.current = [...series.current, value].slice(-length);
  }
  return series.current;
}

/** A line of values over the time that this page has looked. */
export function Line({ values, label, text = bytes }) {
  if (values.length < 2) return null;
  const most = Math.max(...values), top = Math.max(most, 1);
  const points = values.map((value, at) => `${(at * 100) / (values.length - 1)},${28 - (value * 26) / top}`);
  return html`<figure class="line"><svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img"
      aria-label=${`${label}: ${text(values[values.length - 1])} now, at most ${text(most)}`}>
    <polyline points=${points.join(' ')} vector-effect="non-scaling-stroke" /></svg>
    <figcaption>${label}: at most ${text(most)} since this page looks</figcaption></figure>`;
}

export const STAGES = [
  ['wait_micros', 'wait', 'for WAL, a turn, memory'],
  ['plan_micros', 'plan', 'search of indexes'],
  ['fetch_micros', 'fetch', 'disk and bucket'],
  ['redo_micros', 'redo', 'rebuilding pages'],
];

/** Where the time of a read went, against the longest one. */
export function Stages({ read, longest }) {
  const said = STAGES.map(([field, name]) => `${name} ${micros(read[field])}`).join(', ');
  let x = 0;
  return html`<svg class="stages" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${said}>
    <title>${said}</title>
    ${STAGES.map(([field, name]) => {
      const width = (read[field] * 100) / Math.max(longest, 1);
      const at = x;
      x += width;
      return html`<rect key=${name} class=${name} x=${at} y="0" width=${width} height="10" />`;
    })}</svg>`;
}

/** A share of something. */
export function Bars({ rows, label }) {
  const top = Math.max(...rows.map(([, value]) => value), 1);
  return html`<table class="bars" aria-label=${label}><tbody>${rows.map(([name, value, more]) => html`<tr key=${name}>
    <th scope="row">${name}</th>
    <td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect x="0" y="0" width=${(value * 100) / top} height="10" /></svg></td>
    <td class="number">${bytes(value)}${more ? html` <small>${more}</small>` : null}</td></tr>`)}</tbody></table>`;
}
