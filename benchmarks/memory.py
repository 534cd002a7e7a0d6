"""Memory of a cluster of 5,000 nodes and 150,000 pods.

A separate process reads every object from JSON, as it comes from an API server, keeps it in the cache, takes a snapshot
and places some pods; then it prints its current and its peak memory. The JSON texts are generated one by one and
discarded, as pages of a list would be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from bayplan.cache import Cache
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import decode
from benchmarks import clusters
from benchmarks.clusters import Manifest, container, node_name
from benchmarks.decision_timing import engine_on, pods_of
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[1]
NODES, PODS = 5000, 150_000
BUDGET_MIB = 1536.0
_PLACED = 100
_PODS_A_SET = 50
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the process."""

    nodes: int
    pods: int
    json_kib: float
    """Mean size of a pod's JSON text."""
    resident_mib: float
    peak_mib: float

    @property
    def holds(self) -> bool:
        return self.peak_mib <= BUDGET_MIB


def measure_memory(nodes: int = NODES, pods: int = PODS) -> Memory:
    """Fill a cluster in a separate process: the memory of this one includes too much else."""
    command = [sys.executable, "-m", "benchmarks.memory", "--nodes", str(nodes), "--pods", str(pods)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Memory(**json.loads(done.stdout))


# the process


def fill(nodes: int, pods: int) -> Memory:
    """Read a cluster into a cache and place a few pods on it."""
    cache, size = Cache(), 0
    for number in range(nodes):
        cache.add_node(decode(json.dumps(clusters.node(number)), Node))
    for text in pod_texts(nodes, pods):
        size += len(text)
        cache.add_pod(decode(text, Pod))
    engine = engine_on(cache)
    for pod in pods_of(WORKLOADS["basic_identical"], _PLACED):
        engine.place(engine.prepare(pod))
    resident = resident_mib()
    return Memory(nodes, pods, round(size / max(pods, 1) / 1024, 1), resident, max(resident, peak_mib()))


def pod_texts(nodes: int, pods: int) -> Iterator[bytes]:
    """Running pods as an API server sends them: 2 to 7 KB each, in sets that share a template."""
    for number in range(pods):
        number_of_set = number // _PODS_A_SET
        template = _TEMPLATES[number_of_set % len(_TEMPLATES)]
        own = {b"@pod@": b"%d" % number, b"@set@": b"%d" % number_of_set, b"@node@": node_name(number % nodes).encode()}
        for mark, value in own.items():
            template = template.replace(mark, value)
        yield template


def _pod_text(*, containers: int, variables: int, managers: int) -> bytes:
    """A pod of a ReplicaSet with this number of containers, environment variables in each, and managed fields."""
    labels = {"app": "app-@set@", "pod-template-hash": "5d8f7b6c4@set@", "tier": "backend", "team": "payments"}
    own = [_container(number, variables) for number in range(containers)]
    found = clusters.pod("app-@set@-5d8f7b6c4-@pod@", labels=labels, owner="app-@set@-5d8f7b6c4", containers=own)
    found["metadata"] |= {
        "annotations": {"prometheus.io/scrape": "true", "checksum/config": "9f86d081884c7d659a2feaa0c55ad015"},
        "resourceVersion": "48@pod@",
        "managedFields": [_managed(number) for number in range(managers)],
    }
    found["spec"]["nodeName"] = "@node@"
    found["status"] = {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": clusters.CREATED,
        "qosClass": "Guaranteed",
        "conditions": [
            {"type": what, "status": "True", "lastTransitionTime": clusters.CREATED, "lastProbeTime": None}
            for what in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [_status(each) for each in own],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", **found}, separators=(",", ":")).encode()


def _container(number: int, variables: int) -> Manifest:
    """A container; one without environment variables is a small one and has no probes either."""
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3}
    settings = [{"name": f"SETTING_{each}", "value": f"value of the setting {each}"} for each in range(variables)]
    more = {"env": settings, "livenessProbe": probe, "readinessProbe": probe} if settings else {}
    return container("250m", "512Mi", picture=clusters.image(number), **more) | {"name": f"container-{number}"}


def _status(own: Manifest) -> Manifest:
    digest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    return {
        "name": own["name"],
        "image": own["image"],
        "imageID": f"{own['image']}@{digest}",
        "containerID": f"containerd://{digest}",
        "ready": True,
        "restartCount": 0,
        "started": True,
        "state": {"running": {"startedAt": clusters.CREATED}},
    }


def _managed(number: int) -> dict[str, Any]:
    fields: dict[str, Any] = {f"f:field-{each}": {".": {}, "f:value": {}} for each in range(12)}
    return {
        "manager": f"controller-{number}",
        "operation": "Update",
        "apiVersion": "v1",
        "time": clusters.CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": fields}, "f:spec": {"f:containers": fields}},
    }


_TEMPLATES = (
    _pod_text(containers=1, variables=0, managers=0),
    _pod_text(containers=1, variables=8, managers=1),
    _pod_text(containers=2, variables=6, managers=1),
    _pod_text(containers=1, variables=4, managers=0),
    _pod_text(containers=2, variables=14, managers=2),
)


def resident_mib() -> float:
    """Current resident memory of this process; peak memory if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_mib()
    return round(pages * 4096 / _MIB, 1)


def peak_mib() -> float:
    """Peak resident memory of this process. `getrusage` on Linux also counts the process that started it."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(getrusage(RUSAGE_SELF).ru_maxrss * unit / _MIB, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a cluster and print the memory of the process as JSON.")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(asdict(fill(arguments.nodes, arguments.pods))))


if __name__ == "__main__":
    main()
