"""Naive twin of InterPodAffinity, one node and one pod at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from bayplan.objects.core import Affinity, Namespace, Node, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from bayplan.objects.selectors.label_selectors import compile_label_selector
from bayplan.plugins.inter_pod_affinity.args import InterPodAffinityArgs
from bayplan.plugins.inter_pod_affinity.plugin import InterPodAffinity
from naive.twin import Case, Cluster, Twin, fits_unless
from support.builders.framework import FilterResult, make_node, make_pod, rejected, unresolvable

ZONE = "zone"
EMPTY = PodAffinity()

# terms


def near(pod: Pod) -> PodAffinity:
    return (pod.spec.affinity.pod_affinity if pod.spec.affinity else None) or EMPTY


def far(pod: Pod) -> PodAffinity:
    return (pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None) or EMPTY


def labels_of(case: Case, namespace: str) -> Mapping[str, str]:
    found = [each.metadata.labels for each in case.cluster.of(Namespace) if each.name == namespace]
    return found[0] if found else {}


def means(case: Case, term: PodAffinityTerm, holder: Pod, other: Pod, *, incoming: bool) -> bool:
    """Whether the holder's term matches the other pod. The incoming pod's namespace selector is resolved first."""
    if not compile_label_selector(term.label_selector).matches(other.labels):
        return False
    names = set(term.namespaces)
    if not names and term.namespace_selector is None:
        names = {holder.namespace}
    if other.namespace in names:
        return True
    selector = compile_label_selector(term.namespace_selector)
    if not incoming:
        return selector.matches(labels_of(case, other.namespace))
    resolved = [each.name for each in case.cluster.of(Namespace) if selector.matches(each.metadata.labels)]
    return other.namespace in resolved or selector.matches({})


def placed(case: Case) -> Iterator[tuple[Pod, Node]]:
    for node in case.cluster.nodes:
        for pod in case.cluster.pods_on(node):
            yield pod, node


def together(term: PodAffinityTerm, one: Node, other: Node) -> bool:
    key = term.topology_key
    return key in one.metadata.labels and one.metadata.labels[key] == other.metadata.labels.get(key)


# results


def judge(case: Case, node: Node) -> FilterResult:
    me = case.pod
    wanted, avoided = near(me).required, far(me).required
    liked = [
        (pod, where) for pod, where in placed(case) if all(means(case, term, me, pod, incoming=True) for term in wanted)
    ]
    keyed = all(term.topology_key in node.metadata.labels for term in wanted)
    # Terms with one key share their counts: a pod that is counted for one of them is counted for all.
    satisfied = all(any(together(term, where, node) for _, where in liked) for term in wanted)
    nobody = not any(term.topology_key in where.metadata.labels for _, where in liked for term in wanted)
    first_of_its_kind = nobody and all(means(case, term, me, me, incoming=True) for term in wanted)
    lonely = bool(wanted) and not (keyed and (satisfied or first_of_its_kind))
    crowded = any(
        together(term, where, node) and means(case, term, me, pod, incoming=True)
        for term in avoided
        for pod, where in placed(case)
    )
    unwelcome = any(
        together(term, where, node) and means(case, term, pod, me, incoming=False)
        for pod, where in placed(case)
        for term in far(pod).required
    )
    return fits_unless(
        (lonely, unresolvable("node(s) didn't match pod affinity rules")),
        (crowded, rejected("node(s) didn't match pod anti-affinity rules")),
        (unwelcome, rejected("node(s) didn't satisfy existing pods anti-affinity rules")),
    )


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int] | None:
    args = case.args or InterPodAffinityArgs()
    me = case.pod
    mine = [(each.weight, each.pod_affinity_term) for each in near(me).preferred]
    mine += [(-each.weight, each.pod_affinity_term) for each in far(me).preferred]
    if args.ignore_preferred_terms_of_existing_pods and not mine:
        return None
    liking: defaultdict[tuple[str, str], int] = defaultdict(int)
    for pod, where in placed(case):
        for weight, term in [
            *((weight, term) for weight, term in mine if means(case, term, me, pod, incoming=True)),
            *((weight, term) for weight, term in theirs(args, pod) if means(case, term, pod, me, incoming=False)),
        ]:
            if term.topology_key in where.metadata.labels:
                liking[term.topology_key, where.metadata.labels[term.topology_key]] += weight
    if not liking:
        return None
    raw = {node.name: sum(liking.get(pair, 0) for pair in node.metadata.labels.items()) for node in feasible}
    lowest, highest = min(raw.values()), max(raw.values())
    if lowest == highest:
        return dict.fromkeys(raw, 0)
    return {name: int(100.0 * ((score - lowest) / (highest - lowest))) for name, score in raw.items()}


def theirs(args: InterPodAffinityArgs, pod: Pod) -> Iterator[tuple[int, PodAffinityTerm]]:
    if args.hard_pod_affinity_weight:
        yield from ((args.hard_pod_affinity_weight, term) for term in near(pod).required)
    yield from ((each.weight, each.pod_affinity_term) for each in near(pod).preferred)
    yield from ((-each.weight, each.pod_affinity_term) for each in far(pod).preferred)


# random cases

APPS = st.sampled_from(({}, {"app": "web"}, {"app": "db"}, {"app": "web", "tier": "1"}))
NAMESPACES = st.sampled_from(("default", "default", "other", "unknown"))


def _expression(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=(LabelSelectorRequirement(key=key, operator=operator, values=values),))


SELECTORS = st.sampled_from(
    (
        None,
        LabelSelector(),
        LabelSelector(match_labels={"app": "web"}),
        LabelSelector(match_labels={"app": "web"}),
        LabelSelector(match_labels={"app": "db"}),
        _expression("tier", "DoesNotExist"),
    )
)
NAMESPACE_SELECTORS = st.sampled_from(
    (None, None, None, LabelSelector(), LabelSelector(match_labels={"team": "a"}), _expression("team", "NotIn", "a"))
)
TERMS = st.builds(
    PodAffinityTerm,
    topology_key=st.sampled_from((ZONE, "host", "rack")),
    label_selector=SELECTORS,
    namespaces=st.sampled_from(((), (), ("other",), ("default", "other"))),
    namespace_selector=NAMESPACE_SELECTORS,
)
WEIGHTED = st.builds(WeightedPodAffinityTerm, weight=st.sampled_from((1, 3, 29, 100)), pod_affinity_term=TERMS)


def _side(most: int) -> st.SearchStrategy[PodAffinity | None]:
    return st.none() | st.builds(
        PodAffinity,
        required=st.lists(TERMS, max_size=most).map(tuple),
        preferred=st.lists(WEIGHTED, max_size=most).map(tuple),
    )


AFFINITIES = st.none() | st.builds(Affinity, pod_affinity=_side(2), pod_anti_affinity=_side(2))
ARGS = st.none() | st.builds(
    InterPodAffinityArgs,
    hard_pod_affinity_weight=st.sampled_from((0, 1, 50)),
    ignore_preferred_terms_of_existing_pods=st.booleans(),
)
KNOWN = tuple(
    Namespace(metadata=ObjectMeta(name=name, labels=labels))
    for name, labels in (("default", {"team": "a"}), ("other", {"team": "b"}))
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes = tuple(draw(_node(f"n{number}")) for number in range(draw(st.integers(1, 4))))
    pods = tuple(
        draw(_pod(f"p{number}", f"n{draw(st.integers(0, len(nodes) - 1))}"))
        for number in range(draw(st.integers(0, 5)))
    )
    return Case(draw(_pod("incoming", "")), Cluster(nodes, pods, draw(st.sampled_from(((), KNOWN, KNOWN)))), draw(ARGS))


@st.composite
def _node(draw: st.DrawFn, name: str) -> Node:
    values = st.sampled_from(("a", "b"))
    labels: dict[str, Any] = {"host": name, ZONE: draw(values), "rack": draw(values)}
    for key in draw(st.sets(st.sampled_from(tuple(labels)), max_size=1)):
        del labels[key]
    return make_node(name, labels=labels)


@st.composite
def _pod(draw: st.DrawFn, name: str, node: str) -> Pod:
    return make_pod(
        name,
        namespace=draw(NAMESPACES),
        labels=draw(APPS),
        node=node,
        affinity=draw(AFFINITIES),
        terminating=bool(node) and draw(st.booleans()),
    )


TWIN = Twin(InterPodAffinity, cases(), judge, scores)
