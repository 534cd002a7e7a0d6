// The explanation of a pod from the scheduler; without an answer, its last decision or condition.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.js";

const MOST = 8;

async function fetchAnswer(key) {
  const path = key.split("/").map(encodeURIComponent).join("/");
  try {
    const answer = await fetch(`../why/${path}`, { headers: { accept: "application/json" } });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // not connected; retried with the next version of the pod
  }
}

// Splits a message into lines: "0/5 nodes are available: 2 ..., 3 ...".
export function lines(message) {
  return message.split(/(?<=available:) |, (?=\d+ )|(?<=\.) (?=\S)/);
}

export function Why({ world, pod, choose }) {
  const [answer, set] = useState(null);
  const last = world.latest.get(pod.key);
  useEffect(() => {
    let current = true;
    if (world.about && world.about.why) fetchAnswer(pod.key).then((found) => current && set(found));
    return () => { current = false; };
  }, [pod.key, pod.node, pod.message]);
  const known = answer && answer.pod === pod.key ? answer : null;
  return html`<h3>Why</h3><div id="why" aria-live="polite">
    ${known ? html`<${Answer} answer=${known} choose=${choose} />` : html`<${Last} pod=${pod} last=${last} />`}</div>`;
}

function Last({ pod, last }) {
  const text = pod.message || (last && last.text);
  if (!text) return html`<p class="none">no decision is recorded</p>`;
  return html`${lines(text).map((line) => html`<p>${line}</p>`)}`;
}

const time = (moment) => new Date(moment).toLocaleTimeString([], { hour12: false });

function Answer({ answer, choose }) {
  const { reasons = [], best = [], excludedNodes = [], changes = [], together = [], gang, queue } = answer;
  const waits = [
    answer.waitsFor && `waits for ${answer.waitsFor}`,
    answer.since && `since ${time(answer.since)}`,
    answer.attempts && (answer.attempts === 1 ? "tried once" : `tried ${answer.attempts} times`),
    answer.nextTry && `next at ${time(answer.nextTry)}`,
  ].filter(Boolean);
  return html`${lines(answer.sentence || "").map((line) => html`<p>${line}</p>`)}
    ${waits.length > 0 && html`<p class="none">${waits.join(", ")}</p>`}
    ${answer.request && answer.request.reason && html`<p>${answer.request.reason}</p>`}
    ${answer.binder && html`<p class="none">${answer.binder.sentence}</p>`}
    ${excludedNodes.length > 0 && html`<h4>Failed bindings</h4><ul>${excludedNodes.map((each) => html`<li><${Node} name=${each.node} choose=${choose} />
      ${each.times === 1 ? "once" : `${each.times} times`}${each.until && `, not before ${time(each.until)}`}: ${each.error}</li>`)}</ul>`}
    ${changes.length > 0 && html`<h4>What would make it fit</h4><ul class="changes">${changes.map((each) => html`<li>${each.text}${each.node && html` (<${Node} name=${each.node} choose=${choose} />)`}</li>`)}</ul>`}
    ${together.length > 0 && html`<h4>What would make it fit, all together</h4><ul class="changes">${together.map((each) => html`<li>${each.text}</li>`)}</ul>`}
    ${answer.noChange && html`<p>${answer.noChange}</p>`}
    ${reasons.length > 0 && html`<h4>Rejected by</h4><ul>${reasons.map((each) => html`<${Reason} reason=${each} choose=${choose} />`)}</ul>`}
    ${best.length > 0 && html`<${Scores} best=${best} choose=${choose} />`}
    ${gang && html`<${GangState} gang=${gang} />`}
    ${queue && html`<${QueueState} queue=${queue} />`}`;
}

const Node = ({ name, choose }) => html`<button class="name" onClick=${() => choose("node", name)}>${name}</button>`;

function Reason({ reason, choose }) {
  const names = reason.names || [];
  return html`<li><b>${reason.nodes}</b> ${reason.text} <span class="none">${reason.plugin}</span>
    ${names.length > 0 && html`<div>${names.slice(0, MOST).map((name) => html`<${Node} name=${name} choose=${choose} /> `)}
      ${reason.nodes > MOST && html`<span class="none">and ${reason.nodes - Math.min(MOST, names.length)} more</span>`}</div>`}</li>`;
}

function Scores({ best, choose }) {
  const plugins = [...new Set(best.flatMap((each) => Object.keys(each.byPlugin || {})))];
  return html`<h4>Best nodes</h4><div class="wide"><table id="scores"><thead><tr><th>Node</th><th>Total</th>
    ${plugins.map((name) => html`<th>${name}</th>`)}</tr></thead><tbody>
    ${best.map((each) => html`<tr><th scope="row"><${Node} name=${each.node} choose=${choose} /></th><td>${each.total}</td>
      ${plugins.map((name) => html`<td>${(each.byPlugin || {})[name] ?? ""}</td>`)}</tr>`)}</tbody></table></div>`;
}

function GangState({ gang }) {
  const back = gang.holdingBack || [];
  return html`<h4>Gang ${gang.name}</h4><p>${gang.ready || 0} of ${gang.tasks || 0} have a node, ${gang.least || 0} must${gang.phase && `; ${gang.phase}`}</p>
    <ul>${back.slice(0, MOST).map((each) => html`<li>${each.pod}: ${each.reason}</li>`)}</ul>
    ${back.length > MOST && html`<p class="none">and ${back.length - MOST} more</p>`}`;
}

const amounts = (each) => Object.entries(each || {}).map(([name, value]) => `${name} ${value}`).join(", ") || "nothing";

function QueueState({ queue }) {
  const share = queue.share === undefined ? "" : `, ${Math.round(100 * queue.share)} % of what it deserves`;
  return html`<h4>Queue ${queue.name}</h4><p>has ${amounts(queue.allocated)}${share}</p>
    ${queue.deserved && html`<p>deserves ${amounts(queue.deserved)}</p>`}
    ${queue.capability && html`<p>may have ${amounts(queue.capability)} at most</p>`}
    ${(queue.borrowers || []).map((each) => html`<p>${each.queue} holds more than it deserves: ${amounts(each.over)}</p>`)}`;
}
