// The cluster as a bay plan: nodes as bays, pods as boxes in them, on a canvas that can be moved and zoomed.
//
// The plan is drawn into tiles, and a frame copies tiles to the screen. Moving draws the tiles that come into view, as
// many per frame as time allows. A change redraws the affected bays in the tiles that show them. So a frame is short
// for any number of pods.

import { boxesOf } from "./boxes.js";

const BAY = { width: 60, height: 40, gap: 5, head: 22 };
const LINE = 14;
const TILE = 256;
const MOST_TILES = 160;
const BUDGET_MS = 10;
const STEP = 1.25;

export class BayPlan {
  constructor(canvas, world, colours, chosen) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.world = world;
    this.colours = colours;
    this.chosen = chosen;
    this.zones = [];
    this.tiles = new Map();
    this.view = { level: 0, scale: 1, x: 0, y: 0 };
    this.fitted = true;
    this.selected = { node: null, pod: null };
    this.matches = null;
    this.palette = {};
    this.frame = 0;
    this.size = { width: 0, height: 0 };
  }

  // Layout.

  lay() {
    const order = new Intl.Collator("en", { numeric: true });
    const byZone = new Map();
    for (const node of this.world.nodes.values()) {
      if (!byZone.has(node.zone)) byZone.set(node.zone, []);
      byZone.get(node.zone).push(node);
    }
    const pitch = { x: BAY.width + BAY.gap, y: BAY.height + BAY.gap };
    const columns = this.columns([...byZone.values()].map((nodes) => nodes.length), pitch);
    this.zones = [];
    let top = 0;
    for (const name of [...byZone.keys()].sort(order.compare)) {
      const nodes = byZone.get(name).sort((a, b) => order.compare(a.name, b.name));
      nodes.forEach((node, place) => {
        node.x = (place % columns) * pitch.x;
        node.y = top + BAY.head + Math.floor(place / columns) * pitch.y;
        node.boxes = null;
      });
      const rows = Math.ceil(nodes.length / columns);
      this.zones.push({ name, nodes, top, rows, columns });
      top += BAY.head + rows * pitch.y;
    }
    this.extent = { width: columns * pitch.x, height: Math.max(1, top) };
    this.tiles.clear();
    if (this.fitted) this.fit();
  }

  // The number of columns that makes the bays largest on the screen.
  columns(counts, pitch) {
    const largest = Math.max(1, ...counts);
    const steps = Math.min(largest, 60);
    let best = { columns: 1, scale: 0 };
    for (let step = 1; step <= steps; step += 1) {
      const columns = Math.max(1, Math.round(Math.min(largest, 300) * (step / steps)));
      const height = counts.reduce((sum, count) => sum + BAY.head + Math.ceil(count / columns) * pitch.y, 0);
      const scale = Math.min(this.size.width / (columns * pitch.x), this.size.height / height);
      if (scale > best.scale) best = { columns, scale };
    }
    return best.columns;
  }

  fit() {
    const room = { x: this.size.width / (this.extent.width + 10), y: this.size.height / (this.extent.height + 10) };
    this.view.level = Math.floor(Math.log(Math.max(0.05, Math.min(4, room.x, room.y))) / Math.log(STEP));
    this.view.scale = STEP ** this.view.level;
    this.view.x = Math.round(-5 - Math.max(0, this.size.width - this.extent.width * this.view.scale) / 2);
    this.view.y = -5;
    this.fitted = true;
    this.ask();
  }

  // The nodes whose bays intersect a rectangle of the plan.
  *inside(left, top, right, bottom) {
    const pitch = { x: BAY.width + BAY.gap, y: BAY.height + BAY.gap };
    for (const zone of this.zones) {
      const first = Math.max(0, Math.floor((top - zone.top - BAY.head) / pitch.y));
      const last = Math.min(zone.rows - 1, Math.floor((bottom - zone.top - BAY.head) / pitch.y));
      const from = Math.max(0, Math.floor(left / pitch.x));
      const to = Math.min(zone.columns - 1, Math.floor(right / pitch.x));
      for (let row = first; row <= last; row += 1) {
        for (let column = from; column <= to; column += 1) {
          const node = zone.nodes[row * zone.columns + column];
          if (node) yield node;
        }
      }
    }
  }

  podsOf(node) {
    if (!node.boxes) {
      node.order = [...node.pods.values()].sort((a, b) => (a.owner < b.owner ? -1 : a.owner > b.owner ? 1 : a.key < b.key ? -1 : 1));
      node.boxes = boxesOf(node.order.map((pod) => this.world.shareOf(pod, node)), BAY.width / BAY.height);
    }
    return node.order;
  }

  // The node or pod at a point of the screen.
  at(x, y) {
    const left = (x + this.view.x) / this.view.scale;
    const top = (y + this.view.y) / this.view.scale;
    for (const node of this.inside(left, top, left, top)) {
      const within = { x: (left - node.x) / BAY.width, y: (top - node.y) / BAY.height };
      if (within.x > 1 || within.y > 1) continue;
      const pods = this.podsOf(node);
      const place = pods.findIndex((_, each) => {
        const [bx, by, width, height] = node.boxes.subarray(4 * each, 4 * each + 4);
        return within.x >= bx && within.x < bx + width && within.y >= by && within.y < by + height;
      });
      return { node, pod: place < 0 ? null : pods[place] };
    }
    return null;
  }

  // Moving and zooming.

  move(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.fitted = false;
    this.ask();
  }

  zoom(steps, x = this.size.width / 2, y = this.size.height / 2) {
    const before = this.view.scale;
    this.view.level = Math.max(-20, Math.min(12, this.view.level + steps));
    this.view.scale = STEP ** this.view.level;
    const grown = this.view.scale / before;
    this.view.x = Math.round((this.view.x + x) * grown - x);
    this.view.y = Math.round((this.view.y + y) * grown - y);
    this.fitted = false;
    this.ask();
  }

  select(node, pod = null, show = false) {
    this.selected = { node: node ? node.name : null, pod: pod ? pod.key : null };
    if (node && show) this.reveal(node);
    this.ask();
  }

  reveal(node) {
    const { scale } = this.view;
    const left = node.x * scale - this.view.x;
    const top = node.y * scale - this.view.y;
    const seen = left >= 0 && top >= 0 && left + BAY.width * scale <= this.size.width && top + BAY.height * scale <= this.size.height;
    if (seen) return;
    this.view.x = Math.round(node.x * scale - this.size.width / 2 + (BAY.width * scale) / 2);
    this.view.y = Math.round(node.y * scale - this.size.height / 2 + (BAY.height * scale) / 2);
    this.fitted = false;
  }

  // The neighbour of the selected bay; the first bay without a selection.
  step(dx, dy) {
    const node = this.selected.node && this.world.nodes.get(this.selected.node);
    if (!node) return this.zones.length ? this.zones[0].nodes[0] : null;
    const number = this.zones.findIndex((zone) => zone.name === node.zone);
    const zone = this.zones[number];
    const place = zone.nodes.indexOf(node);
    const target = place + dx + dy * zone.columns;
    if (dx && target >= 0 && target < zone.nodes.length) return zone.nodes[target];
    if (dy && target >= 0 && target < zone.nodes.length) return zone.nodes[target];
    const other = this.zones[number + (dx + dy > 0 ? 1 : -1)];
    if (!other) return node;
    return dx + dy > 0 ? other.nodes[0] : other.nodes[other.nodes.length - 1];
  }

  // Drawing.

  resize(width, height, ratio) {
    this.size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
    this.ratio = ratio;
    this.canvas.width = this.size.width;
    this.canvas.height = this.size.height;
    this.lay();
    this.ask();
  }

  repaint() {
    this.tiles.clear();
    this.ask();
  }

  // Apply changes of the world: moved bays, and bays to redraw.
  update() {
    if (this.world.movedNodes) {
      this.world.movedNodes = false;
      this.world.dirtyNodes.clear();
      this.lay();
    } else {
      const recoloured = this.world.recolour && this.colours.way === "queue";
      if (!recoloured && !this.world.dirtyNodes.size) return;
      if (recoloured) this.tiles.clear();
      for (const name of this.world.dirtyNodes) {
        const node = this.world.nodes.get(name);
        if (node) this.redraw(node);
      }
    }
    this.world.recolour = false;
    this.world.dirtyNodes.clear();
    this.ask();
  }

  redraw(node) {
    node.boxes = null;
    if (node.x === undefined) return;
    const { scale, level } = this.view;
    const first = { x: Math.floor((node.x * scale) / TILE), y: Math.floor((node.y * scale) / TILE) };
    const last = { x: Math.floor(((node.x + BAY.width) * scale) / TILE), y: Math.floor(((node.y + BAY.height) * scale) / TILE) };
    for (const key of this.tiles.keys()) if (!key.startsWith(`${level}:`)) this.tiles.delete(key);
    for (let ty = first.y; ty <= last.y; ty += 1) {
      for (let tx = first.x; tx <= last.x; tx += 1) {
        const tile = this.tiles.get(`${level}:${tx}:${ty}`);
        if (tile) this.drawBay(tile.getContext("2d"), node, tx * TILE, ty * TILE);
      }
    }
  }

  ask() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const start = performance.now();
    const { level } = this.view;
    const { width, height } = this.size;
    let missing = false;
    this.context.fillStyle = this.palette.sea;
    this.context.fillRect(0, 0, width, height);
    for (let ty = Math.floor(this.view.y / TILE); ty * TILE < this.view.y + height; ty += 1) {
      for (let tx = Math.floor(this.view.x / TILE); tx * TILE < this.view.x + width; tx += 1) {
        const key = `${level}:${tx}:${ty}`;
        let tile = this.tiles.get(key);
        if (tile) {
          this.tiles.delete(key); // re-insert: the first entries are the least recently used
        } else if (performance.now() - start < BUDGET_MS) {
          tile = this.tile(tx, ty);
        } else {
          missing = true;
          continue;
        }
        this.tiles.set(key, tile);
        this.context.drawImage(tile, tx * TILE - this.view.x, ty * TILE - this.view.y);
      }
    }
    while (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value);
    this.drawSelected();
    if (missing) this.ask();
  }

  tile(tx, ty) {
    const tile = document.createElement("canvas");
    tile.width = TILE;
    tile.height = TILE;
    const context = tile.getContext("2d", { alpha: false });
    const { scale } = this.view;
    context.fillStyle = this.palette.sea;
    context.fillRect(0, 0, TILE, TILE);
    const [left, top] = [(tx * TILE) / scale, (ty * TILE) / scale];
    const [right, bottom] = [left + TILE / scale, top + TILE / scale];
    for (const zone of this.zones) {
      if (zone.top < bottom && zone.top + BAY.head > top) this.drawZone(context, zone, tx * TILE, ty * TILE);
    }
    for (const node of this.inside(left, top, right, bottom)) this.drawBay(context, node, tx * TILE, ty * TILE);
    return tile;
  }

  drawZone(context, zone, x, y) {
    const { scale } = this.view;
    const size = Math.max(9, Math.min(18, BAY.head * scale * 0.7));
    if (BAY.head * scale < 7) return;
    context.fillStyle = this.palette.faint;
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.fillText(`${zone.name || "no zone"}: ${zone.nodes.length} nodes`, -x, (zone.top + BAY.head / 2) * scale - y);
  }

  drawBay(context, node, x, y) {
    const { scale } = this.view;
    const [left, top] = [Math.round(node.x * scale) - x, Math.round(node.y * scale) - y];
    const [width, height] = [Math.max(1, Math.round(BAY.width * scale)), Math.max(1, Math.round(BAY.height * scale))];
    context.fillStyle = node.state === "ready" ? this.palette.bay : this.palette.closed;
    context.fillRect(left, top, width, height);
    const pods = this.podsOf(node);
    const { boxes } = node;
    const gap = width > 40 ? 1 : 0;
    const named = width > 90;
    for (let place = 0; place < pods.length; place += 1) {
      const pod = pods[place];
      const bx = left + boxes[4 * place] * width;
      const by = top + boxes[4 * place + 1] * height;
      const [bw, bh] = [boxes[4 * place + 2] * width, boxes[4 * place + 3] * height];
      context.fillStyle = this.matches && !this.matches.has(pod.key) ? this.palette.dim : this.colours.of(this.colours.keyOf(pod));
      context.fillRect(bx, by, Math.max(0.5, bw - gap), Math.max(0.5, bh - gap));
      const below = named && by < top + LINE ? top + LINE - by : 0; // the first line of a bay has the node's name
      if (bw > 70 && bh - below > 14) this.drawName(context, pod.key.slice(pod.key.indexOf("/") + 1), bx, by + below, bw);
    }
    if (named) {
      const covered = pods.some((_, place) => boxes[4 * place] === 0 && boxes[4 * place + 1] * height < LINE);
      this.drawName(context, node.name, left, top, width, covered ? "#fff" : this.palette.faint);
    }
  }

  drawName(context, name, left, top, width, colour = "#fff") {
    context.fillStyle = colour;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillText(cut(context, name, width - 6), left + 3, top + 2);
  }

  drawSelected() {
    const node = this.selected.node && this.world.nodes.get(this.selected.node);
    if (!node || node.x === undefined) return;
    const { scale } = this.view;
    const outline = (left, top, width, height, line) => {
      this.context.strokeStyle = this.palette.chosen;
      this.context.lineWidth = line;
      this.context.strokeRect(left * scale - this.view.x - 1, top * scale - this.view.y - 1, width * scale + 2, height * scale + 2);
    };
    outline(node.x, node.y, BAY.width, BAY.height, 2);
    const place = this.podsOf(node).findIndex((pod) => pod.key === this.selected.pod);
    if (place < 0) return;
    const [bx, by, width, height] = node.boxes.subarray(4 * place, 4 * place + 4);
    outline(node.x + bx * BAY.width, node.y + by * BAY.height, width * BAY.width, height * BAY.height, 3);
  }
}

function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = Math.max(1, Math.floor(width / 6.5));
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
