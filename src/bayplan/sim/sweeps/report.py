"""HTML report of a sweep: one file with tables and plots.

The page loads nothing and does not depend on time or place: equal results give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape

from bayplan import __version__
from bayplan.sim.sweeps.openb_experiment import LOADS, OpenbRun, RunSummary
from bayplan.sim.sweeps.optional_imports import import_optional
from bayplan.sim.sweeps.published_results import differences, published_result

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.far { color: #b00020; }
svg { max-width: 100%; height: auto; }
"""

_TOLERANCE_POINTS = 1.0
"""Allowed difference from the published mean in percentage points."""


def summarise_runs(runs: Iterable[OpenbRun]) -> list[RunSummary]:
    """Summarise the runs by workload and policy, in the order of first appearance."""
    groups: dict[tuple[str, str], list[OpenbRun]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.policy), []).append(run)
    return [RunSummary.of(group) for group in groups.values()]


def render_report(runs: Sequence[OpenbRun], *, compared: bool = True) -> str:
    """Render the page; `compared` adds the published results, which are valid for the OpenB nodes."""
    found = summarise_runs(runs)
    workloads = list(dict.fromkeys(summary.workload for summary in found))
    sections = [
        _section(name, [each for each in found if each.workload == name], compared=compared) for name in workloads
    ]
    policies = len({summary.policy for summary in found})
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>GPU allocation by policy</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<h1>GPU allocation by policy</h1>\n"
        f"<p>{len(runs)} runs: {len(workloads)} workloads, {policies} policies; by Bayplan {escape(__version__)}. "
        "Load is the share of all GPUs that pods request, allocation the share that they get, both in percent; "
        "mean and deviation over the seeds.</p>\n"
        f"{''.join(sections)}</body>\n</html>\n"
    )


def _section(workload: str, found: Sequence[RunSummary], *, compared: bool) -> str:
    heads = "".join(f"<th>at {load} %</th><th>published</th>" for load in LOADS)
    lines = "".join(_line(summary, compared=compared) for summary in found)
    return (
        f"<h2>{escape(workload)}</h2>\n{_plot(found)}\n"
        f"<table>\n<tr><th>policy</th><th>runs</th>{heads}</tr>\n{lines}</table>\n"
    )


def _line(summary: RunSummary, *, compared: bool) -> str:
    published = published_result(summary.workload, summary.policy) if compared else None
    difference = differences(summary)
    cells = [f"<td>{escape(summary.policy)}</td><td>{len(summary.seeds)}</td>"]
    for load in LOADS:
        if load not in summary.mean:
            cells.append("<td></td><td></td>")
            continue
        cells.append(f"<td>{summary.mean[load]:.2f} ± {summary.deviation[load]:.2f}</td>")
        if published is None:
            cells.append("<td></td>")
        else:
            mark = ' class="far"' if abs(difference[load]) > _TOLERANCE_POINTS else ""
            cells.append(f"<td{mark}>{published.mean[load]:.2f} ({difference[load]:+.2f})</td>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _plot(found: Sequence[RunSummary]) -> str:
    """Bar chart by load and policy, as SVG."""
    matplotlib = import_optional("matplotlib", wanted_for="a report", extra="sweep")
    matplotlib.rcParams["svg.hashsalt"] = "bayplan"  # makes the ids in the SVG reproducible
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure = import_optional("matplotlib.figure", wanted_for="a report", extra="sweep").Figure(
        figsize=(9, 3.2), layout="constrained"
    )
    axes = figure.subplots()
    width = 0.8 / max(len(found), 1)
    for place, summary in enumerate(found):
        loads = [load for load in LOADS if load in summary.mean]
        axes.bar(
            [LOADS.index(load) + (place - (len(found) - 1) / 2) * width for load in loads],
            [summary.mean[load] for load in loads],
            width,
            yerr=[summary.deviation[load] for load in loads],
            label=summary.policy,
        )
    axes.set_xticks(range(len(LOADS)), [f"load {load} %" for load in LOADS])
    axes.set_ylabel("GPUs allocated, %")
    lowest = min((mean for summary in found for mean in summary.mean.values()), default=0.0)
    axes.set_ylim(max(0.0, 10 * (lowest // 10) - 10), 100)
    axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.5, 1.2), frameon=False)
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    text = picture.getvalue()
    return text[text.index("<svg") :]
