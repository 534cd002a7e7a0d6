// The page: combines the world, the bay plan and the panels, and handles keys and pointers.

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { BayPlan } from "./bay_plan.js";
import { Colours, WAYS } from "./colours.js";
import { Decisions, Details, Legend, Queues, Results, Waiting } from "./panels.js";
import { Plots } from "./plots.js";
import { follow } from "./stream.js";
import { THEMES, isDark, keptTheme, keepTheme, palette } from "./theme.js";
import { World } from "./world.js";

const PANELS_MS = 250;
const PAN = 60;

const world = new World();
const colours = new Colours(world);

// Renders again when the world has changed, a few times a second at most.
function useWorld() {
  const [, draw] = useState(0);
  useEffect(() => {
    let timer = 0;
    const changed = () => {
      timer ||= setTimeout(() => {
        timer = 0;
        draw((times) => times + 1);
      }, PANELS_MS);
    };
    return world.listen(changed);
  }, []);
}

function chosenByAddress() {
  try {
    const [kind, ...rest] = decodeURIComponent(location.hash.slice(1)).split("=");
    return kind === "pod" || kind === "node" ? { kind, key: rest.join("=") } : null;
  } catch {
    return null; // an URL that is truncated within a character
  }
}

function useChosen() {
  const [chosen, set] = useState(chosenByAddress);
  useEffect(() => {
    const moved = () => set(chosenByAddress());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const choose = (kind, key) => {
    history.replaceState(null, "", kind ? `#${kind}=${encodeURIComponent(key)}` : location.pathname);
    set(kind ? { kind, key } : null);
  };
  return [chosen, choose];
}

function found(query) {
  if (!query) return null;
  const wanted = query.toLowerCase();
  const nodes = [...world.nodes.values()].filter((node) => node.name.toLowerCase().includes(wanted));
  const pods = [];
  for (const pod of world.pods.values()) {
    if (pod.key.toLowerCase().includes(wanted) || pod.owner.toLowerCase().includes(wanted)) pods.push(pod);
  }
  return { nodes, pods };
}

function App() {
  useWorld();
  const [chosen, choose] = useChosen();
  const [query, search] = useState("");
  const [way, colour] = useState("owner");
  const [theme, dress] = useState(keptTheme);
  const plan = useRef(null);
  const searching = useRef(null);
  const second = Math.floor(Date.now() / 1000);
  const results = useMemo(() => found(query), [query, query && world.pods.size, query && second]);
  const dark = isDark(theme);

  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    keepTheme(theme);
    colours.use(way, dark);
    plan.current.palette = palette();
    plan.current.repaint();
  }, [theme, dark, way]);
  useEffect(() => {
    plan.current.matches = results && new Set(results.pods.map((pod) => pod.key));
    plan.current.repaint();
  }, [results]);
  useEffect(() => {
    const pod = chosen && chosen.kind === "pod" ? world.pods.get(chosen.key) : null;
    const node = chosen && world.nodes.get(pod ? pod.node : chosen.key);
    plan.current.select(node || null, pod, true);
    if (chosen) document.getElementById("panels").scrollTop = 0;
  }, [chosen && chosen.kind, chosen && chosen.key, world.whole]);
  useEffect(() => {
    const pressed = (event) => {
      const typing = event.target.matches("input, select, textarea");
      if (event.key === "/" && !typing) {
        event.preventDefault();
        searching.current.focus();
      } else if (event.key === "Escape") {
        if (typing) event.target.blur();
        search("");
        choose(null);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);

  return html`
    <a class="skip" href="#panels">Skip the plan</a>
    <${Head} query=${query} search=${search} searching=${searching} way=${way} colour=${colour} theme=${theme}
      dress=${dress} results=${results} choose=${choose} />
    <main>
      <${Plan} plan=${plan} choose=${choose} />
      <div id="panels" tabindex="-1">
        <${Details} world=${world} chosen=${chosen} choose=${choose} />
        ${results && html`<${Results} results=${results} choose=${choose} />`}
        <${Waiting} world=${world} choose=${choose} />
        <${Queues} world=${world} />
        <${Plots} world=${world} look=${`${theme} ${dark}`} />
        <${Decisions} world=${world} choose=${choose} />
        <${Legend} colours=${colours} way=${way} second=${Math.floor(second / 2)} search=${search} />
      </div>
    </main>`;
}

function Head({ query, search, searching, way, colour, theme, dress, results, choose }) {
  const first = () => {
    if (!results) return;
    const [pod] = results.pods;
    const [node] = results.nodes;
    if (pod) choose("pod", pod.key);
    else if (node) choose("node", node.name);
  };
  const state = {
    live: "live", lost: "not connected, trying again", connecting: "connecting",
    refused: html`access denied, <a href=${location.pathname}>sign in</a>`,
  }[world.state];
  return html`<header>
    <h1>Bayplan</h1>
    <p class=${`state ${world.state}`} role="status">${state}</p>
    <p class="counts"><b id="node-count">${world.nodes.size}</b> nodes <b id="pod-count">${world.pods.size}</b> pods${" "}
      <b id="waiting-count">${world.waiting.size}</b> waiting</p>
    <label class="search">Search <input ref=${searching} type="search" placeholder="pod, owner or node  ( / )"
      value=${query} onInput=${(event) => search(event.target.value.trim())}
      onKeyDown=${(event) => event.key === "Enter" && first()} /></label>
    <label>Colour <select value=${way} onChange=${(event) => colour(event.target.value)}>
      ${WAYS.map(([key, name]) => html`<option value=${key}>${name}</option>`)}</select></label>
    <label>Theme <select value=${theme} onChange=${(event) => dress(event.target.value)}>
      ${THEMES.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
    ${world.about && world.about.user && html`<form method="post" action="sign-out"><button>Sign out ${world.about.user}</button></form>`}
  </header>`;
}

function Plan({ plan, choose }) {
  const frame = useRef(null);
  const [said, say] = useState("");
  const ready = (element) => {
    if (element && !plan.current) {
      plan.current = new BayPlan(element, world, colours);
      window.bayplan = { world, plan: plan.current };
    }
  };
  useEffect(() => {
    const resized = () => {
      const { width, height } = frame.current.getBoundingClientRect();
      plan.current.resize(width, height, devicePixelRatio || 1);
    };
    const observer = new ResizeObserver(resized);
    observer.observe(frame.current);
    const unheard = world.listen(() => plan.current.update());
    return () => {
      observer.disconnect();
      unheard();
    };
  }, []);

  const go = (dx, dy) => {
    const node = plan.current.step(dx, dy);
    if (!node) return;
    choose("node", node.name);
    say(sentence(node));
  };
  const keys = {
    ArrowLeft: () => go(-1, 0), ArrowRight: () => go(1, 0), ArrowUp: () => go(0, -1), ArrowDown: () => go(0, 1),
    "+": () => plan.current.zoom(1), "=": () => plan.current.zoom(1), "-": () => plan.current.zoom(-1),
    0: () => plan.current.fit(), Home: () => plan.current.fit(),
    PageUp: () => plan.current.move(0, -PAN * 5), PageDown: () => plan.current.move(0, PAN * 5),
    Enter: () => document.getElementById("details").focus(),
  };
  const pressed = (event) => {
    const does = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key];
    if (does) {
      event.preventDefault();
      does();
    }
  };
  return html`<section class="plan" ref=${frame} aria-label="Bay plan">
    <canvas ref=${ready} tabindex="0" role="application" aria-describedby="plan-keys"
      aria-label=${`Bay plan: ${world.nodes.size} nodes, ${world.pods.size - world.waiting.size} pods on them`}
      onKeyDown=${pressed} ...${pointing(plan, choose, say)}></canvas>
    <p id="plan-keys" class="hint">drag or Page keys: move · wheel or + −: zoom · 0: all · arrows: from bay to bay · Enter: details · /: search</p>
    <p class="unseen" aria-live="polite">${said}</p>
  </section>`;
}

function sentence(node) {
  const used = world.used(node);
  const parts = ["cpu", "memory"].filter((name) => node.offers[name])
    .map((name) => `${Math.round((100 * (used[name] || 0)) / node.offers[name])} % of its ${name}`);
  return `node ${node.name}${node.zone ? ` in ${node.zone}` : ""}, ${node.state}, ${node.pods.size} pods, ${parts.join(", ")}`;
}

// Pointer events: drag moves, a click selects, the wheel zooms.
function pointing(plan, choose, say) {
  const place = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const ratio = plan.current.ratio || 1;
    return { x: (event.clientX - box.left) * ratio, y: (event.clientY - box.top) * ratio };
  };
  return {
    onPointerDown: (event) => {
      if (event.button) return;
      plan.current.drag = { ...place(event), moved: false };
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event) => {
      const start = plan.current.drag;
      if (!start) return;
      const now = place(event);
      if (!start.moved && Math.hypot(now.x - start.x, now.y - start.y) < 4) return;
      plan.current.move(Math.round(start.x - now.x), Math.round(start.y - now.y));
      plan.current.drag = { ...now, moved: true };
    },
    onPointerUp: (event) => {
      const start = plan.current.drag;
      plan.current.drag = null;
      if (!start || start.moved) return;
      const here = place(event);
      const hit = plan.current.at(here.x, here.y);
      if (!hit) choose(null);
      else if (hit.pod) choose("pod", hit.pod.key);
      else choose("node", hit.node.name);
      if (hit) say(sentence(hit.node));
    },
    onPointerCancel: () => { plan.current.drag = null; },
    onWheel: (event) => {
      event.preventDefault();
      const here = place(event);
      plan.current.zoom(event.deltaY < 0 ? 1 : -1, here.x, here.y);
    },
  };
}

render(html`<${App} />`, document.getElementById("app"));
follow(world);
