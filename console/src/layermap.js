// Draws layers on a canvas: keys across, LSNs up, one box per layer. Neither axis is to scale: each is divided at the
// layers' boundaries into pieces of equal length, so that overlaps are seen whether a layer has ten keys or all.
//
// Only what is in view is drawn, box by box, grouped by colour. Frames are drawn only while something moves: the view,
// the warmth of layers that were read, or new layers.

import { bytes, keyText, lsn, lsnText } from './format.js';

export const KINDS = [['delta', 'sorted delta'], ['l0', 'L0 delta'], ['image', 'image'], ['frozen', 'in memory, frozen'],
  ['open', 'in memory, open']];
const WARMTHS = 8;
const HALF_LIFE = 15000;
const FRESH = 1500;
const LEFT = 92, BOTTOM = 34, TOP = 6, RIGHT = 6;
const WHOLE = { x: 0, y: 0, w: 1, h: 1 };

/** The layers of an answer, with where they are on axes of ranks. */
export class Layers {
  constructor(answer) {
    const first = '0'.repeat(36), last = 'F'.repeat(36);
    const list = [];
    for (const one of answer.historic_layers) {
      const kind = one.kind === 'Image' ? 2 : one.l0 ? 1 : 0;
      const from = lsn(one.lsn_start);
      list.push({ kind, from, to: one.lsn_end ? lsn(one.lsn_end) : from + 1, low: one.key_start.toUpperCase(),
        high: one.key_end.toUpperCase(), size: one.layer_file_size, id: one.layer_file_name, remote: one.remote,
        bucket: one.in_bucket, filter: one.filter, reads: one.access_stats.accesses, read: one.access_stats.access_time });
    }
    for (const one of answer.in_memory_layers) {
      const from = lsn(one.lsn_start);
      list.push({ kind: one.kind === 'Open' ? 4 : 3, from, to: Math.max(lsn(one.lsn_end), from + 1), low: first, high: last,
        size: one.size, id: `in memory from ${one.lsn_start}`, remote: false, bucket: false, filter: false, reads: 0, read: 0 });
    }
    // Images last: they lie over the deltas that they are made of.
    list.sort((one, other) => (one.kind === 2) - (other.kind === 2));
    this.list = list;
    this.keys = distinct(list, 'low', 'high');
    this.lsns = distinct(list, 'from', 'to');
    const keyAt = ranks(this.keys), lsnAt = ranks(this.lsns);
    const count = list.length;
    [this.x0, this.x1, this.y0, this.y1] = Array.from({ length: 4 }, () => new Float64Array(count));
    this.warmth = new Float32Array(count);
    this.born = new Float64Array(count);
    list.forEach((one, at) => {
      this.x0[at] = keyAt(one.low);
      this.x1[at] = keyAt(one.high);
      this.y0[at] = lsnAt(one.from);
      this.y1[at] = lsnAt(one.to);
    });
  }

  /** Takes over what moves from what was shown before, and warms layers that were read since. */
  follow(before, now, clock) {
    const known = new Map(before ? before.list.map((one, at) => [one.id, at]) : []);
    this.list.forEach((one, at) => {
      const old = known.get(one.id);
      if (old === undefined) {
        this.born[at] = before ? now : -FRESH;
        const age = clock - one.read;
        if (!before && one.reads > 1 && age >= 0) this.warmth[at] = 0.5 ** (age / HALF_LIFE);
        return;
      }
      const reads = one.reads - before.list[old].reads;
      this.born[at] = before.born[old];
      this.warmth[at] = Math.min(1, before.warmth[old] + (reads > 0 ? 0.25 + Math.log2(1 + reads) / 8 : 0));
    });
  }

  /** The layer that is drawn at a place of the axes; the last one drawn where several are. */
  at(x, y, near) {
    for (let at = this.list.length - 1; at >= 0; at -= 1) {
      if (x >= this.x0[at] && x < this.x1[at] && y >= this.y0[at] - near && y < this.y1[at] + near) return at;
    }
    return -1;
  }
}

function distinct(list, one, other) {
  const all = new Set();
  for (const layer of list) all.add(layer[one]).add(layer[other]);
  const sorted = [...all];
  return typeof sorted[0] === 'number' ? sorted.sort((a, b) => a - b) : sorted.sort();
}

function ranks(values) {
  const pieces = Math.max(1, values.length - 1);
  const at = new Map(values.map((value, index) => [value, index / pieces]));
  return (value) => at.get(value);
}

/** What is drawn where: a part of the axes, and how it moves. */
export class LayerMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.layers = null;
    this.view = { ...WHOLE };
    this.target = { ...WHOLE };
    this.hovered = -1;
    this.picked = null;
    this.frames = 0;
    this.running = 0;
    this.last = 0;
    this.theme();
    this.resize();
  }

  /** Colours, from the style sheet. */
  theme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.back = colour('back');
    this.ink = colour('ink');
    this.quiet = colour('quiet');
    this.rule = colour('rule');
    const warm = rgb(colour('warm'));
    // By kind, whether only the bucket has it, and warmth.
    this.colours = KINDS.flatMap(([kind]) => [false, true].flatMap((remote) => {
      const plain = remote ? mix(rgb(colour(`layer-${kind}`)), rgb(this.back), 0.6) : rgb(colour(`layer-${kind}`));
      return Array.from({ length: WARMTHS }, (_, warmth) => css(mix(plain, warm, (0.8 * warmth) / (WARMTHS - 1))));
    }));
    this.groups = this.colours.map(() => []);
    this.wake();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const scale = Math.min(2, window.devicePixelRatio || 1);
    this.width = Math.max(200, Math.round(box.width));
    this.height = Math.max(150, Math.round(box.height));
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.wake();
  }

  show(layers) {
    layers.follow(this.layers, performance.now(), Date.now());
    this.layers = layers;
    this.hovered = -1;
    this.wake();
  }

  wake() {
    if (!this.running) this.running = requestAnimationFrame((now) => this.frame(now));
  }

  stop() {
    cancelAnimationFrame(this.running);
    this.running = -1;
  }

  frame(now) {
    if (this.running === -1) return;
    this.running = 0;
    const passed = Math.min(100, now - (this.last || now));
    this.last = now;
    const moves = this.move(passed) | this.cool(now, passed);
    this.draw(now);
    if (moves) this.wake();
    else this.last = 0;
  }

  /** The view goes to where it was sent, quickly at first. */
  move(passed) {
    const part = 1 - 0.5 ** (passed / 40);
    let moves = false;
    for (const side of ['x', 'y', 'w', 'h']) {
      const left = this.target[side] - this.view[side];
      if (Math.abs(left) < 1e-4 * this.target.w) this.view[side] = this.target[side];
      else {
        this.view[side] += left * part;
        moves = true;
      }
    }
    return moves;
  }

  cool(now, passed) {
    const { layers } = this;
    if (!layers) return false;
    const part = 0.5 ** (passed / HALF_LIFE);
    let warm = false;
    for (let at = 0; at < layers.warmth.length; at += 1) {
      if (layers.warmth[at] > 0) {
        layers.warmth[at] = layers.warmth[at] < 0.02 ? 0 : layers.warmth[at] * part;
        warm = true;
      }
      if (now - layers.born[at] < FRESH) warm = true;
    }
    return warm;
  }

  draw(now) {
    const { context, layers, view, width, height } = this;
    this.frames += 1;
    context.fillStyle = this.back;
    context.fillRect(0, 0, width, height);
    if (!layers || !layers.list.length) return;
    const wide = width - LEFT - RIGHT, high = height - TOP - BOTTOM;
    const toX = wide / view.w, toY = high / view.h;
    const right = view.x + view.w, above = view.y + view.h;
    for (const group of this.groups) group.length = 0;
    const { x0, x1, y0, y1, warmth, list } = layers;
    for (let at = 0; at < list.length; at += 1) {
      if (x1[at] <= view.x || x0[at] >= right || y1[at] < view.y || y0[at] > above) continue;
      const warm = Math.min(WARMTHS - 1, Math.ceil(warmth[at] * (WARMTHS - 1)));
      this.groups[(list[at].kind * 2 + (list[at].remote ? 1 : 0)) * WARMTHS + warm].push(at);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, wide, high);
    context.clip();
    const box = (at) => {
      const x = LEFT + (x0[at] - view.x) * toX, w = Math.max(1, (x1[at] - x0[at]) * toX);
      const h = Math.max(1.5, (y1[at] - y0[at]) * toY), y = TOP + high - (y1[at] - view.y) * toY;
      // A gap between boxes, where there is room for one.
      return [x, y, w > 4 ? w - 1 : w, h > 4 ? h - 1 : h];
    };
    // Images over deltas: groups are in the order of kinds, and in memory nothing lies over anything.
    this.groups.forEach((group, number) => {
      if (!group.length) return;
      context.fillStyle = this.colours[number];
      for (const at of group) context.fillRect(...box(at));
    });
    this.drawFresh(now, box);
    this.drawMarks(box);
    context.restore();
    this.drawAxes(wide, high, toX, toY);
  }

  /** New layers shine for a moment. */
  drawFresh(now, box) {
    const { born } = this.layers;
    for (let at = 0; at < born.length; at += 1) {
      const age = now - born[at];
      if (age >= FRESH) continue;
      this.context.globalAlpha = 0.8 * (1 - age / FRESH);
      this.context.fillStyle = this.ink;
      this.context.fillRect(...box(at));
    }
    this.context.globalAlpha = 1;
  }

  drawMarks(box) {
    const { context, layers } = this;
    const picked = this.picked ? layers.list.findIndex((one) => one.id === this.picked) : -1;
    for (const at of [picked, this.hovered]) {
      if (at < 0 || at >= layers.list.length) continue;
      const [x, y, w, h] = box(at);
      context.strokeStyle = this.ink;
      context.lineWidth = at === picked ? 3 : 1.5;
      context.strokeRect(x, y, w, h);
    }
  }

  drawAxes(wide, high, toX, toY) {
    const { context, layers, view, height } = this;
    context.fillStyle = this.quiet;
    context.strokeStyle = this.rule;
    context.lineWidth = 1;
    context.font = '11px system-ui, sans-serif';
    context.strokeRect(LEFT - 0.5, TOP - 0.5, wide + 1, high + 1);
    context.textAlign = 'right';
    for (const [value, at] of ticks(layers.lsns, view.y, view.h, toY, 26)) {
      context.fillText(lsnText(value), LEFT - 6, Math.max(TOP + 9, TOP + high - (at - view.y) * toY + 4));
    }
    context.textAlign = 'left';
    let end = 0;
    context.textAlign = 'left';
    for (const [value, at] of ticks(layers.keys, view.x, view.w, toX, 190)) {
      const text = keyText(value), long = context.measureText(text).width;
      const x = Math.min(LEFT + (at - view.x) * toX, this.width - RIGHT - long);
      if (x < end + 10) continue;
      context.fillText(text, x, height - BOTTOM + 14);
      end = x + long;
    }
    context.fillText('keys, from left to right; LSNs upwards', LEFT, height - 6);
  }

  /** The layer below a point of the canvas, or -1. */
  hit(px, py) {
    if (!this.layers) return -1;
    const [x, y] = this.place(px, py);
    if (px < LEFT || py > this.height - BOTTOM || px > this.width - RIGHT) return -1;
    return this.layers.at(x, y, (2 * this.view.h) / this.height);
  }

  place(px, py) {
    const { view, width, height } = this;
    return [view.x + ((px - LEFT) / (width - LEFT - RIGHT)) * view.w,
      view.y + ((height - BOTTOM - py) / (height - TOP - BOTTOM)) * view.h];
  }

  hover(px, py) {
    const at = this.hit(px, py);
    if (at !== this.hovered) {
      this.hovered = at;
      this.wake();
    }
    return at;
  }

  /** Zooms by a factor about a point of the canvas; its middle by default. */
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.place(px, py);
    const { target } = this;
    const w = Math.min(1, Math.max(1e-4, target.w * factor)), h = Math.min(1, Math.max(1e-4, target.h * factor));
    this.send(x - ((x - target.x) * w) / target.w, y - ((y - target.y) * h) / target.h, w, h);
  }

  /** Moves by pixels. */
  pan(dx, dy, at_once) {
    const { target, width, height } = this;
    this.send(target.x - (dx / (width - LEFT - RIGHT)) * target.w, target.y + (dy / (height - TOP - BOTTOM)) * target.h,
      target.w, target.h);
    if (at_once) this.view = { ...this.target };
  }

  fit() {
    this.send(0, 0, 1, 1);
  }

  send(x, y, w, h) {
    const inside = (at, size) => Math.max(0, Math.min(1 - size, at));
    this.target = { x: inside(x, w), y: inside(y, h), w, h };
    this.wake();
  }
}

function* ticks(values, from, length, scale, distance) {
  const pieces = Math.max(1, values.length - 1);
  const every = Math.max(1, Math.ceil((distance / scale) * pieces));
  const first = Math.max(0, Math.ceil((from * pieces) / every) * every);
  for (let at = first; at < values.length && at / pieces <= from + length; at += every) yield [values[at], at / pieces];
}

const mix = (one, other, part) => one.map((value, at) => Math.round(value + (other[at] - value) * part));
const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** A layer in words; in short without its keys' digits and its name. */
export function describe(layer, short) {
  const [, kind] = KINDS[layer.kind];
  return [
    short ? null : ['Layer', layer.id],
    ['Kind', `${kind}${layer.filter ? ', with a key filter' : ''}, ${bytes(layer.size)}`],
    [layer.kind === 2 ? 'As of LSN' : 'LSNs', layer.kind === 2 ? lsnText(layer.from) : `${lsnText(layer.from)} to ${lsnText(layer.to)}`],
    ['First key', short ? keyText(layer.low) : `${keyText(layer.low)} (${layer.low})`],
    ['Up to key', short ? keyText(layer.high) : `${keyText(layer.high)} (${layer.high})`],
    ['Where', layer.kind > 2 ? 'in memory' : [layer.remote ? null : 'on this disk', layer.bucket ? 'in the bucket' : null].filter(Boolean).join(' and ')],
    layer.kind > 2 ? null : ['Reads', `${layer.reads} since it was opened${layer.read ? `, last ${new Date(layer.read).toLocaleTimeString()}` : ''}`],
  ].filter(Boolean);
}
