"""What a pod lacks on one node: for each kind of change, the parts of the pod that this node rejects.

Called by `suggestions` for rows that would take the pod without any requirement of a kind, to find the row that needs
the smallest change. Reads labels, taints, ports and amounts only; the filters decide whether a change is enough. Cost:
a few microseconds for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bayplan.explain.what_if import FilterReport, ShortageFunction
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.objects.core import NodeSelectorRequirement, NodeSelectorTerm, Pod
from bayplan.objects.pod_relaxations import (
    HOST_PORT,
    REQUESTS,
    SELECTOR,
    TOLERATION,
    SuggestedChange,
    lowest_requests,
    node_affinity_terms,
    port_text,
    taint_text,
)
from bayplan.objects.ports import HostPort, host_ports
from bayplan.objects.resources import filter_requests
from bayplan.objects.selectors.node_selectors import CompiledNodeTerm, compile_node_term
from bayplan.objects.taints import DO_NOT_SCHEDULE, UNSCHEDULABLE, tolerated
from bayplan.snapshot import NodeColumns, PodInfo


class NodeShortfalls:
    """The changes that one pod needs for each row of a snapshot."""

    def __init__(self, report: FilterReport, filters: FilterPoints, shortages: ShortageFunction | None = None) -> None:
        pod = report.cycle.pod
        self._shortages = shortages
        self._shortage_of: Callable[[int], dict[str, int]] | None = None  # built at the first use
        self._pod = pod
        self._nodes: NodeColumns = report.cycle.snapshot.nodes
        self._nominated_pods: dict[str, list[PodInfo]] = filters.nominated_pods_by_node(report.cycle)
        self._ports: tuple[HostPort, ...] = host_ports(pod)
        self._requests = filter_requests(pod)
        self._lowest = lowest_requests(pod)
        self._numbers = {name: self._nodes.vocabulary.resources.find(name) for name in self._requests}
        self._terms = _required_terms(pod)

    def change(self, kind: str, node: str) -> SuggestedChange | None:
        """The smallest change of a kind for this node; None if no change helps, or none is needed."""
        row = self._nodes.index.get(node)
        if row is None:
            return None
        if kind == TOLERATION:
            taints = self._taints(row)
            return SuggestedChange(kind=kind, tolerate=taints, node=node) if taints else None
        if kind == REQUESTS:
            short = self._missing_resources(row)
            return SuggestedChange(kind=kind, less=short, node=node) if short else None
        drop = self._ports_taken(row) if kind == HOST_PORT else self._unmet_terms(row) if kind == SELECTOR else ()
        return SuggestedChange(kind=kind, drop=drop, node=node) if drop else None

    def share_of_requests(self, change: SuggestedChange) -> float:
        """The relative size of a change of requests, to compare two such changes."""
        total = 0.0
        for name, by in change.less.items():
            total += by / max(1, self._requests.get(name, 0))
        return total

    def _taints(self, row: int) -> tuple[str, ...]:
        taints = self._nodes.nodes[row].spec.taints
        if self._nodes.unschedulable[row]:
            taints = (*taints, UNSCHEDULABLE)
        if not taints:
            return ()
        tolerations = self._pod.spec.tolerations
        untolerated = (
            taint for taint in taints if taint.effect in DO_NOT_SCHEDULE and not tolerated(taint, tolerations)
        )
        return tuple(dict.fromkeys(map(taint_text, untolerated)))

    def _ports_taken(self, row: int) -> tuple[str, ...]:
        if not self._ports:
            return ()
        taken = [
            *self._nodes.ports[row],
            *(port for nominated in self._nominated_pods_on(row) for port in nominated.host_ports),
        ]
        blocked = (port for port in self._ports if any(port.conflicts(other) for other in taken))
        return tuple(dict.fromkeys(map(port_text, blocked)))

    def _missing_resources(self, row: int) -> dict[str, int]:
        if self._shortages is not None:
            if self._shortage_of is None:
                self._shortage_of = self._shortages(self._pod, self._requests, self._lowest, self._nodes)
            return self._shortage_of(row)
        missing: dict[str, int] = {}
        for name, requested in self._requests.items():
            nominated = 0
            if self._nominated_pods:
                nominated = sum(each.requests.get(name, 0) for each in self._nominated_pods_on(row))
            free = max(0, self._free(self._numbers[name], row) - nominated)
            if requested > free:
                if free < self._lowest.get(name, 0):
                    return {}
                missing[name] = requested - free
        return missing

    def _free(self, resource: int, row: int) -> int:
        allocatable, requested = self._nodes.allocatable, self._nodes.requested
        if not 0 <= resource < len(allocatable):
            return 0
        return int(allocatable.item(resource, row) - requested.item(resource, row))

    def _unmet_terms(self, row: int) -> tuple[str, ...]:
        node = self._nodes.nodes[row]
        selector = self._pod.spec.node_selector
        unmet = [f"nodeSelector.{key}" for key, value in selector.items() if node.labels.get(key) != value]
        if self._terms:
            unmet_by_term = [
                [place for place, term in parts if not term.matches(node.labels, node.name)] for parts in self._terms
            ]
            fewest: list[str] = min(unmet_by_term, key=len)
            unmet += fewest
        return tuple(unmet)

    def _nominated_pods_on(self, row: int) -> Iterable[PodInfo]:
        return self._nominated_pods.get(self._nodes.names[row], ()) if self._nominated_pods else ()


def _required_terms(pod: Pod) -> list[list[tuple[str, CompiledNodeTerm]]]:
    """The requirements of each term of the required node affinity, compiled one by one."""
    found = []
    for number, term in enumerate(node_affinity_terms(pod)):
        where = f"nodeAffinity[{number}]"
        parts = [
            (f"{where}.matchExpressions[{place}]", _single_requirement(labels=each))
            for place, each in enumerate(term.match_expressions)
        ]
        parts += [
            (f"{where}.matchFields[{place}]", _single_requirement(field=each))
            for place, each in enumerate(term.match_fields)
        ]
        if parts:
            found.append(parts)
    return found


def _single_requirement(
    labels: NodeSelectorRequirement | None = None, field: NodeSelectorRequirement | None = None
) -> CompiledNodeTerm:
    term = NodeSelectorTerm(
        match_expressions=(labels,) if labels is not None else (), match_fields=(field,) if field is not None else ()
    )
    return compile_node_term(term, "")
