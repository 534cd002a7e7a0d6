// Colours of pods: one for each owner, namespace or queue, the same on every page; priorities from cool to warm.

export const WAYS = [["owner", "owner"], ["namespace", "namespace"], ["priority", "priority"], ["queue", "queue"]];

const GOLDEN = 137.508;

export class Colours {
  constructor(world) {
    this.world = world;
    this.way = "owner";
    this.dark = false;
    this.known = new Map();
    this.ranks = new Map();
  }

  use(way, dark) {
    this.way = way;
    this.dark = dark;
    this.known.clear();
  }

  keyOf(pod) {
    switch (this.way) {
      case "priority": return String(pod.priority);
      case "queue": return this.world.queueOf(pod) || "no queue";
      case "namespace": return pod.key.slice(0, pod.key.indexOf("/"));
      default: return pod.owner || "no owner";
    }
  }

  of(key) {
    let colour = this.known.get(key);
    if (!colour) {
      colour = this.way === "priority" ? this.warmth(Number(key)) : this.hashed(key);
      this.known.set(key, colour);
    }
    return colour;
  }

  hashed(key) {
    let hash = 2166136261;
    for (let place = 0; place < key.length; place += 1) hash = Math.imul(hash ^ key.charCodeAt(place), 16777619) >>> 0;
    const hue = (hash % 1024) * GOLDEN % 360;
    const light = (this.dark ? 50 : 48) + ((hash >>> 12) % 3) * 7;
    return `hsl(${hue.toFixed(0)} ${48 + ((hash >>> 16) % 3) * 12}% ${light}%)`;
  }

  warmth(priority) {
    const part = Math.max(-1, Math.min(1, Math.sign(priority) * Math.log10(1 + Math.abs(priority)) / 10));
    return `hsl(${(215 - 200 * (part + 1) / 2 - (part > 0 ? 15 : 0)).toFixed(0)} 60% ${this.dark ? 55 : 50}%)`;
  }

  // The most frequent keys with their counts, for a legend.
  legend(most) {
    const counts = new Map();
    for (const pod of this.world.pods.values()) {
      const key = this.keyOf(pod);
      counts.set(key, (counts.get(key) || 0) + 1);
    }
    const all = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    return { shown: all.slice(0, most), others: all.length - Math.min(most, all.length) };
  }
}
