// Plots: decisions a second and durations of attempts, since the page was opened.

import { html, useEffect, useRef } from "./vendor/htm-preact-standalone.js";
import uPlot from "./vendor/uplot.js";
import { palette } from "./theme.js";

const HEIGHT = 110;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600]; // seconds between two tick labels

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

function options(width, series, unit) {
  const colours = palette();
  const axis = { stroke: colours.faint, grid: { stroke: colours.line, width: 1 }, ticks: { show: false }, size: 56 };
  return {
    width,
    height: HEIGHT,
    cursor: { y: false },
    legend: { show: false },
    axes: [{ ...axis, size: 26, space: 80, incrs: STEPS, values: (_, times) => times.map(clock) }, { ...axis, values: (_, values) => values.map((value) => `${value}${unit}`) }],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high || 1)] } },
    series: [{}, ...series.map(([label, colour]) => ({ label, stroke: colours[colour], width: 1.5, spanGaps: true }))],
  };
}

function Plot({ title, names, series, unit, world, look }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = () => [world.history.at, ...names.map((name) => world.history[name])];
  useEffect(() => {
    const width = () => Math.max(120, place.current.clientWidth);
    plot.current = new uPlot(options(width(), series, unit), data(), place.current);
    const observer = new ResizeObserver(() => plot.current.setSize({ width: width(), height: HEIGHT }));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [look]);
  useEffect(() => plot.current.setData(data()), [world.history.at[world.history.at.length - 1]]);
  const last = names.map((name, each) => {
    const value = world.history[name][world.history[name].length - 1];
    return `${series[each][0]} ${value === null || value === undefined ? "–" : `${value.toFixed(1)}${unit}`}`;
  });
  return html`<figure><figcaption>${title}: <span>${last.join(", ")}</span></figcaption>
    <div ref=${place} aria-hidden="true"></div></figure>`;
}

const RATES = [["placed", "good"], ["refused", "bad"]];
const TIMES = [["half of them under", "good"], ["99 % under", "bad"]];

export function Plots({ world, look }) {
  return html`<section aria-labelledby="h-speed" class="plots"><h2 id="h-speed">Speed</h2>
    <${Plot} title="Decisions a second" names=${["scheduled", "unschedulable"]} series=${RATES} unit="" world=${world} look=${look} />
    <${Plot} title="Attempts" names=${["p50", "p99"]} series=${TIMES} unit=" ms" world=${world} look=${look} />
  </section>`;
}
