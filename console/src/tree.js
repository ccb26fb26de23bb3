// The branches of a tenant along time, with a cursor that picks a moment of one of them.

import { html, useEffect, useLayoutEffect, useRef, useState, Badge } from './ui.js';
import { ago, moment, nameOf, span } from './format.js';
import { useTimes } from './times.js';

const SHOWN = 100;
const LABEL = 230;
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const STEPS = [1, 2, 5, 10, 30].map((n) => n * SECOND)
  .concat([1, 2, 5, 10, 30].map((n) => n * MINUTE), [1, 3, 6, 12].map((n) => n * HOUR))
  .concat([1, 2, 7, 14, 30, 90, 365, 3650].map((n) => n * DAY));
const SPANS = [['everything', 0], ['7 days', 7 * DAY], ['1 day', DAY], ['1 hour', HOUR], ['10 min', 10 * MINUTE]];

/** Each timeline after the one that it is a branch of, with how deep it is. */
export function ordered(timelines, times) {
  const known = new Set(timelines.map((one) => one.timeline_id));
  const below = new Map();
  for (const one of timelines) {
    const parent = known.has(one.ancestor_timeline_id) ? one.ancestor_timeline_id : '';
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(one);
  }
  const began = (one) => times[one.timeline_id]?.from ?? 0;
  const rows = [];
  const left = (below.get('') || []).map((one) => [one, 0]);
  left.sort((one, other) => began(one[0]) - began(other[0]) || nameOf(one[0]).localeCompare(nameOf(other[0])));
  while (left.length) {
    const [timeline, depth] = left.shift();
    rows.push({ timeline, depth });
    const children = (below.get(timeline.timeline_id) || []).map((one) => [one, depth + 1]);
    children.sort((one, other) => began(one[0]) - began(other[0]));
    left.unshift(...children);
  }
  return rows;
}

/** The width of an element, as it changes. */
function useWidth() {
  const element = useRef(null);
  const [width, set] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.round(entry.contentRect.width)));
    observer.observe(element.current);
    set(Math.round(element.current.clientWidth));
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

export function State({ timeline }) {
  const receiver = timeline.walreceiver;
  if (timeline.state !== 'Active') return html`<${Badge} kind="bad">broken<//>`;
  if (timeline.expired) return html`<${Badge} kind="warn">expired: ${timeline.expired}<//>`;
  if (timeline.is_archived) return html`<${Badge}>archived<//>`;
  if (!receiver) return null;
  if (receiver.state === 'streaming') {
    return html`<${Badge} kind="good">${receiver.writer ? `compute ${receiver.writer.name}` : 'follows'}<//>`;
  }
  return html`<${Badge} kind=${receiver.state === 'failed' ? 'bad' : 'warn'}>${receiver.state.replace('_', ' ')}<//>`;
}

export function Tree({ tenant, timelines, cursor, setCursor, now }) {
  const [filter, setFilter] = useState('');
  const [shown, setShown] = useState(SHOWN);
  const [range, setRange] = useState(0);
  const [element, width] = useWidth();
  const wanted = filter.trim().toLowerCase();
  const matching = timelines.filter((one) => !wanted || nameOf(one).toLowerCase().includes(wanted)
    || one.timeline_id.startsWith(wanted));
  const listed = matching.slice(0, shown);
  const times = useTimes(tenant, listed);
  const rows = ordered(listed, times);

  const narrow = width < 620;
  const row = narrow ? 58 : 34, middle = narrow ? 42 : 17, left = narrow ? 10 : LABEL, right = 12, top = 26;
  const starts = rows.map(({ timeline }) => times[timeline.timeline_id]?.from).filter((at) => at);
  const earliest = starts.length ? Math.min(...starts) : now - HOUR;
  const begin = range ? now - range : Math.min(earliest - (now - earliest) * 0.02, now - 10 * SECOND);
  const lane = Math.max(50, width - left - right);
  const x = (ms) => left + ((Math.max(begin, Math.min(ms, now)) - begin) / (now - begin)) * lane;
  const at = (px) => begin + ((px - left) / lane) * (now - begin);
  const y = (index) => top + index * row + middle;
  const height = top + rows.length * row + 6;
  const place = new Map(rows.map(({ timeline }, index) => [timeline.timeline_id, index]));

  const step = STEPS.find((one) => (one / (now - begin)) * lane > (narrow ? 90 : 120)) || STEPS[STEPS.length - 1];
  const offset = new Date(now).getTimezoneOffset() * MINUTE;
  const ticks = [];
  for (let tick = Math.ceil((begin - offset) / step) * step + offset; tick <= now && ticks.length < 50; tick += step) {
    ticks.push(tick);
  }

  const pick = (timeline, ms) => {
    const { from } = times[timeline.timeline_id] || {};
    setCursor({ timeline: timeline.timeline_id, ms: Math.min(now, Math.max(from ?? begin, ms)) });
  };
  return html`<div class="tree">
    <div class="tools">
      ${timelines.length > 8 ? html`<label>Find <input type="search" value=${filter} placeholder="name or id"
        onInput=${(event) => setFilter(event.target.value)} /></label>` : null}
      <label>Show <select value=${String(range)} onChange=${(event) => setRange(Number(event.target.value))}>
        ${SPANS.map(([name, value]) => html`<option key=${name} value=${String(value)}>${name}</option>`)}</select></label>
      <span class="quiet">Click into a branch, or move there with the arrow keys, to pick a moment.</span>
    </div>
    <div class="lanes" ref=${element} style=${{ height: `${height}px` }}>
      ${width ? html`<svg width=${width} height=${height} aria-hidden="true">
        ${ticks.map((tick) => html`<g key=${tick} class="tick"><line x1=${x(tick)} x2=${x(tick)} y1=${top - 4} y2=${height} />
          <text x=${x(tick)} y="14" text-anchor=${x(tick) > width - 60 ? 'end' : 'middle'}>${label(tick, step)}</text></g>`)}
        ${rows.map(({ timeline }, index) => {
          const time = times[timeline.timeline_id] || {};
          if (!time.from || time.to < begin && !timeline.walreceiver) return null;
          const parent = place.get(timeline.ancestor_timeline_id);
          const live = timeline.walreceiver && timeline.state === 'Active';
          const start = x(time.from), end = x(Math.max(time.from, time.to ?? time.from));
          return html`<g key=${timeline.timeline_id} class=${timeline.is_archived ? 'branch archived' : 'branch'}>
            ${parent === undefined || time.from < begin ? null
              : html`<path class="joint" d=${`M${start} ${y(parent)}V${y(index) - 8}q0 8 8 8`} />`}
            ${live ? html`<line class="live" x1=${end} x2=${x(now)} y1=${y(index)} y2=${y(index)} />` : null}
            ${end > start + 1 ? html`<line class="past" x1=${start} x2=${end} y1=${y(index)} y2=${y(index)} />` : null}
            <circle cx=${live ? x(now) : end} cy=${y(index)} r="4" /></g>`;
        })}
        ${cursor && cursor.ms >= begin ? html`<g class="cursor"><line x1=${x(cursor.ms)} x2=${x(cursor.ms)} y1=${top - 4} y2=${height} />
          ${place.has(cursor.timeline) ? html`<circle cx=${x(cursor.ms)} cy=${y(place.get(cursor.timeline))} r="7" />` : null}</g>` : null}
      </svg>` : null}
      ${width ? rows.map(({ timeline, depth }, index) => html`<${Lane} key=${timeline.timeline_id} tenant=${tenant}
        timeline=${timeline} depth=${depth} time=${times[timeline.timeline_id]} cursor=${cursor} pick=${pick} at=${at}
        place=${{ top: top + index * row, height: row, left, lane, narrow }} begin=${begin} now=${now} />`) : null}
    </div>
    ${matching.length > listed.length ? html`<p><button type="button" onClick=${() => setShown(shown + SHOWN)}>
      Show more: ${matching.length - listed.length} are not shown</button></p>` : null}
  </div>`;
}

function label(tick, step) {
  const date = new Date(tick);
  const two = (number) => String(number).padStart(2, '0');
  if (step >= DAY || (step >= HOUR && date.getHours() === 0)) return `${date.getMonth() + 1}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return step < MINUTE ? `${time}:${two(date.getSeconds())}` : time;
}

function Lane({ tenant, timeline, depth, time, cursor, pick, at, place, begin, now }) {
  const element = useRef(null);
  const own = cursor && cursor.timeline === timeline.timeline_id ? cursor : null;
  const from = Math.max(begin, time?.from ?? begin);
  const drag = useRef(false);
  const pointed = (event) => pick(timeline, at(event.clientX - element.current.parentElement.getBoundingClientRect().left));
  const keys = (event) => {
    const small = (now - begin) / 400;
    const steps = { ArrowLeft: -small, ArrowRight: small, PageDown: -small * 20, PageUp: small * 20 };
    const base = own ? own.ms : time?.to ?? now;
    if (event.key in steps) pick(timeline, base + steps[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === 'Home') pick(timeline, from);
    else if (event.key === 'End') pick(timeline, now);
    else return;
    event.preventDefault();
  };
  // Drags end wherever the pointer is let go.
  useEffect(() => {
    const end = () => { drag.current = false; };
    window.addEventListener('pointerup', end);
    return () => window.removeEventListener('pointerup', end);
  }, []);
  const style = { top: `${place.top}px`, height: `${place.height}px` };
  const title = time?.from ? `${nameOf(timeline)}: from ${moment(time.from)}, last commit ${ago(time.to)}` : nameOf(timeline);
  return html`<div>
    <div class="name" style=${{ ...style, height: place.narrow ? '26px' : style.height, paddingLeft: `${Math.min(depth, 6) * 14}px`,
      width: place.narrow ? '100%' : `${LABEL - 12}px` }}>
      <a href=${`#/t/${tenant}/${timeline.timeline_id}`} title=${title}>${nameOf(timeline)}</a>
      <${State} timeline=${timeline} /></div>
    <div ref=${element} class=${own ? 'lane picked' : 'lane'} tabindex="0" role="slider" data-timeline=${timeline.timeline_id}
      aria-label=${`Moment of ${nameOf(timeline)}`} aria-valuemin="0" aria-valuemax=${Math.round((now - from) / SECOND)}
      aria-valuenow=${Math.round(((own ? own.ms : now) - from) / SECOND)}
      aria-valuetext=${own ? `${moment(own.ms)}, ${span((now - own.ms) / SECOND)} ago` : 'no moment picked'}
      style=${{ ...style, left: `${place.left}px`, width: `${place.lane}px`, touchAction: 'pan-y' }} onKeyDown=${keys}
      onPointerDown=${(event) => { drag.current = true; pointed(event); }}
      onPointerMove=${(event) => { if (drag.current && event.buttons) pointed(event); }}></div>
  </div>`;
}
