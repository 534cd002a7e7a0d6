"""What does the batch engine believe? The cache in text, for a log, and as one document, for a file.

Asked by a person (SIGUSR2, SIGUSR1), and after each session at `-v 5`. Cost: a line a node and a job; a person's
question holds the loop meanwhile, so nobody asks without a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bayplan.batch.cluster_state import BatchClusterState
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.node_accounts import NodeAccounts


def dump_lines(engine: BatchEngine) -> Iterator[str]:
    """For a log; the last line is all of it as JSON."""
    yield from cache_lines(engine)
    yield f"batch: {json.dumps(dump_dict(engine), sort_keys=True)}"


def cache_lines(engine: BatchEngine) -> Iterator[str]:
    """A line a node, queue, job and leaving pod. Each is looked up when its turn comes: there may be others."""
    ledger = engine.cluster_state
    for name, row in _rows(ledger):
        node = _node(ledger.node_accounts, row)
        yield f"cache: node {name}: idle {node['idle']}; used {node['used']}; {len(node['pods'])} pods"
    for name, queue in sorted(ledger.queues.items()):
        yield f"cache: queue {name}: weight {queue.weight}, {queue.queue.status.state or 'state unknown'}"
    for uid, each in sorted(ledger.jobs.items()):
        job = _job(each)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(job["tasks"].items()))
        phase = job["phase"] or "no phase"
        yield f"cache: job {uid} in queue {job['queue']}: {phase}, minimum {job['minimum']}; {counts}"
    for uid, leaving in sorted(engine.handle.nominator.terminating_victims.items()):
        yield f"cache: pod {uid} leaves {leaving.node_name} for {leaving.preemptor}"


def dump_dict(engine: BatchEngine) -> dict[str, Any]:
    """Nodes, queues and jobs as the last session left them; a node that an opening one has not counted yet is not."""
    ledger = engine.cluster_state
    return {
        "nodes": {name: _node(ledger.node_accounts, row) for name, row in _rows(ledger)},
        "queues": {
            name: {"weight": queue.weight, "state": queue.queue.status.state, "parent": queue.parent}
            for name, queue in sorted(ledger.queues.items())
        },
        "jobs": {uid: _job(job) for uid, job in sorted(ledger.jobs.items())},
        "leaving": {
            uid: {"node": each.node_name, "for": each.preemptor}
            for uid, each in sorted(engine.handle.nominator.terminating_victims.items())
        },
    }


def _rows(ledger: BatchClusterState) -> list[tuple[str, int]]:
    return sorted(each for each in ledger.snapshot.nodes.index.items() if each[1] < len(ledger.node_accounts.tasks))


def _node(room: NodeAccounts, row: int) -> dict[str, Any]:
    return {
        "idle": str(room.amounts(room.idle, row)),
        "used": str(room.amounts(room.used, row)),
        "releasing": str(room.amounts(room.releasing, row)),
        "pods": sorted(task.key for task in room.tasks[row].values()),
    }


def _job(job: Job) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for task in job.tasks.values():
        counts[task.status.label] = counts.get(task.status.label, 0) + 1
    return {
        "queue": job.queue,
        "phase": job.pod_group.status.phase,
        "minimum": job.min_available,
        "priority": job.priority,
        "tasks": counts,
    }
