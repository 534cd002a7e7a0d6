"""The cluster before the scheduler starts: a workload carried out in memory, up to the pods to measure.

Called once a workload. Pods of earlier operations are placed here, so that every contender starts from the same
cluster; the pods to measure stay pending. The background load of upstream's harness (churn, deletions at a rate) is
only recorded: `background_load` runs it during a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.errors import BayplanError
from bayplan.objects.kinds import find_kind
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from benchmarks.perf import object_builders
from benchmarks.perf.configs import TestCase, Workload
from benchmarks.perf.operations import OPERATIONS, Run
from benchmarks.perf.templates import Raw, Template

_UNTYPED = frozenset({"ResourceClaimTemplate"})
"""Namespaced kinds that a scheduler does not read."""


class UnsupportedWorkload(BayplanError):
    """The workload cannot run with pods that exist before the scheduler starts."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Objects of some templates are created, and deleted again if `recreate` is set, at a rate."""

    templates: Sequence[Template]
    namespace: str
    every_s: float
    recreate: bool
    most: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """These pods are deleted one by one, at a rate."""

    pods: Sequence[str]
    every_s: float


@dataclass(frozen=True, slots=True)
class InitialState:
    """The build state of a cluster."""

    trees: Sequence[Raw]
    """Everything except pods, in the order of creation."""
    pods: Sequence[Raw]
    claims: Mapping[str, Sequence[ResourceClaim]]
    """Device claims created from templates, by the pod that owns them."""
    claim_names: Mapping[str, Mapping[str, str]]
    """By pod: the claim names in its spec, and the names of the claims."""
    namespace: str
    measured: frozenset[str]
    """Pods to place, as namespace/name."""
    beside: Sequence[Churn | Deletion]
    nodes: int
    config: str | None


def build_initial_state(case: TestCase, workload: Workload) -> InitialState:
    return _StateBuilder(case, workload).build()


class _StateBuilder(Run):
    def __init__(self, case: TestCase, workload: Workload) -> None:
        super().__init__(case, workload)
        self._trees: list[Raw] = []
        self._beside: list[Churn | Deletion] = []

    def build(self) -> InitialState:
        for number, operation in enumerate(self._case.operations_for(self._workload)):
            self._number = number
            if self._is_measured(operation):
                return self._staged(operation)
            self._prepare(operation)
        raise UnsupportedWorkload("it measures no pods")

    def _is_measured(self, operation: Mapping[str, Any]) -> bool:
        if operation["opcode"] == "startCollectingMetrics" or (
            operation.get("steadyState") and operation.get("collectMetrics")
        ):
            raise UnsupportedWorkload("it measures the steady state of a running scheduler")
        return bool(operation.get("collectMetrics"))

    def _prepare(self, operation: Mapping[str, Any]) -> None:
        code = operation["opcode"]
        if code == "churn":
            self._beside.append(self._churned(operation))
        elif code == "deletePods" and operation.get("skipWaitToCompletion"):
            labels = operation.get("labelSelector") or {}
            keys = [pod.key for pod in self._pods({operation["namespace"]}, labels)]
            self._beside.append(Deletion(keys, 1.0 / operation.get("deletePodsPerSecond", 1000)))
        elif code in OPERATIONS:
            OPERATIONS[code](self, operation)
        else:
            raise UnsupportedWorkload(f"operation {code} is not supported")

    def _churned(self, operation: Mapping[str, Any]) -> Churn:
        return Churn(
            [self._template(path) for path in operation["templatePaths"]],
            operation.get("namespace") or f"namespace-{self._number}",
            self.churn_interval_s(operation),
            operation["mode"] == "recreate",
            operation.get("number") or 0,
        )

    def _staged(self, operation: Mapping[str, Any]) -> InitialState:
        namespace = operation.get("namespace") or f"namespace-{self._number}"
        before = set(self.world.pods)
        self._create_now(operation, namespace)
        config = self._case.scheduler_config
        found = InitialState(
            [tree for tree in self._trees if tree["kind"] != "Pod"],
            [self._pod_tree(tree) for tree in self._trees if tree["kind"] == "Pod"],
            dict(self._owned_claims()),
            {pod.key: names for pod in self.world.pods.values() if (names := _claim_names(pod))},
            namespace,
            frozenset(set(self.world.pods) - before),
            self._beside,
            self.nodes,
            None if config is None else self._case.file(config).read_text(encoding="utf-8"),
        )
        self.world.engine.close()
        return found

    def _pod_tree(self, tree: Raw) -> Raw:
        metadata = tree["metadata"]
        node = self.world.pods[f"{metadata['namespace']}/{metadata['name']}"].spec.node_name
        return {**tree, "spec": {**tree["spec"], "nodeName": node}} if node else tree

    def _owned_claims(self) -> Iterator[tuple[str, Sequence[ResourceClaim]]]:
        claims = self.world.cache.devices.claims
        for pod in self.world.pods.values():
            owned = [claims[f"{pod.namespace}/{name}"] for name in _claim_names(pod).values()]
            if owned:
                yield pod.key, owned

    def _create_raw(self, raw: Raw, namespace: str | None) -> KubeObject | None:
        kind = find_kind(raw.get("apiVersion", ""), raw.get("kind", ""))
        placed = namespace and (kind.namespaced if kind is not None else raw.get("kind") in _UNTYPED)
        self._trees.append(object_builders.in_namespace(raw, namespace) if namespace and placed else raw)
        return super()._create_raw(raw, namespace)


def _claim_names(pod: Any) -> dict[str, str]:
    return {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
