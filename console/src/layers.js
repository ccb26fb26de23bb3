// The layer map of a timeline, and the same as a table.

import { html, useEffect, useMemo, useRef, useState, usePoll, Facts, Problem, Table } from './ui.js';
import { get, pathOf } from './api.js';
import { bytes, lsnText } from './format.js';
import { KINDS, LayerMap, Layers, describe } from './layermap.js';

const LISTED = 100;

export function LayersView({ tenant, timeline }) {
  const poll = usePoll(async (signal) => new Layers(await get(`${pathOf(tenant, timeline.timeline_id)}/layer`, signal)), 3,
    [tenant, timeline.timeline_id]);
  const layers = poll.value;
  const canvas = useRef(null), map = useRef(null);
  const [hovered, setHovered] = useState(null);
  const [picked, setPicked] = useState(null);

  useEffect(() => {
    map.current = new LayerMap(canvas.current);
    const observer = new ResizeObserver(() => map.current.resize());
    observer.observe(canvas.current);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const theme = () => map.current.theme();
    dark.addEventListener('change', theme);
    // Preact's listeners for wheels are passive.
    const wheel = (event) => {
      event.preventDefault();
      map.current.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
    };
    canvas.current.addEventListener('wheel', wheel, { passive: false });
    canvas.current.map = map.current;
    return () => {
      observer.disconnect();
      dark.removeEventListener('change', theme);
      map.current.stop();
    };
  }, []);
  useEffect(() => { if (layers) map.current.show(layers); }, [layers]);

  const drag = useRef(null);
  const down = (event) => {
    drag.current = { x: event.offsetX, y: event.offsetY, moved: 0 };
    canvas.current.setPointerCapture(event.pointerId);
  };
  const movePointer = (event) => {
    const { offsetX: x, offsetY: y } = event;
    if (drag.current) {
      const [dx, dy] = [x - drag.current.x, y - drag.current.y];
      map.current.pan(dx, dy, true);
      drag.current = { x, y, moved: drag.current.moved + Math.abs(dx) + Math.abs(dy) };
    }
    const at = map.current.hover(x, y);
    setHovered(at < 0 ? null : { layer: map.current.layers.list[at], x, y });
  };
  const up = (event) => {
    const clicked = drag.current && drag.current.moved < 4;
    drag.current = null;
    if (!clicked) return;
    const at = map.current.hit(event.offsetX, event.offsetY);
    pick(at < 0 ? null : map.current.layers.list[at]);
  };
  const pick = (layer) => {
    map.current.picked = layer && layer.id;
    map.current.wake();
    setPicked(layer);
  };
  const leave = () => {
    map.current.hover(-1, -1);
    setHovered(null);
  };
  const keys = (event) => {
    const by = 60;
    const moves = { ArrowLeft: [by, 0], ArrowRight: [-by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] };
    if (event.key in moves) map.current.pan(...moves[event.key]);
    else if (event.key === '+' || event.key === '=') map.current.zoom(0.7);
    else if (event.key === '-') map.current.zoom(1 / 0.7);
    else if (event.key === '0') map.current.fit();
    else if (event.key === 'Escape') pick(null);
    else return;
    event.preventDefault();
  };
  const counts = useMemo(() => KINDS.map((_, kind) => {
    const own = layers ? layers.list.filter((one) => one.kind === kind) : [];
    return [own.length, own.reduce((sum, one) => sum + one.size, 0)];
  }), [layers]);
  const largest = useMemo(() => (layers ? [...layers.list].sort((one, other) => other.reads - one.reads
    || other.size - one.size).slice(0, LISTED) : []), [layers]);

  return html`<div class="layers">
    <${Problem} error=${poll.error} />
    <div class="tools">
      <button type="button" onClick=${() => map.current.zoom(0.7)} aria-label="closer">+</button>
      <button type="button" onClick=${() => map.current.zoom(1 / 0.7)} aria-label="farther">-</button>
      <button type="button" onClick=${() => map.current.fit()}>Show all</button>
      <span class="quiet">Drag or arrow keys to move, wheel or + and - to zoom; a click keeps what is told.</span></div>
    <div class="map"><canvas ref=${canvas} tabindex="0" role="img" data-layers=${layers ? layers.list.length : ''}
        aria-label=${`Map of ${layers ? layers.list.length : 0} layers. The table below has the same.`}
        onPointerDown=${down} onPointerMove=${movePointer} onPointerUp=${up} onPointerLeave=${leave} onKeyDown=${keys}></canvas>
      ${hovered ? html`<div class="tip" style=${place(hovered, canvas.current)}><${Facts} rows=${describe(hovered.layer, true)} /></div>` : null}
    </div>
    <ul class="legend">${KINDS.map(([kind, name], at) => (counts[at][0] ? html`<li key=${kind}><span class=${`swatch ${kind}`}></span>
      ${name}: ${counts[at][0]}, ${bytes(counts[at][1])}</li>` : null))}
      <li><span class="swatch warm"></span>read just now</li><li><span class="swatch remote"></span>paler: only in the bucket</li></ul>
    ${picked ? html`<section class="card wide" aria-label="The picked layer" aria-live="polite"><h2>The picked layer</h2>
      <${Facts} rows=${describe(picked, false)} /></section>` : null}
    <details><summary>The same as a table: ${Math.min(LISTED, largest.length)} of ${layers ? layers.list.length : 0}, the most read first</summary>
      <${Table} label="Layers" empty="There are no layers of its own: all reads go to what it is a branch of."
        head=${['Kind', 'Size', 'LSNs', 'Reads', 'Where', 'Layer']} rows=${largest.map((one) => ({ key: one.id, cells: [
          KINDS[one.kind][1], bytes(one.size), one.kind === 2 ? lsnText(one.from) : `${lsnText(one.from)} to ${lsnText(one.to)}`,
          one.reads, one.remote ? 'bucket' : one.kind > 2 ? 'memory' : 'disk', html`<code>${one.id}</code>`] }))} /></details>
  </div>`;
}

/** Beside the pointer, inside of the picture. */
function place({ x, y }, canvas) {
  const left = x > canvas.clientWidth / 2, above = y > canvas.clientHeight / 2;
  return { left: left ? 'auto' : `${x + 14}px`, right: left ? `${canvas.clientWidth - x + 14}px` : 'auto',
    top: above ? 'auto' : `${y + 14}px`, bottom: above ? `${canvas.clientHeight - y + 14}px` : 'auto' };
}
