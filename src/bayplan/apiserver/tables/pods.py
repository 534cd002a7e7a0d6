"""Table row of a pod. The status cell is computed from the container statuses."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.tables.ages import age_cell, parse_timestamp
from bayplan.apiserver.tables.cell_text import NONE

_NODE_LOST = "NodeLost"


class _RestartTally:
    """Restarts of some containers, and the end of the last one."""

    def __init__(self) -> None:
        self.restarts = 0
        self.last = ""

    def add(self, status: Tree) -> None:
        self.restarts += status.get("restartCount", 0)
        ended = ((status.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        if ended and (not self.last or parse_timestamp(ended) > parse_timestamp(self.last)):
            self.last = ended

    def text(self, now: datetime) -> str:
        if self.restarts and self.last:
            return f"{self.restarts} ({age_cell(now, self.last)} ago)"
        return str(self.restarts)


def pod_cells(pod: Tree, now: datetime) -> list[Any]:
    spec, status, meta = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    sidecars = {each.get("name") for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"}
    total = len(spec.get("containers") or ()) + len(sidecars)
    reason = _first_reason(status)
    initial, starting, ready = _init_status(spec, status, sidecars)
    tally = _RestartTally()
    if not initial or _is_true(status, "Initialized"):
        for each in status.get("initContainerStatuses") or ():
            if each.get("name") in sidecars:
                tally.add(each)
        reason, running = _running_status(status, initial or reason, tally)
        ready += running
    else:
        reason, tally = initial, starting
    if meta.get("deletionTimestamp"):
        reason = _terminating_status(status, reason)
    cells = [meta["name"], f"{ready}/{total}", reason, tally.text(now), age_cell(now, meta.get("creationTimestamp"))]
    return cells + _wide_cells(spec, status)


def _first_reason(status: Tree) -> str:
    gated = any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated"
        for each in status.get("conditions") or ()
    )
    return "SchedulingGated" if gated else status.get("reason") or status.get("phase", "")


def _is_true(status: Tree, kind: str) -> bool:
    return any(each.get("type") == kind and each.get("status") == "True" for each in status.get("conditions") or ())


def _init_status(spec: Tree, status: Tree, sidecars: set[Any]) -> tuple[str, _RestartTally, int]:
    """Status of the init containers if they still run, their restarts, and the number of ready sidecars."""
    tally, ready = _RestartTally(), 0
    count = len(spec.get("initContainers") or ())
    for index, each in enumerate(status.get("initContainerStatuses") or ()):
        tally.add(each)
        state = each.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if each.get("name") in sidecars and each.get("started"):
            ready += bool(each.get("ready"))
            continue
        if terminated is not None:
            return f"Init:{_terminated_reason(terminated)}", tally, ready
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}", tally, ready
        return f"Init:{index}/{count}", tally, ready
    return "", tally, ready


def _terminated_reason(terminated: Tree) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _running_status(status: Tree, reason: str, tally: _RestartTally) -> tuple[str, int]:
    """Status of the containers, in which the first one wins, and the number of ready ones."""
    ready, failed = 0, ""
    for each in reversed(status.get("containerStatuses") or ()):
        tally.add(each)
        state = each.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = _terminated_reason(terminated)
            failed = reason if terminated.get("exitCode", 0) else failed
        elif each.get("ready") and state.get("running") is not None:
            ready += 1
    if reason == "Completed":
        if ready and _is_true(status, "Ready"):
            reason = "Running"
        elif failed:
            reason = failed
        elif ready:
            reason = "NotReady"
    return reason, ready


def _terminating_status(status: Tree, reason: str) -> str:
    if status.get("reason") == _NODE_LOST:
        return "Unknown"
    return reason if status.get("phase") in ("Succeeded", "Failed") else "Terminating"


def _wide_cells(spec: Tree, status: Tree) -> list[Any]:
    addresses = status.get("podIPs") or [{"ip": status.get("podIP")}]
    gates = spec.get("readinessGates") or ()
    shown = NONE
    if gates:
        shown = f"{sum(_is_true(status, each.get('conditionType', '')) for each in gates)}/{len(gates)}"
    return [
        addresses[0].get("ip") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        shown,
    ]


def pod_row_conditions(pod: Tree) -> list[Tree]:
    """Rows of finished pods have a condition, so that clients can omit them."""
    phase = (pod.get("status") or {}).get("phase")
    if phase not in ("Succeeded", "Failed"):
        return []
    message = "The pod has completed successfully." if phase == "Succeeded" else "The pod failed."
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]
