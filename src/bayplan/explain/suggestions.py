"""Suggests changes that would make a pending pod fit: the smallest of each kind, or else the smallest combination.

Called by the explainers. Nothing is guessed: every suggestion was tried with the filters on the current cluster and
gave a feasible node. The search is a generator that yields between two filter runs, so that the event loop can run. The
cluster may change meanwhile; each filter run uses the current one.

A kind is skipped if the pod fits nowhere even without any requirement of that kind. Spread constraints count the nodes
that a pod tolerates and selects, so a pod that tolerates more may fit less. With them the changes for each node are
tried one by one, and all combinations if they are few. Cost: ten to fifty filter runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec.structs import replace

from bayplan.explain.change_text import change_text
from bayplan.explain.eviction_search import cheapest_eviction
from bayplan.explain.node_shortfalls import NodeShortfalls
from bayplan.explain.what_if import FilterTrials, SearchProgress
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import (
    ALL_ITEMS,
    CLAIM,
    DEVICES,
    EVICTION,
    GATE,
    GROUP,
    HOST_PORT,
    KINDS,
    MISSING,
    REQUESTS,
    SELECTOR,
    SPREAD,
    TOLERATION,
    VOLUME,
    SuggestedChange,
    apply_change,
    claim_name,
    lowest_requests,
    node_term_paths,
    pod_term_paths,
    port_text,
    spread_term_paths,
)
from bayplan.objects.ports import host_ports
from bayplan.objects.resources import filter_requests
from bayplan.snapshot import Catalog

_ROWS_PER_SLICE = 256
_MAX_TRIALS = 16
"""Limit of different changes of one kind that are tried, the smallest first."""
_MAX_PARTS_TO_COMBINE = 6
"""Up to this many parts, all combinations are tried."""

PER_NODE_KINDS = (TOLERATION, HOST_PORT, SELECTOR, REQUESTS)
"""Kinds of change that may differ from node to node."""

SearchSteps = Generator[None, None, SuggestedChange | None]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What helps. `single_changes`: each is enough, the smallest first; `combined_changes`: if there is none, changes
    that are enough together; `fits`: the node that takes the pod unchanged."""

    single_changes: tuple[SuggestedChange, ...] = ()
    combined_changes: tuple[SuggestedChange, ...] = ()
    fits: str = ""
    truncated: bool = False
    """Whether the search was incomplete."""

    @property
    def closest(self) -> str:
        """The node that needs the smallest change; empty if nothing helps."""
        first = next(iter((*self.single_changes, *self.combined_changes)), None)
        return self.fits or (first.node if first is not None else "")


def search_suggestions(what_if: FilterTrials, pod: Pod) -> Generator[None, None, Suggestions]:
    report = what_if.run_filters(pod)
    fits = report.node if report.pre_enqueue_status.ok else ""
    yield
    if fits:
        return Suggestions(fits=fits)
    search = _SuggestionSearch(what_if, pod)
    alone: list[SuggestedChange] = []
    for kind in KINDS:
        found = yield from search.find_smallest(kind)
        if found is not None:
            alone.append(replace(found, text=change_text(pod, found)))
    if alone:
        return Suggestions(
            single_changes=tuple(sorted(alone, key=lambda change: (change.kind == EVICTION, change.parts)))
        )
    together = yield from search.find_combination()
    return Suggestions(
        combined_changes=tuple(replace(each, text=change_text(pod, each)) for each in together),
        truncated=search.effort.truncated,
    )


class _SuggestionSearch:
    """The search for one pod. Nodes are identified by name between two filter runs, because rows may change."""

    def __init__(self, what_if: FilterTrials, pod: Pod) -> None:
        self._what_if = what_if
        self._pod = pod
        self._counts_nodes = bool(spread_term_paths(pod))
        self.effort = SearchProgress()

    def find_smallest(self, kind: str) -> SearchSteps:
        """The smallest change of a kind that is enough."""
        if kind == EVICTION:
            return (yield from cheapest_eviction(self._what_if, self._pod, self.effort))
        if kind == SELECTOR:
            return (yield from self._selector())
        if kind in PER_NODE_KINDS:
            return (yield from self._by_row(kind))
        for parts in _subsets(self._parts(kind)):
            found = self._fits_after(SuggestedChange(kind=kind, drop=parts))
            yield
            if found is not None:
                return found
        return None

    def _parts(self, kind: str) -> tuple[str, ...]:
        """The pod's parts of a kind that is the same for every node."""
        if kind == GATE:
            return tuple(gate.name for gate in self._pod.spec.scheduling_gates)
        if kind == SPREAD:
            return tuple(spread_term_paths(self._pod))
        return tuple(missing_objects(self._pod, self._what_if.catalog)) if kind == MISSING else ()

    def _selector(self) -> SearchSteps:
        """Terms about pods are the same for every node, terms about nodes are not: both may have to be dropped."""
        for terms in ((), *_subsets(pod_term_paths(self._pod))):
            dropped = SuggestedChange(kind=SELECTOR, drop=terms)
            found = self._fits_after(dropped) if terms else None
            yield
            if found is None:
                found = yield from self._by_row(SELECTOR, dropped)
            if found is not None:
                return found
        return None

    # kinds that differ from node to node

    def _by_row(self, kind: str, besides: SuggestedChange | None = None) -> SearchSteps:
        """The smallest change of a kind, over all rows. `besides`: a change of the same kind that is always made."""
        pod = self._pod if besides is None else apply_change(self._pod, besides)
        largest = largest_change(pod, kind)
        if largest is None:
            return None
        report = self._what_if.run_filters(apply_change(pod, largest))
        judges_nodes = self._counts_nodes and kind in (TOLERATION, SELECTOR)
        names = list(report.diagnosis.names) if judges_nodes else report.nodes
        yield
        if not names or not self._what_if.gate(pod).ok:  # a pod without requests may be gated because of that
            return None
        wanted = yield from self._required_changes(pod, kind, names)
        parts = () if besides is None else besides.drop
        for change in wanted[:_MAX_TRIALS]:
            found = self._fits_after(replace(change, drop=(*parts, *change.drop)))
            yield
            if found is not None:
                return (yield from self._shrink(found))
        if len(wanted) > _MAX_TRIALS:
            self.effort.truncated = True
        return (yield from self._combine(kind, wanted, parts)) if judges_nodes else None

    def _required_changes(
        self, pod: Pod, kind: str, names: Sequence[str]
    ) -> Generator[None, None, list[SuggestedChange]]:
        """The different changes that nodes require, the smallest first."""
        needs = NodeShortfalls(self._what_if.run_filters(pod), self._what_if.filters, self._what_if.shortages)
        found: dict[object, SuggestedChange] = {}
        for start in range(0, len(names), _ROWS_PER_SLICE):
            for name in names[start : start + _ROWS_PER_SLICE]:
                change = needs.change(kind, name)
                if change is not None:
                    found.setdefault((change.tolerate, change.drop, tuple(change.less.items())), change)
            yield
        return sorted(found.values(), key=lambda change: (change.parts, needs.share_of_requests(change)))

    def _combine(self, kind: str, wanted: Iterable[SuggestedChange], besides: tuple[str, ...]) -> SearchSteps:
        """Combine what several rows require: a pod that counts more nodes for spreading may fit with all of it."""
        parts = tuple(dict.fromkeys(part for change in wanted for part in (*change.tolerate, *change.drop)))
        if len(parts) > _MAX_PARTS_TO_COMBINE:
            self.effort.truncated = True
            return None
        for subset in _subsets(parts):
            taints, terms = (subset, ()) if kind == TOLERATION else ((), (*besides, *subset))
            found = self._fits_after(SuggestedChange(kind=kind, tolerate=taints, drop=terms))
            yield
            if found is not None:
                return found
        return None

    # several kinds

    def find_combination(self) -> Generator[None, None, tuple[SuggestedChange, ...]]:
        """Changes of several kinds that are enough together, for the node that needs the fewest. Empty if even all of
        them do not help."""
        shared = [
            SuggestedChange(kind=kind, drop=parts) for kind in (GATE, MISSING, SPREAD) if (parts := self._parts(kind))
        ]
        if terms := pod_term_paths(self._pod):
            shared.append(SuggestedChange(kind=SELECTOR, drop=tuple(terms)))
        eased = _apply_changes(self._pod, shared)
        report = self._what_if.run_filters(
            _apply_changes(
                eased, (each for kind in PER_NODE_KINDS if (each := largest_change(eased, kind)) is not None)
            )
        )
        names = report.nodes if self._what_if.gate(eased).ok else []
        yield
        candidates = yield from self._changes_by_node(eased, names)
        for changes in candidates[:_MAX_PARTS_TO_COMBINE]:
            merged = _merge_changes([*shared, *changes])
            node = self._node_for(merged)
            yield
            if node:
                return (yield from self._remove_redundant(merged))
        if len(candidates) > _MAX_PARTS_TO_COMBINE:
            self.effort.truncated = True
        return ()

    def _changes_by_node(self, pod: Pod, names: Sequence[str]) -> Generator[None, None, list[list[SuggestedChange]]]:
        """The changes of all kinds that each node requires; the node with the fewest first."""
        needs = NodeShortfalls(self._what_if.run_filters(pod), self._what_if.filters, self._what_if.shortages)
        found: list[tuple[tuple[int, int, float], list[SuggestedChange]]] = []
        for start in range(0, len(names), _ROWS_PER_SLICE):
            for name in names[start : start + _ROWS_PER_SLICE]:
                changes = [change for kind in PER_NODE_KINDS if (change := needs.change(kind, name)) is not None]
                size = len(changes), sum(each.parts for each in changes), sum(map(needs.share_of_requests, changes))
                found.append((size, changes))
            yield
        return [changes for _, changes in sorted(found, key=lambda each: each[0])]

    def _remove_redundant(self, changes: list[SuggestedChange]) -> Generator[None, None, tuple[SuggestedChange, ...]]:
        """The changes without those that are not needed: whole changes first, then parts of them."""
        for change in list(changes):
            left = [each for each in changes if each is not change]
            if left and self._node_for(left):
                changes = left
            yield
        for number in range(len(changes)):
            smaller = yield from self._shrink(changes[number], [*changes[:number], *changes[number + 1 :]])
            changes[number] = smaller
        node = self._node_for(changes)
        return tuple(replace(change, node=node) for change in changes)

    # trials

    def _fits_after(self, change: SuggestedChange) -> SuggestedChange | None:
        """The change with the node that then takes the pod; None if there is none."""
        node = self._node_for((change,))
        return replace(change, node=node) if node else None

    def _node_for(self, changes: Sequence[SuggestedChange]) -> str:
        """A node for the pod with these changes made: the one that they are for, if it fits."""
        report = self._what_if.run_filters(_apply_changes(self._pod, changes))
        if not report.fits:
            return ""
        row = report.cycle.snapshot.nodes.index.get(changes[-1].node)
        return changes[-1].node if row is not None and report.feasible[row] else report.node

    def _shrink(
        self, change: SuggestedChange, kept: Sequence[SuggestedChange] = ()
    ) -> Generator[None, None, SuggestedChange]:
        """The change without the parts that are not needed. `kept`: other changes that are made with it."""
        for part in (*change.less, *change.tolerate, *change.drop):
            if change.parts < 2:
                break
            smaller = _drop_part(change, part)
            if node := self._node_for((*kept, smaller)):
                change = replace(smaller, node=node)
            yield
        return change


def missing_objects(pod: Pod, catalog: Catalog) -> Iterator[str]:
    """Objects that the pod names and the cluster does not have: claims, their volumes, the pod group."""
    for volume in pod.spec.volumes:
        name = claim_name(pod, volume)
        claim = catalog.persistent_volume_claims.get(f"{pod.namespace}/{name}") if name else None
        if name and claim is None:
            yield f"{CLAIM}/{name}"
        elif claim is not None and claim.spec.volume_name not in catalog.persistent_volumes:
            yield f"{VOLUME}/{name}"
    created = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for device in pod.spec.resource_claims:
        if f"{pod.namespace}/{device.resource_claim_name or created.get(device.name)}" not in catalog.resource_claims:
            yield f"{DEVICES}/{device.name}"
    group = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None
    if group and f"{pod.namespace}/{group}" not in catalog.pod_groups:
        yield f"{GROUP}/{group}"


def largest_change(pod: Pod, kind: str) -> SuggestedChange | None:
    """The largest change of a kind; None if the pod has no requirement of it."""
    if kind == TOLERATION:
        return SuggestedChange(kind=kind, tolerate=(ALL_ITEMS,))
    if kind == REQUESTS:
        lowest = lowest_requests(pod)
        less = {
            name: left for name, amount in filter_requests(pod).items() if (left := amount - lowest.get(name, 0)) > 0
        }
        return SuggestedChange(kind=kind, less=less) if less else None
    drop = tuple(map(port_text, host_ports(pod))) if kind == HOST_PORT else tuple(node_term_paths(pod))
    return SuggestedChange(kind=kind, drop=drop) if drop else None


def _apply_changes(pod: Pod, changes: Iterable[SuggestedChange]) -> Pod:
    for change in changes:
        pod = apply_change(pod, change)
    return pod


def _merge_changes(changes: Iterable[SuggestedChange]) -> list[SuggestedChange]:
    """One change for each kind. Terms about pods and nodes are of one kind, and indexes in a list must not shift."""
    merged: dict[str, SuggestedChange] = {}
    for change in changes:
        known = merged.get(change.kind)
        merged[change.kind] = change if known is None else replace(change, drop=(*known.drop, *change.drop))
    return list(merged.values())


def _subsets(parts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Subsets of the parts, the smallest first. If there are many parts: single parts, and all of them."""
    sizes = range(1, len(parts) + 1) if len(parts) <= _MAX_PARTS_TO_COMBINE else (1, len(parts))
    for size in sizes:
        yield from combinations(parts, size)


def _drop_part(change: SuggestedChange, part: str) -> SuggestedChange:
    return replace(
        change,
        less={name: by for name, by in change.less.items() if name != part},
        tolerate=tuple(each for each in change.tolerate if each != part),
        drop=tuple(each for each in change.drop if each != part),
    )
