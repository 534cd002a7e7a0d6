"""Which one change would make a pending pod fit? The smallest of each kind, tried out; and where no single one does,
the fewest together.

Asked by whoever explains why a pod waits. Nothing is guessed: whatever is suggested was put to the filters, on the
cluster of that moment, and they found a node. The search is a generator that yields between two looks, so that a loop
has its turn; the cluster may move on meanwhile, and then each look sees the newer one.

A kind is given up at once where the pod fits nowhere even if it asks for nothing of that kind. Spread constraints count
nodes that a pod tolerates and selects, so that a pod which tolerates more may fit less: with them the changes that
nodes ask for are tried one by one, and where they are few all of their combinations. Cost: some ten to fifty looks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec.structs import replace

from bayplan.explain.change_text import words_for
from bayplan.explain.eviction_search import cheapest_eviction
from bayplan.explain.node_shortfalls import RowNeeds
from bayplan.explain.what_if import Effort, WhatIf
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import (
    CLAIM,
    DEVICES,
    EVERYTHING,
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
    Change,
    applied,
    claim_of,
    lowest_requests,
    node_terms,
    pod_terms,
    port_text,
    spread_terms,
)
from bayplan.objects.ports import host_ports
from bayplan.objects.resources import filter_requests
from bayplan.snapshot import Catalog

_ROWS_A_TURN = 256
_MOST_TRIED = 16
"""So many different changes of one kind are tried, the smallest first; rows that differ no more say nothing new."""
_FEW_PARTS = 6
"""Of so many parts all combinations are tried."""

BY_ROW = (TOLERATION, HOST_PORT, SELECTOR, REQUESTS)
"""Kinds of which every node may want something else."""

Steps = Generator[None, None, Change | None]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What helps. `alone`: changes each of which is enough, the smallest first; `together`: where there is none,
    changes that are enough together; `fits`: the node that takes the pod as it is."""

    alone: tuple[Change, ...] = ()
    together: tuple[Change, ...] = ()
    fits: str = ""
    cut_short: bool = False
    """Whether there was more to try than was tried."""

    @property
    def closest(self) -> str:
        """The node for which the least has to change; empty where nothing helps."""
        first = next(iter((*self.alone, *self.together)), None)
        return self.fits or (first.node if first is not None else "")


def suggesting(what_if: WhatIf, pod: Pod) -> Generator[None, None, Suggestions]:
    """Look for changes."""
    look = what_if.look(pod)
    fits = look.node if look.gate.ok else ""
    yield
    if fits:
        return Suggestions(fits=fits)
    search = _Search(what_if, pod)
    alone: list[Change] = []
    for kind in KINDS:
        found = yield from search.one(kind)
        if found is not None:
            alone.append(replace(found, text=words_for(pod, found)))
    if alone:
        return Suggestions(alone=tuple(sorted(alone, key=lambda change: (change.kind == EVICTION, change.parts))))
    together = yield from search.together()
    return Suggestions(
        together=tuple(replace(each, text=words_for(pod, each)) for each in together),
        cut_short=search.effort.cut_short,
    )


class _Search:
    """One pod's search. Rows are named between two looks: the cluster may have moved on."""

    def __init__(self, what_if: WhatIf, pod: Pod) -> None:
        self._what_if = what_if
        self._pod = pod
        self._counts_nodes = bool(spread_terms(pod))
        self.effort = Effort()

    def one(self, kind: str) -> Steps:
        """The smallest change of a kind that is enough."""
        if kind == EVICTION:
            return (yield from cheapest_eviction(self._what_if, self._pod, self.effort))
        if kind == SELECTOR:
            return (yield from self._selector())
        if kind in BY_ROW:
            return (yield from self._by_row(kind))
        for some in _subsets(self._parts(kind)):
            found = self._tried(Change(kind=kind, drop=some))
            yield
            if found is not None:
                return found
        return None

    def _parts(self, kind: str) -> tuple[str, ...]:
        """What the pod has of a kind that is the same for every node."""
        if kind == GATE:
            return tuple(gate.name for gate in self._pod.spec.scheduling_gates)
        if kind == SPREAD:
            return tuple(spread_terms(self._pod))
        return tuple(missing_objects(self._pod, self._what_if.catalog)) if kind == MISSING else ()

    def _selector(self) -> Steps:
        """Terms about other pods are the same for every node, those about nodes are not: both may have to go."""
        for some in ((), *_subsets(pod_terms(self._pod))):
            dropped = Change(kind=SELECTOR, drop=some)
            found = self._tried(dropped) if some else None
            yield
            if found is None:
                found = yield from self._by_row(SELECTOR, dropped)
            if found is not None:
                return found
        return None

    # kinds of which every node wants something else --------------------------------------------------------------

    def _by_row(self, kind: str, besides: Change | None = None) -> Steps:
        """`besides`: of the same kind, and made in any case."""
        pod = self._pod if besides is None else applied(self._pod, besides)
        all_of_it = everything(pod, kind)
        if all_of_it is None:
            return None
        look = self._what_if.look(applied(pod, all_of_it))
        judges_nodes = self._counts_nodes and kind in (TOLERATION, SELECTOR)
        names = list(look.diagnosis.names) if judges_nodes else look.nodes
        yield
        if not names or not self._what_if.gate(pod).ok:  # one that asks for nothing may not be let in for that reason
            return None
        wanted = yield from self._wanted(pod, kind, names)
        parts = () if besides is None else besides.drop
        for change in wanted[:_MOST_TRIED]:
            found = self._tried(replace(change, drop=(*parts, *change.drop)))
            yield
            if found is not None:
                return (yield from self._shrunk(found))
        if len(wanted) > _MOST_TRIED:
            self.effort.cut_short = True
        return (yield from self._combined(kind, wanted, parts)) if judges_nodes else None

    def _wanted(self, pod: Pod, kind: str, names: Sequence[str]) -> Generator[None, None, list[Change]]:
        """The different changes that nodes want, the smallest first."""
        needs = RowNeeds(self._what_if.look(pod), self._what_if.filters, self._what_if.shortages)
        found: dict[object, Change] = {}
        for start in range(0, len(names), _ROWS_A_TURN):
            for name in names[start : start + _ROWS_A_TURN]:
                change = needs.change(kind, name)
                if change is not None:
                    found.setdefault((change.tolerate, change.drop, tuple(change.less.items())), change)
            yield
        return sorted(found.values(), key=lambda change: (change.parts, needs.share(change)))

    def _combined(self, kind: str, wanted: Iterable[Change], besides: tuple[str, ...]) -> Steps:
        """What several rows want, at once: a pod that counts more nodes may fit where one with fewer does not."""
        parts = tuple(dict.fromkeys(part for change in wanted for part in (*change.tolerate, *change.drop)))
        if len(parts) > _FEW_PARTS:
            self.effort.cut_short = True
            return None
        for some in _subsets(parts):
            taints, terms = (some, ()) if kind == TOLERATION else ((), (*besides, *some))
            found = self._tried(Change(kind=kind, tolerate=taints, drop=terms))
            yield
            if found is not None:
                return found
        return None

    # several kinds -----------------------------------------------------------------------------------------------

    def together(self) -> Generator[None, None, tuple[Change, ...]]:
        """Few changes of several kinds that are enough, for the node that wants the fewest; none where even all of
        them do not help."""
        shared = [Change(kind=kind, drop=parts) for kind in (GATE, MISSING, SPREAD) if (parts := self._parts(kind))]
        if terms := pod_terms(self._pod):
            shared.append(Change(kind=SELECTOR, drop=tuple(terms)))
        eased = _with_all(self._pod, shared)
        look = self._what_if.look(
            _with_all(eased, (each for kind in BY_ROW if (each := everything(eased, kind)) is not None))
        )
        names = look.nodes if self._what_if.gate(eased).ok else []
        yield
        asked = yield from self._asked(eased, names)
        for changes in asked[:_FEW_PARTS]:
            merged = _merged([*shared, *changes])
            node = self._node_for(merged)
            yield
            if node:
                return (yield from self._fewer(merged))
        if len(asked) > _FEW_PARTS:
            self.effort.cut_short = True
        return ()

    def _asked(self, pod: Pod, names: Sequence[str]) -> Generator[None, None, list[list[Change]]]:
        """What each node wants, of all kinds, the node that wants the fewest first."""
        needs = RowNeeds(self._what_if.look(pod), self._what_if.filters, self._what_if.shortages)
        found: list[tuple[tuple[int, int, float], list[Change]]] = []
        for start in range(0, len(names), _ROWS_A_TURN):
            for name in names[start : start + _ROWS_A_TURN]:
                asked = [change for kind in BY_ROW if (change := needs.change(kind, name)) is not None]
                size = len(asked), sum(each.parts for each in asked), sum(map(needs.share, asked))
                found.append((size, asked))
            yield
        return [asked for _, asked in sorted(found, key=lambda each: each[0])]

    def _fewer(self, changes: list[Change]) -> Generator[None, None, tuple[Change, ...]]:
        """The same without whatever is not needed: whole changes first, then parts of them."""
        for change in list(changes):
            left = [each for each in changes if each is not change]
            if left and self._node_for(left):
                changes = left
            yield
        for number in range(len(changes)):
            smaller = yield from self._shrunk(changes[number], [*changes[:number], *changes[number + 1 :]])
            changes[number] = smaller
        node = self._node_for(changes)
        return tuple(replace(change, node=node) for change in changes)

    # trying ------------------------------------------------------------------------------------------------------

    def _tried(self, change: Change) -> Change | None:
        """The change with the node that takes the pod then; None where none does."""
        node = self._node_for((change,))
        return replace(change, node=node) if node else None

    def _node_for(self, changes: Sequence[Change]) -> str:
        """A node for the pod with these changes made: the one that they were meant for, if it is one."""
        look = self._what_if.look(_with_all(self._pod, changes))
        if not look.fits:
            return ""
        row = look.cycle.snapshot.nodes.index.get(changes[-1].node)
        return changes[-1].node if row is not None and look.feasible[row] else look.node

    def _shrunk(self, change: Change, others: Sequence[Change] = ()) -> Generator[None, None, Change]:
        """The same change without the parts that are not needed."""
        for part in (*change.less, *change.tolerate, *change.drop):
            if change.parts < 2:
                break
            smaller = _without(change, part)
            if node := self._node_for((*others, smaller)):
                change = replace(smaller, node=node)
            yield
        return change


def missing_objects(pod: Pod, catalog: Catalog) -> Iterator[str]:
    """What the pod names, and the cluster does not have: claims, volumes that claims wait for, its group."""
    for volume in pod.spec.volumes:
        name = claim_of(pod, volume)
        claim = catalog.persistent_volume_claims.get(f"{pod.namespace}/{name}") if name else None
        if name and claim is None:
            yield f"{CLAIM}/{name}"
        elif claim is not None and claim.spec.volume_name not in catalog.persistent_volumes:
            yield f"{VOLUME}/{name}"
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for device in pod.spec.resource_claims:
        if f"{pod.namespace}/{device.resource_claim_name or made.get(device.name)}" not in catalog.resource_claims:
            yield f"{DEVICES}/{device.name}"
    group = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None
    if group and f"{pod.namespace}/{group}" not in catalog.pod_groups:
        yield f"{GROUP}/{group}"


def everything(pod: Pod, kind: str) -> Change | None:
    """The largest change of a kind; None where the pod asks for nothing of it."""
    if kind == TOLERATION:
        return Change(kind=kind, tolerate=(EVERYTHING,))
    if kind == REQUESTS:
        lowest = lowest_requests(pod)
        less = {
            name: left for name, amount in filter_requests(pod).items() if (left := amount - lowest.get(name, 0)) > 0
        }
        return Change(kind=kind, less=less) if less else None
    drop = tuple(map(port_text, host_ports(pod))) if kind == HOST_PORT else tuple(node_terms(pod))
    return Change(kind=kind, drop=drop) if drop else None


def _with_all(pod: Pod, changes: Iterable[Change]) -> Pod:
    for change in changes:
        pod = applied(pod, change)
    return pod


def _merged(changes: Iterable[Change]) -> list[Change]:
    """One change a kind: terms about pods and about nodes are of one kind, and places in a list must not shift."""
    merged: dict[str, Change] = {}
    for change in changes:
        known = merged.get(change.kind)
        merged[change.kind] = change if known is None else replace(change, drop=(*known.drop, *change.drop))
    return list(merged.values())


def _subsets(parts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Some of the parts, the fewest first; of many only one at a time, and all."""
    sizes = range(1, len(parts) + 1) if len(parts) <= _FEW_PARTS else (1, len(parts))
    for size in sizes:
        yield from combinations(parts, size)


def _without(change: Change, part: str) -> Change:
    return replace(
        change,
        less={name: by for name, by in change.less.items() if name != part},
        tolerate=tuple(each for each in change.tolerate if each != part),
        drop=tuple(each for each in change.drop if each != part),
    )
