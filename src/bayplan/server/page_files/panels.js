// The panels beside the plan. Names and messages are inserted as text and never as markup.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { Why } from "./why.js";

const MOST = 100;
const NAMED = { cpu: "CPU", memory: "memory", pods: "pods", "ephemeral-storage": "disk" };

export function amount(name, value) {
  if (name === "cpu") return value % 1000 ? `${(value / 1000).toFixed(2)}` : `${value / 1000}`;
  if (name === "memory" || name.endsWith("storage") || name.startsWith("hugepages-")) {
    const powers = ["B", "Ki", "Mi", "Gi", "Ti", "Pi"];
    const power = value > 0 ? Math.min(powers.length - 1, Math.floor(Math.log2(value) / 10)) : 0;
    return `${+(value / 1024 ** power).toFixed(1)} ${powers[power]}`;
  }
  return String(value);
}

function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 90) return `${Math.round(past)} s`;
  if (past < 5400) return `${Math.round(past / 60)} min`;
  return past < 172800 ? `${Math.round(past / 3600)} h` : `${Math.round(past / 86400)} d`;
}

function Bar({ part, label, mark }) {
  const width = `${Math.round(100 * Math.max(0, Math.min(1, part)))}%`;
  const full = part > 0.95 ? " full" : "";
  return html`<span class="bar" role="img" aria-label=${label}><i class=${`fill${full}`} style=${{ width }}></i>
    ${mark !== undefined && html`<i class="mark" style=${{ left: `${Math.round(100 * Math.min(1, mark))}%` }}></i>`}</span>`;
}

const Pod = ({ name, choose }) => html`<button class="name" onClick=${() => choose("pod", name)}>${name}</button>`;
const Node = ({ name, choose }) => html`<button class="name" onClick=${() => choose("node", name)}>${name}</button>`;

export function Waiting({ world, choose }) {
  const all = [...world.waiting.values()].sort((a, b) => b.priority - a.priority || a.created - b.created);
  const text = (pod) => (pod.state === "gated" ? "behind a scheduling gate" : pod.message || "not tried yet");
  return html`<section aria-labelledby="h-waiting"><h2 id="h-waiting">Waiting pods <small>${all.length}</small></h2>
    <div class="scroll" tabindex="0" role="group" aria-labelledby="h-waiting">
    ${all.length ? html`<table id="waiting"><thead><tr><th>Pod</th><th>Since</th><th>Why</th></tr></thead><tbody>
      ${all.slice(0, MOST).map((pod) => html`<tr key=${pod.key}><td><${Pod} name=${pod.key} choose=${choose} /></td>
        <td>${ago(pod.created)}</td><td class="message">${text(pod)}</td></tr>`)}</tbody></table>`
    : html`<p class="none">none</p>`}
    ${all.length > MOST && html`<p class="none">and ${all.length - MOST} more; search for them</p>`}</div></section>`;
}

export function Queues({ world }) {
  const names = [...new Set([...world.tables.queues.keys(), ...Object.keys(world.gauges)])].sort();
  if (!names.length) return null;
  return html`<section aria-labelledby="h-queues"><h2 id="h-queues">Queues</h2><table id="queues">
    <thead><tr><th>Queue</th><th>Share of what it deserves</th><th>CPU</th><th>Memory</th></tr></thead>
    <tbody>${names.map((name) => html`<${QueueRow} key=${name} name=${name} queue=${world.tables.queues.get(name)}
      gauges=${world.gauges[name] || {}} />`)}</tbody></table></section>`;
}

function QueueRow({ name, queue, gauges }) {
  const held = (gauge, resource) => gauges[gauge] ?? ((queue && queue.allocated[resource]) || 0);
  const cpu = held("allocated_milli_cpu", "cpu");
  const memory = held("allocated_memory_bytes", "memory");
  const parts = [[cpu, gauges.deserved_milli_cpu], [memory, gauges.deserved_memory_bytes]];
  const share = gauges.share ?? Math.max(0, ...parts.map(([has, due]) => (due ? has / due : 0)));
  const said = `${Math.round(100 * share)} %`;
  return html`<tr><th scope="row">${name}${queue && queue.state && queue.state !== "Open" ? ` (${queue.state})` : ""}</th>
    <td><${Bar} part=${share / 2} mark=${0.5} label=${`${name} has ${said} of what it deserves`} /> ${said}</td>
    <td>${amount("cpu", cpu)}${gauges.deserved_milli_cpu ? ` of ${amount("cpu", gauges.deserved_milli_cpu)}` : ""}</td>
    <td>${amount("memory", memory)}${gauges.deserved_memory_bytes ? ` of ${amount("memory", gauges.deserved_memory_bytes)}` : ""}</td></tr>`;
}

export function Decisions({ world, choose }) {
  return html`<section aria-labelledby="h-decisions"><h2 id="h-decisions">Decisions</h2>
    <ol id="decisions" class="scroll" tabindex="0" aria-labelledby="h-decisions">
    ${world.decisions.slice(0, MOST).map((entry) => html`<li class=${entry.outcome} key=${`${entry.at}${entry.pod}`}>
      <time>${new Date(entry.at * 1000).toLocaleTimeString([], { hour12: false })}</time> <${Pod} name=${entry.pod} choose=${choose} />
      ${entry.node && html` → <${Node} name=${entry.node} choose=${choose} />`} <span class="message">${entry.text}</span></li>`)}
    </ol></section>`;
}

export function Results({ results, choose }) {
  const { nodes, pods } = results;
  return html`<section aria-labelledby="h-found"><h2 id="h-found">Found
    <small role="status" id="found">${pods.length} pods, ${nodes.length} nodes</small></h2>
    <ul class="scroll plain" id="results">${nodes.slice(0, MOST).map((node) => html`<li key=${node.name}>node <${Node} name=${node.name} choose=${choose} /></li>`)}
    ${pods.slice(0, MOST).map((pod) => html`<li key=${pod.key}><${Pod} name=${pod.key} choose=${choose} /> ${pod.node || "waiting"}</li>`)}</ul></section>`;
}

export function Legend({ colours, way, second, search }) {
  const [legend, set] = useState({ shown: [], others: 0 });
  useEffect(() => set(colours.legend(12)), [way, second]);
  return html`<section aria-labelledby="h-legend"><h2 id="h-legend">Colours by ${way}</h2><ul class="legend">
    ${legend.shown.map(([key, count]) => html`<li key=${key}><i style=${{ background: colours.of(key) }}></i>
      <button class="name" onClick=${() => way !== "priority" && way !== "queue" && search(key.split(" ").pop())}>${key}</button> ${count}</li>`)}
    ${legend.others > 0 && html`<li>and ${legend.others} more</li>`}</ul></section>`;
}

export function Details({ world, chosen, choose }) {
  const place = useRef(null);
  const pod = chosen && chosen.kind === "pod" && world.pods.get(chosen.key);
  const node = chosen && chosen.kind === "node" && world.nodes.get(chosen.key);
  return html`<section id="details" ref=${place} tabindex="-1" aria-labelledby="h-details">
    <h2 id="h-details">${pod ? "Pod" : node ? "Node" : "Details"} ${(pod || node) && html`<button class="close"
      aria-label="Close" onClick=${() => choose(null)}>×</button>`}</h2>
    ${pod ? html`<${PodDetails} world=${world} pod=${pod} choose=${choose} />`
    : node ? html`<${NodeDetails} world=${world} node=${node} choose=${choose} />`
    : html`<p class="none">${chosen ? `${chosen.key} does not exist (any more)` : "Choose a bay, a box or a name."}</p>`}</section>`;
}

function PodDetails({ world, pod, choose }) {
  const queue = world.queueOf(pod);
  const asks = Object.entries(pod.asks).map(([name, value]) => `${amount(name, value)} ${NAMED[name] || name}`).join(", ");
  return html`<h3 id="pod-name">${pod.key}</h3><dl>
    <dt>Node</dt><dd>${pod.node ? html`<${Node} name=${pod.node} choose=${choose} />` : "none yet"}</dd>
    <dt>State</dt><dd>${pod.state}, ${ago(pod.created)} old</dd>
    <dt>Requests</dt><dd>${asks || "nothing"}</dd>
    <dt>Owner</dt><dd>${pod.owner || "none"}</dd>
    <dt>Priority</dt><dd>${pod.priority}</dd>
    ${queue && html`<dt>Queue</dt><dd>${queue}</dd>`}
    ${pod.nominated && html`<dt>Nominated node</dt><dd><${Node} name=${pod.nominated} choose=${choose} /></dd>`}</dl>
    <${Why} world=${world} pod=${pod} choose=${choose} />`;
}

function NodeDetails({ world, node, choose }) {
  const used = world.used(node);
  const pods = [...node.pods.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
  return html`<h3 id="node-name">${node.name}</h3><p>${node.state}${node.zone ? `, ${node.zone}` : ""}</p>
    <table class="uses"><tbody>${Object.entries(node.offers).filter(([, offered]) => offered).map(([name, offered]) => html`<tr key=${name}>
      <th scope="row">${NAMED[name] || name}</th><td><${Bar} part=${(used[name] || 0) / offered}
        label=${`${amount(name, used[name] || 0)} of ${amount(name, offered)}`} /></td>
      <td>${amount(name, used[name] || 0)} of ${amount(name, offered)}</td></tr>`)}</tbody></table>
    <ul class="plain scroll">${pods.slice(0, MOST).map((pod) => html`<li key=${pod.key}><${Pod} name=${pod.key} choose=${choose} /></li>`)}</ul>
    ${pods.length > MOST && html`<p class="none">and ${pods.length - MOST} more</p>`}`;
}
