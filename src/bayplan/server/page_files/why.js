// Why is a pod there, or nowhere? What the scheduler answers; where it has no answer, what it told of the pod last.

import { html, useEffect, useState } from "./vendor/htm-preact-standalone.js";

async function asked(key) {
  const path = key.split("/").map(encodeURIComponent).join("/");
  try {
    const answer = await fetch(`../why/${path}`, { headers: { accept: "application/json" } });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // not connected; it is asked again with the next version of the pod
  }
}

// A sentence with many parts, a line each: "0/5 nodes are available: 2 ..., 3 ...".
export function lines(message) {
  return message.split(/(?<=available:) |, (?=\d+ )|(?<=\.) (?=\S)/);
}

export function Why({ world, pod }) {
  const [answer, set] = useState(null);
  const told = world.latest.get(pod.key);
  useEffect(() => {
    let current = true;
    set(null);
    if (world.about && world.about.why) asked(pod.key).then((found) => current && set(found));
    return () => { current = false; };
  }, [pod.key, pod.node, pod.message]);
  return html`<h3>Why</h3><div id="why">
    ${answer ? html`<${Answer} answer=${answer} />` : html`<${Last} pod=${pod} told=${told} />`}</div>`;
}

function Last({ pod, told }) {
  const text = pod.message || (told && told.text);
  if (!text) return html`<p class="none">nothing was recorded of it</p>`;
  return html`${lines(text).map((line) => html`<p>${line}</p>`)}`;
}

function Answer({ answer }) {
  return html`<pre>${JSON.stringify(answer, null, 1)}</pre>`;
}
