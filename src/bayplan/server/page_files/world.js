// The known state of the cluster: all objects of the stream, by name, and the listeners for changes.
//
// After a reconnect all rows are sent again. Until they are complete, the previous objects stay on the screen; then
// those that were not sent again are removed.

const HISTORY = 600;
const DECISIONS = 300;

export class World {
  constructor() {
    this.tables = { nodes: new Map(), pods: new Map(), groups: new Map(), queues: new Map() };
    this.waiting = new Map();
    this.strangers = new Map(); // by node: pods on unknown nodes
    this.gauges = {};
    this.decisions = [];
    this.latest = new Map(); // by pod: its newest decision
    this.numbers = null;
    this.history = { at: [], scheduled: [], unschedulable: [], p50: [], p99: [] };
    this.about = null;
    this.state = "connecting";
    this.whole = false;
    this.version = 0;
    this.generation = 0;
    this.fields = null;
    this.listeners = new Set();
    this.movedNodes = true;
    this.dirtyNodes = new Set();
  }

  get nodes() { return this.tables.nodes; }
  get pods() { return this.tables.pods; }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    this.version += 1;
    for (const listener of this.listeners) listener();
  }

  // Stream events.

  hello(about) {
    if (this.about && this.about.began !== about.began) this.numbers = null;
    else this.decisions = []; // the same process sends them again
    this.about = about;
    this.fields = about.fields;
    this.state = "live";
    this.again();
  }

  again() {
    this.generation += 1;
    this.whole = false;
    this.changed();
  }

  rows(data) {
    for (const table of ["queues", "groups", "nodes", "pods"]) {
      const fields = this.fields[table];
      for (const row of data[table] || []) {
        const item = { generation: this.generation };
        for (let place = 0; place < fields.length; place += 1) item[fields[place]] = row[place];
        this.put(table, row[0], item);
      }
      for (const key of (data.gone && data.gone[table]) || []) this.drop(table, key);
    }
    this.changed();
  }

  allTold() {
    for (const [table, items] of Object.entries(this.tables)) {
      for (const [key, item] of items) if (item.generation !== this.generation) this.drop(table, key);
    }
    this.whole = true;
    this.changed();
  }

  put(table, key, item) {
    if (table === "nodes") {
      this.putNode(key, item);
      return;
    }
    const old = this.tables[table].get(key);
    this.tables[table].set(key, item);
    if (table === "pods") {
      if (old && old.node && old.node !== item.node) this.leave(old);
      this.settle(key, item);
    } else if (table === "groups") {
      this.recolour = true;
    }
  }

  // A known node keeps its object, because the plan stores its position and boxes in it.
  putNode(key, item) {
    const old = this.nodes.get(key);
    if (!old || old.zone !== item.zone) this.movedNodes = true;
    if (old) {
      Object.assign(old, item);
    } else {
      this.nodes.set(key, { ...item, pods: this.strangers.get(key) || new Map() });
      this.strangers.delete(key);
    }
    this.dirtyNodes.add(key);
  }

  drop(table, key) {
    const old = this.tables[table].get(key);
    if (!old) return;
    this.tables[table].delete(key);
    if (table === "pods") {
      this.waiting.delete(key);
      this.latest.delete(key);
      this.leave(old);
    } else if (table === "nodes") {
      this.movedNodes = true;
      if (old.pods.size) this.strangers.set(key, old.pods);
    }
  }

  settle(key, pod) {
    if (!pod.node) {
      this.waiting.set(key, pod);
      return;
    }
    this.waiting.delete(key);
    const node = this.nodes.get(pod.node);
    if (node) {
      node.pods.set(key, pod);
      this.dirtyNodes.add(pod.node);
    } else {
      if (!this.strangers.has(pod.node)) this.strangers.set(pod.node, new Map());
      this.strangers.get(pod.node).set(key, pod);
    }
  }

  leave(pod) {
    const node = this.nodes.get(pod.node);
    const pods = node ? node.pods : this.strangers.get(pod.node);
    if (pods && pods.delete(pod.key)) this.dirtyNodes.add(pod.node);
  }

  // Numbers.

  count(numbers, at) {
    const before = this.numbers;
    this.numbers = { ...numbers, at };
    if (before && numbers.scheduled >= before.scheduled) {
      const seconds = Math.max(0.001, (at - before.at) / 1000);
      const counts = numbers.counts.map((count, place) => count - (before.counts[place] || 0));
      const add = (name, value) => {
        this.history[name].push(value);
        if (this.history[name].length > HISTORY) this.history[name].shift();
      };
      add("at", at / 1000);
      add("scheduled", (numbers.scheduled - before.scheduled) / seconds);
      add("unschedulable", Math.max(0, numbers.unschedulable - before.unschedulable) / seconds);
      add("p50", quantile(numbers.bounds, counts, 0.5));
      add("p99", quantile(numbers.bounds, counts, 0.99));
    }
    this.changed();
  }

  decided(entries) {
    for (const each of entries) this.latest.set(each.pod, each);
    this.decisions = entries.reverse().concat(this.decisions).slice(0, DECISIONS);
    if (this.latest.size > 5000) {
      for (const key of this.latest.keys()) {
        this.latest.delete(key);
        if (this.latest.size <= 4000) break;
      }
    }
    this.changed();
  }

  // Queries.

  queueOf(pod) {
    const group = pod.group && this.tables.groups.get(pod.group);
    return group ? group.queue : "";
  }

  shareOf(pod, node) {
    let share = 0;
    for (const [name, amount] of Object.entries(pod.asks)) {
      const offered = node.offers[name];
      if (offered) share = Math.max(share, amount / offered);
    }
    return share;
  }

  used(node) {
    const used = { pods: node.pods.size };
    for (const pod of node.pods.values()) {
      for (const [name, amount] of Object.entries(pod.asks)) used[name] = (used[name] || 0) + amount;
    }
    return used;
  }
}

// The quantile of the observations in milliseconds; null without observations.
export function quantile(bounds, counts, part) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return null;
  let below = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (below + counts[place] >= part * total) {
      const from = place ? bounds[place - 1] : 0;
      const to = place < bounds.length ? bounds[place] : bounds[bounds.length - 1];
      return 1000 * (from + ((to - from) * (part * total - below)) / counts[place]);
    }
    below += counts[place];
  }
  return null;
}
