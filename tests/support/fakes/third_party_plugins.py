"""Third-party plugins as users write them: with complete, partial or no traits, and some that fail.

Their results depend on the pod and the cluster alone, so that two engines with the same history can be compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.framework import (
    SKIP,
    Cycle,
    NodeInfo,
    NodeTable,
    PluginTraits,
    PreFilterResult,
    Rejection,
    StateKey,
    Status,
    default_normalize,
    pending,
    row_local,
    unresolvable,
    unschedulable,
)
from bayplan.objects.core import Pod
from bayplan.snapshot import IntVector


def pod_number(pod: Pod) -> int:
    """Pods are named p1, p2 …; only these plugins read the number."""
    return int(pod.name[1:])


# without a signature


class FilterByPodName:
    """A per-node filter by the name of the pod, which no other plugin reads."""

    name = "Picky"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        if (len(cycle.pod.name) + len(node.pods)) % 3 == 0 and node.name.endswith("1"):
            return unschedulable("not today")
        return None


class PreFilterByPodName:
    """A filter over all nodes with PreFilter and PreScore, again by the name of the pod."""

    name = "Moody"
    MOOD: StateKey[int] = StateKey("Mood")

    def pre_filter(self, cycle: Cycle) -> None:
        cycle.put(self.MOOD, pod_number(cycle.pod) % 5)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(nodes.pod_count % 5 == cycle.get(self.MOOD), "bad mood", resolvable=False)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return None if cycle.get(self.MOOD) else SKIP

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return nodes.pod_count * cycle.get(self.MOOD) + len(nodes)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return np.minimum(scores - scores.min(), 100)


# with a signature, and complete or few other traits


class SignatureOnly:
    """A signature and no other trait: the framework calls it for every row each time."""

    name = "Plain"

    def signature(self, pod: Pod) -> Hashable:
        return pod.namespace

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        crowded = cycle.pod.namespace == "ml" and len(cycle.snapshot.nodes.pods[0]) > 3 and node.row == 1
        return unschedulable("the first node is full") if crowded else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        return np.full(len(nodes), len(cycle.snapshot.nodes.pods[0]) % 100)


class ManyReasons:
    """A per-node filter; its reasons, their order and their number depend on the pods on the node."""

    name = "Wordy"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:
        return None if pod_number(pod) % 7 == 0 else pod.labels.get("app")

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        count = len(node.pods) + (cycle.pod.labels.get("app") == "a1")
        if count % 4 == 3:
            return unschedulable("crowded", f"has {count}")
        if count % 5 == 4:
            return unresolvable(f"has {count}", "crowded", "crowded")
        return pending("threes wait") if count == 9 else None


class InPlaceNormalize:
    """Both forms, and a normalize that works in place."""

    name = "InPlace"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:
        return pod.labels.get("app")

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        for count in (6, 5):
            mask = nodes.pod_count == count + (cycle.pod.namespace == "never")
            if mask.any():
                yield Rejection(mask, f"{count} is no good number")

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:  # noqa: ARG002
        count = len(node.pods)
        return unschedulable(f"{count} is no good number") if count in (5, 6) else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return (nodes.pod_count * 13) % 301

    def score(self, cycle: Cycle, node: NodeInfo) -> int:  # noqa: ARG002
        return (len(node.pods) * 13) % 301

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        scores -= scores.min()
        np.minimum(scores, 100, out=scores)
        return scores


class ComparesCandidates:
    """Scores that depend on the set of candidates; it skips small sets."""

    name = "Compares"
    traits = PluginTraits(depends_on=lambda _plugin, cycle: len(cycle.snapshot.nodes.pods[0]), compares_candidates=True)

    def signature(self, pod: Pod) -> Hashable:
        return pod.labels.get("app")

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return SKIP if len(nodes) < 4 else None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        first = len(cycle.snapshot.nodes.pods[0])
        return np.clip(nodes.pod_count - nodes.pod_count.min() + len(nodes) + first, 0, 100)

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        return default_normalize(scores, reverse=True)


class ScoresSomeCandidates:
    """Compares candidates, and scores some sets of them only: those of odd size, and those with a node that has two
    pods.
    """

    name = "Reticent"
    traits = PluginTraits(depends_on=row_local, compares_candidates=True)

    def signature(self, pod: Pod) -> Hashable:
        return pod.labels.get("app")

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        return None if len(nodes) % 2 or (nodes.pod_count == 2).any() else SKIP

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return np.where(nodes.where_label_in("disk", ["ssd"]), 100, nodes.pod_count % 100)


class NarrowsNodes:
    """Narrows every ninth pod to three nodes, and rejects some pods."""

    name = "Narrows"

    def pre_filter(self, cycle: Cycle) -> PreFilterResult | Status | None:
        number = pod_number(cycle.pod)
        if number % 31 == 0:
            return unresolvable("unlucky number")
        names = cycle.snapshot.nodes.names
        return PreFilterResult(frozenset(names[number % len(names) :][:3])) if number % 9 == 0 else None


class FailsReserve:
    """Fails Reserve now and then."""

    name = "Refuses"

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        return unschedulable(f"{node_name} is taken") if pod_number(cycle.pod) % 6 == 0 else None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        pass


# with errors


class FailsForSomePods:
    """Fails for some pods at some nodes, at every extension point in turn: no other pod may be affected."""

    name = "Brittle"

    def signature(self, pod: Pod) -> Hashable:
        if pod_number(pod) % 29 == 0:
            raise KeyError("no signature")
        return pod.labels.get("app")

    def crowds(self, cycle: Cycle) -> Hashable:
        first, last = (len(cycle.snapshot.nodes.pods[row]) for row in (0, -1))
        if first == 4 and last > 1:
            raise ValueError("four on the first node")
        return first, last

    traits = PluginTraits(depends_on=crowds)

    def pre_filter(self, cycle: Cycle) -> None:
        if len(cycle.snapshot.nodes.pods[-1]) == 3 and cycle.pod.labels.get("app") == "a1":
            raise RuntimeError("three on the last node")

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        yield Rejection(nodes.pod_count == 7, "seven")
        if (nodes.pod_count == 2 + len(cycle.snapshot)).any():
            raise IndexError("more pods than nodes")

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return nodes.pod_count * 20

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        if scores.max() == 80 and cycle.pod.labels.get("app") == "a0":
            raise ArithmeticError("eighty")
        return np.minimum(scores, 101)


THIRD_PARTY_PLUGINS = (
    FilterByPodName,
    PreFilterByPodName,
    SignatureOnly,
    ManyReasons,
    InPlaceNormalize,
    ComparesCandidates,
    ScoresSomeCandidates,
    NarrowsNodes,
    FailsReserve,
    FailsForSomePods,
)
