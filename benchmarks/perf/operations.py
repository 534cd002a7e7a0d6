"""The operations of a benchmark and their effect on the cluster. One method per opcode.

Operations run one after the other; while one waits, attempts are made. The background work of upstream's harness
(churn, deletions and updates at a rate) runs between attempts, when it is due on the clock; while no pod can be
scheduled the clock is advanced, so the benchmark never sleeps.
"""

from __future__ import annotations

import fnmatch
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bayplan.codec.go_duration import parse_duration
from bayplan.devices.allocator import Allocation, Allocator
from bayplan.devices.pools import PoolIndex
from bayplan.devices.selectors import DeviceSelectors
from bayplan.errors import BayplanError
from bayplan.objects.core import Node, Pod
from bayplan.objects.kinds import convert, find_kind
from bayplan.objects.meta import KubeObject
from benchmarks.device_workload import device_slice_tree
from benchmarks.perf import object_builders
from benchmarks.perf.background import Background
from benchmarks.perf.configs import TestCase, Workload
from benchmarks.perf.in_memory_cluster import InMemoryCluster
from benchmarks.perf.templates import Raw, Template
from benchmarks.perf.throughput_collector import Measurement

LONGEST_WAIT_S = 600.0
"""How long upstream's harness waits for pods before it fails a benchmark."""
_CHURN_INTERVAL_MS = 500
_FEATURES = "numNodeDeclaredFeatures"

Selector = Mapping[str, str]


class UnsupportedOperation(BayplanError):
    """An operation is not possible in one process, or is not supported."""


class Stuck(BayplanError):
    """Pods wait for an event that does not happen."""


class Run:
    """One run of a workload, from its first operation to its last."""

    def __init__(self, case: TestCase, workload: Workload, *, steady_s: float | None = None, seed: int = 0) -> None:
        config = None if case.scheduler_config is None else case.file(case.scheduler_config)
        self.world = InMemoryCluster(None if config is None else config.read_text(encoding="utf-8"), seed=seed)
        self.measurements: list[Measurement] = []
        self.notes: list[str] = []
        self._case = case
        self._workload = workload
        self._steady_s = steady_s
        self._chance = random.Random(seed)
        self._background = Background()
        self._open: Measurement | None = None
        self._templates: dict[Path, Template] = {}
        self._nodes: dict[str, None] = {}
        self._number = 0  # of the current operation

    def run(self) -> None:
        """Run all operations. Raises `BayplanError` with the operation that cannot run, and the reason."""
        for number, operation in enumerate(self._case.operations_for(self._workload)):
            self._number = number
            code = operation.get("opcode", "")
            method = OPERATIONS.get(code)
            if method is None:
                raise UnsupportedOperation(f"operation {code} is not possible in one process")
            method(self, operation)

    @property
    def nodes(self) -> int:
        return self.world.cache.node_count

    # creating ---------------------------------------------------------------------------------------------------

    def create_nodes(self, operation: Mapping[str, Any]) -> None:
        path = operation.get("nodeTemplatePath")
        base = object_builders.base_node(self._number)
        template = self._template(path) if path is not None else Template.of(base, self.world.names)
        for raw in object_builders.nodes(template, operation, self._features()):
            self._create_raw(raw, None)

    def _features(self) -> int:
        count = self._workload.params.get(_FEATURES, 0)
        if not count or self._workload.feature_gates.get("NodeDeclaredFeatures") is False:
            return 0
        self._note(
            f"upstream also teaches its scheduler {count} made-up features that pods are taken to need; here nodes "
            "declare them and no pod needs them"
        )
        return int(count)

    def create_namespaces(self, operation: Mapping[str, Any]) -> None:
        path = operation.get("namespaceTemplatePath")
        base = self._template(path).object() if path is not None else {}
        for raw in object_builders.namespaces(base, operation["prefix"], operation["count"]):
            self._create_raw(raw, None)

    def create_pods(self, operation: Mapping[str, Any]) -> None:
        namespace = operation.get("namespace") or f"namespace-{self._number}"
        if operation.get("collectMetrics"):
            self._start(namespace, frozenset({namespace}), {})
        if operation.get("steadyState"):
            self._keep_steady(operation, namespace)
        else:
            wanted = self.world.scheduled[namespace] + operation["count"]
            self._create_now(operation, namespace)
            if not operation.get("skipWaitToCompletion"):
                self._until_scheduled(namespace, wanted)
        if operation.get("collectMetrics"):
            self.stop_collecting(operation)

    def create_pod_sets(self, operation: Mapping[str, Any]) -> None:
        for number in range(operation["count"]):
            self.create_pods({**operation["createPodsOp"], "namespace": f"{operation['namespacePrefix']}-{number}"})

    def create_any(self, operation: Mapping[str, Any]) -> None:
        for raw in self._template(operation["templatePath"]).objects(operation.get("count", 1)):
            self._create_raw(raw, operation.get("namespace"))

    def create_driver(self, operation: Mapping[str, Any]) -> None:
        for name in fnmatch.filter(self._nodes, operation["nodes"]):
            made = device_slice_tree(operation["driverName"], name, operation["maxClaimsPerNode"])
            self._create_raw(made, None)

    def allocate_claims(self, operation: Mapping[str, Any]) -> None:
        """Claims with allocated devices and without a pod, on random nodes."""
        world, names = self.world, list(self._nodes)
        catalog, devices = world.cache.catalog, world.cache.devices
        index, selectors = PoolIndex(catalog.resource_slices.values()), DeviceSelectors()
        wanted = [claim for claim in devices.claims.values() if claim.namespace == operation.get("namespace")]
        for claim in wanted:
            allocator = Allocator(index, catalog.device_classes, devices.in_use, selectors)
            self._chance.shuffle(names)
            tried = (allocator.allocate(world.cache.node(name) or Node(), (claim,)) for name in names)
            found = next((each for each in tried if isinstance(each, Allocation)), None)
            if found is None:
                raise Stuck(f"no node has devices left for claim {claim.key}")
            (result,) = found.results((claim,))
            world.put(replace(claim, status=replace(claim.status, allocation=result)))

    # changing ---------------------------------------------------------------------------------------------------

    def update_any(self, operation: Mapping[str, Any]) -> None:
        for raw in self._template(operation["templatePath"]).objects(operation.get("count", 1)):
            self.world.update(self._typed(raw, operation.get("namespace")))
            if operation.get("updatePerSecond"):
                self._try_until(self._background.now_s + 1.0 / operation["updatePerSecond"])

    def delete_pods(self, operation: Mapping[str, Any]) -> None:
        labels = operation.get("labelSelector") or {}
        doomed = iter(list(self._pods({operation["namespace"]}, labels)))
        rate = operation.get("deletePodsPerSecond")
        if rate and operation.get("skipWaitToCompletion"):
            self._background.start(lambda: self._delete_next(doomed), 1.0 / rate)
            return
        while self._delete_next(doomed):
            if rate:
                self._try_until(self._background.now_s + 1.0 / rate)

    def _delete_next(self, doomed: Iterator[Pod]) -> bool:
        pod = next(doomed, None)
        if pod is not None:
            self.world.delete(pod)
        return pod is not None

    def churn(self, operation: Mapping[str, Any]) -> None:
        templates = [self._template(path) for path in operation["templatePaths"]]
        namespace = operation.get("namespace") or f"namespace-{self._number}"
        every_s = self.churn_interval_s(operation)
        rounds = self._churn_rounds(operation, templates, namespace)
        self._background.start(lambda: next(rounds, None) is not None, every_s)

    @staticmethod
    def churn_interval_s(operation: Mapping[str, Any]) -> float:
        return float(operation.get("intervalMilliseconds") or _CHURN_INTERVAL_MS) / 1000

    def _churn_rounds(self, operation: Mapping[str, Any], templates: list[Template], namespace: str) -> Iterator[int]:
        """Each round creates an object of every template, or deletes those of an earlier one again."""
        most, recreate = operation.get("number") or 0, operation["mode"] == "recreate"
        living: dict[int, list[KubeObject]] = {}
        number = 0
        while recreate or not most or number < most:
            place = number % most if recreate else number
            if recreate and living.get(place):
                for item in living.pop(place):
                    self.world.delete(item)
            else:
                made = [self._create_raw(template.object(), namespace) for template in templates]
                living[place] = [item for item in made if item is not None] if recreate else []
            number += 1
            yield number

    # waiting ----------------------------------------------------------------------------------------------------

    def barrier(self, operation: Mapping[str, Any]) -> None:
        self._drain()
        if operation.get("stageRequirement") == "Attempted":
            return  # no schedulable pod is left
        namespaces, labels = set(operation.get("namespaces") or ()), operation.get("labelSelector") or {}
        self._pump(lambda: not any(self._waiting(namespaces, labels)), eager=False)

    def sleep(self, operation: Mapping[str, Any]) -> None:
        self._note(f"a pause of {operation.get('duration')} is not kept")
        self._drain()

    def _waiting(self, namespaces: set[str], labels: Selector) -> Iterator[Pod]:
        return (pod for pod in self._pods(namespaces, labels) if not pod.spec.node_name)

    def _until_scheduled(self, namespace: str, count: int) -> None:
        scheduled = self.world.scheduled
        self._pump(lambda: scheduled[namespace] >= count, eager=True)

    def _keep_steady(self, operation: Mapping[str, Any], namespace: str) -> None:
        """A few pods are created, placed and deleted, again and again."""
        count = operation["count"]
        lasts_s = parse_duration(str(operation["duration"])).seconds if self._steady_s is None else self._steady_s
        end_s = self.world.busy_s + lasts_s
        scheduled = self.world.scheduled
        while self.world.busy_s < end_s:
            self._create_now(operation, namespace)
            self._pump(lambda: scheduled[namespace] >= count or self.world.busy_s >= end_s, eager=True)
            for pod in list(self._pods({namespace}, {})):
                self.world.remove_pod(pod)

    def _try_until(self, end_s: float) -> None:
        """Make attempts until a time of the clock; the clock is advanced while no pod can be scheduled."""
        while self._background.now_s < end_s:
            if not self._try_next():
                self._background.skip(end_s)

    def _drain(self) -> None:
        """Schedule until no pod can be tried."""
        while self._try_next():
            pass

    def _try_next(self) -> bool:
        """Run the due steps, then make one attempt; False if no pod can be tried."""
        self._background.run_due()
        attempt = self.world.step()
        if attempt is not None and self._open is not None:
            self._open.see(attempt)
        return attempt is not None

    def _pump(self, done: Callable[[], bool], *, eager: bool) -> None:
        """Make attempts until `done` holds: checked after each of them, or only when no pod can be tried."""
        deadline_s = self._background.now_s + LONGEST_WAIT_S
        while True:
            if eager and done():
                return
            if self._try_next():
                continue
            if done():
                return
            if not self._background.skip() or self._background.now_s > deadline_s:
                raise Stuck(f"unschedulable pods are left; the last one was {self.world.last_refusal or 'gated'}")

    # measuring --------------------------------------------------------------------------------------------------

    def start_collecting(self, operation: Mapping[str, Any]) -> None:
        name = operation.get("name") or ""
        self._start(name, frozenset(operation["namespaces"]), operation.get("labelSelector") or {})

    def stop_collecting(self, operation: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self._open is None:
            raise UnsupportedOperation("a measurement is stopped that was not started")
        self._open.stop(self.world)
        self.measurements.append(self._open)
        if not self._open.scheduled:
            self._note("no pod is placed meanwhile: upstream measures how fast objects reach the scheduler")
        self._open = None

    def _start(self, name: str, namespaces: frozenset[str], labels: Selector) -> None:
        if self._open is not None:
            raise UnsupportedOperation("a measurement is started before the last one was stopped")
        gc.collect()
        self._open = Measurement(name, namespaces, labels, self.world.busy_s)

    # objects ----------------------------------------------------------------------------------------------------

    def _create_now(self, operation: Mapping[str, Any], namespace: str) -> None:
        path = operation.get("podTemplatePath") or self._case.pod_template
        template = self._template(path) if path else Template.of(object_builders.BASE_POD, self.world.names)
        count, claim = operation["count"], operation.get("persistentVolumeClaimTemplatePath")
        items = object_builders.pods(template, namespace, count)
        if claim is not None:
            volume = self._template(operation["persistentVolumeTemplatePath"])
            items = object_builders.pods_with_volumes(template, volume, self._template(claim), namespace, count)
        for raw in list(items):
            self._create_raw(raw, None)

    def _create_raw(self, raw: Raw, namespace: str | None) -> KubeObject | None:
        """Create an object from a file; None for kinds that a controller reads and a scheduler does not."""
        kind = raw.get("kind")
        if kind == "ResourceClaimTemplate":
            self.world.claims.add_template(namespace or "", raw)
        elif kind == "DeviceTaintRule":
            self.world.taints.add_rule(raw)
        else:
            created = self.world.create(self._typed(raw, namespace))
            if isinstance(created, Node):
                self._nodes[created.name] = None
            return created
        return None

    def _typed(self, raw: Raw, namespace: str | None) -> KubeObject:
        kind = find_kind(raw.get("apiVersion", ""), raw.get("kind", ""))
        if kind is None:
            raise UnsupportedOperation(f"objects of kind {raw.get('kind')} are not read by a scheduler")
        placed = object_builders.in_namespace(raw, namespace) if namespace and kind.namespaced else raw
        return convert(placed, kind.struct)

    def _pods(self, namespaces: set[str], labels: Selector) -> Iterator[Pod]:
        """Existing pods, of some namespaces or of all."""
        for pod in self.world.pods.values():
            if (not namespaces or pod.namespace in namespaces) and labels.items() <= pod.labels.items():
                yield pod

    def _template(self, path: str) -> Template:
        file = self._case.file(path)
        if file not in self._templates:
            self._templates[file] = Template(file, self.world.names)
        return self._templates[file]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


OPERATIONS: Mapping[str, Callable[[Run, Mapping[str, Any]], None]] = {
    "allocResourceClaims": Run.allocate_claims,
    "barrier": Run.barrier,
    "churn": Run.churn,
    "createAny": Run.create_any,
    "createNamespaces": Run.create_namespaces,
    "createNodes": Run.create_nodes,
    "createPodSets": Run.create_pod_sets,
    "createPods": Run.create_pods,
    "createResourceDriver": Run.create_driver,
    "deletePods": Run.delete_pods,
    "sleep": Run.sleep,
    "startCollectingMetrics": Run.start_collecting,
    "stopCollectingMetrics": Run.stop_collecting,
    "updateAny": Run.update_any,
}
