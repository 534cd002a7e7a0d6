"""Dump of the batch engine's cluster state: text lines for the log, and one JSON document for a file.

Triggered by signals (SIGUSR2, SIGUSR1) and after each session at `-v 5`. Cost: one line per node and job. A dump on a
signal blocks the event loop.
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
    """Lines for the log; the last line contains the whole dump as JSON."""
    yield from cache_lines(engine)
    yield f"batch: {json.dumps(dump_dict(engine), sort_keys=True)}"


def cache_lines(engine: BatchEngine) -> Iterator[str]:
    """One line per node, queue, job and terminating victim. A generator: objects can change between two lines."""
    cluster_state = engine.cluster_state
    for name, row in _rows(cluster_state):
        node = _node(cluster_state.node_accounts, row)
        yield f"cache: node {name}: idle {node['idle']}; used {node['used']}; {len(node['pods'])} pods"
    for name, queue in sorted(cluster_state.queues.items()):
        yield f"cache: queue {name}: weight {queue.weight}, {queue.queue.status.state or 'state unknown'}"
    for uid, each in sorted(cluster_state.jobs.items()):
        job = _job(each)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(job["tasks"].items()))
        phase = job["phase"] or "no phase"
        yield f"cache: job {uid} in queue {job['queue']}: {phase}, minimum {job['minimum']}; {counts}"
    for uid, leaving in sorted(engine.handle.nominator.terminating_victims.items()):
        yield f"cache: pod {uid} leaves {leaving.node_name} for {leaving.preemptor}"


def dump_dict(engine: BatchEngine) -> dict[str, Any]:
    """Nodes, queues and jobs as the last session left them. A node that an opening session has not counted yet is
    missing."""
    cluster_state = engine.cluster_state
    return {
        "nodes": {name: _node(cluster_state.node_accounts, row) for name, row in _rows(cluster_state)},
        "queues": {
            name: {"weight": queue.weight, "state": queue.queue.status.state, "parent": queue.parent}
            for name, queue in sorted(cluster_state.queues.items())
        },
        "jobs": {uid: _job(job) for uid, job in sorted(cluster_state.jobs.items())},
        "leaving": {
            uid: {"node": each.node_name, "for": each.preemptor}
            for uid, each in sorted(engine.handle.nominator.terminating_victims.items())
        },
    }


def _rows(cluster_state: BatchClusterState) -> list[tuple[str, int]]:
    return sorted(
        each for each in cluster_state.snapshot.nodes.index.items() if each[1] < len(cluster_state.node_accounts.tasks)
    )


def _node(accounts: NodeAccounts, row: int) -> dict[str, Any]:
    return {
        "idle": str(accounts.amounts(accounts.idle, row)),
        "used": str(accounts.amounts(accounts.used, row)),
        "releasing": str(accounts.amounts(accounts.releasing, row)),
        "pods": sorted(task.key for task in accounts.tasks[row].values()),
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
