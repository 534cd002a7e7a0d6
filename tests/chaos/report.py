"""Summary of journals: faults, recovery times, pods, memory and violations, as text or JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from chaos import journal
from chaos.proxy.faults import LEAVES_UNKNOWN

Summary = dict[str, Any]
GROWTH, SLACK_MIB, WARM_S, LONG_S = 1.25, 24.0, 600, 1800
"""Memory of a process that lives for long: bounded growth after its first ten minutes."""


def summarize(segments: Iterable[Path]) -> Summary:
    """One configuration, from the journals of all its segments."""
    ran, effective = Counter[str](), Counter[str]()
    hits: dict[tuple[int, int], str] = {}
    recoveries: dict[str, list[float]] = defaultdict(list)
    memory: dict[tuple[int, str, int], list[tuple[int, float]]] = defaultdict(list)
    totals, silent, violations, calms = Counter[str](), list[float](), list[Summary](), list[float]()
    seconds, done, seeds = 0.0, False, list[str]()
    checks: Counter[str] = Counter()
    for number, path in enumerate(segments):
        last: Summary = {}
        for entry in journal.read(path):
            match entry["what"]:
                case "started":
                    seeds.append(entry["seed"])
                case "fault":
                    ran[entry["kind"]] += 1
                case "effect":
                    hits[number, entry["number"]] = entry["kind"]
                    effective[entry["kind"]] += 1
                case "recovery":
                    recoveries[entry["kind"]].append(entry["took"])
                case "silent-watch-replaced":
                    silent.append(entry["after_s"])
                case "memory":
                    memory[number, entry["slot"], entry["instance"]].append((entry["age"], entry["mib"]))
                case "calm":
                    calms.append(entry["took_s"])
                case "violation":
                    violations.append(entry)
                case "totals":
                    last = entry
        if last:
            done = done or last["done"]
            seconds += last["at"]
            totals.update({key: last[key] for key in _TOTALS})
            checks.update(last["checks"])
    violations += _growth(memory)
    hit = Counter(hits.values())
    return {
        "done": done,
        "seconds": round(seconds, 1),
        "seeds": seeds,
        "totals": dict(totals),
        "checks": dict(checks),
        "faults": {
            kind: {"ran": ran[kind], "hit": hit[kind], "effects": effective[kind], **_times(recoveries.get(kind, []))}
            for kind in sorted({*ran, *effective})
        },
        "unknown_outcomes": sum(effective[kind] for kind in effective if kind.partition(":")[0] in _UNKNOWN),
        "recovery": _times([each for found in recoveries.values() for each in found]),
        "silent_watch": _times(silent),
        "calm": _times(calms),
        "memory_mib": {f"{slot}-{instance}": _ends(found) for (_, slot, instance), found in memory.items()},
        "violations": violations,
    }


_UNKNOWN = {way.name.lower() for way in LEAVES_UNKNOWN}
_TOTALS = ("created", "deleted", "bound", "evicted", "evictions_allowed", "scenarios", "versions", "relists")


def _times(found: list[float]) -> Summary:
    if not found:
        return {"count": 0}
    return {"count": len(found), "p50": round(median(found), 2), "max": round(max(found), 2)}


def _ends(found: list[tuple[int, float]]) -> Summary:
    return {"age_s": found[-1][0], "first": found[0][1], "last": found[-1][1], "max": max(mib for _, mib in found)}


def _growth(memory: dict[tuple[int, str, int], list[tuple[int, float]]]) -> Iterator[Summary]:
    """Processes that lived long enough and grew beyond the bound."""
    for (_, slot, instance), found in memory.items():
        if found[-1][0] < LONG_S:
            continue
        warm = median(mib for age, mib in found if WARM_S <= age <= 1.5 * WARM_S)
        late = median(mib for _, mib in found[-max(3, len(found) // 10) :])
        if late > warm * GROWTH + SLACK_MIB:
            text = f"{slot}-{instance} grew from {warm:.0f} MiB after ten minutes to {late:.0f} MiB"
            yield {"invariant": "memory-growth", "at": found[-1][0], "text": text}


def as_text(name: str, summary: Summary) -> str:
    totals = summary["totals"]
    faults = summary["faults"].values()
    state = "complete" if summary["done"] else "incomplete"
    count = {key: totals.get(key, 0) for key in _TOTALS}
    lines = [
        f"{name}: {state}, {summary['seconds']:.0f} s, {len(summary['violations'])} violations",
        f"  pods: {count['created']} created, {count['bound']} bound, {count['evicted']} evicted",
        f"  preemption: {count['scenarios']} scenarios, {count['evictions_allowed']} victims more after an outage",
        f"  record: {count['versions']} object versions, {count['relists']} lists",
        f"  faults: {sum(each['ran'] for each in faults)} ran, {sum(each['effects'] for each in faults)} effects",
        f"  writes whose outcome the sender could not know: {summary['unknown_outcomes']}",
        f"  recovery: {_brief(summary['recovery'])}",
        f"  silent watches noticed after: {_brief(summary['silent_watch'])}",
        f"  calm after: {_brief(summary['calm'])}",
    ]
    for kind, each in summary["faults"].items():
        lines.append(f"    {kind:42} ran {each['ran']:4}  effects {each['effects']:4}  recovery {_brief(each)}")
    for slot, each in summary["memory_mib"].items():
        if each["age_s"] >= 300:
            lines.append(f"    memory of {slot}: {each['first']:.0f} to {each['last']:.0f} MiB in {each['age_s']} s")
    idle = [name for name, count in summary["checks"].items() if not count]
    if idle:
        lines.append(f"  invariants that never compared anything: {', '.join(idle)}")
    lines += [
        f"  VIOLATION at {found['at']} s: {found['invariant']}: {found['text'][:1500]}"
        for found in summary["violations"]
    ]
    return "\n".join(lines)


def _brief(found: Summary) -> str:
    return f"p50 {found['p50']:.2f} s, max {found['max']:.2f} s ({found['count']})" if found["count"] else "-"
