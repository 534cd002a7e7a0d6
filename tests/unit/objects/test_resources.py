from __future__ import annotations

import pytest

from bayplan.codec.quantity import Quantity, QuantityError, QuantityText
from bayplan.objects.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from bayplan.objects.meta import Condition
from bayplan.objects.resources import (
    accounted_nonzero,
    accounted_requests,
    allocatable_amounts,
    amount_of,
    balanced_requests,
    filter_requests,
    fit_score_requests,
    has_pod_level_requests,
    is_accounted,
    is_dra_extended_resource_name,
    is_extended_resource_name,
    is_hugepages,
    is_native,
    is_pod_level,
    is_prefixed_native,
    is_scalar_resource,
    pod_requests,
)

Requests = dict[str, QuantityText]
MI = 2**20
GUESS_CPU, GUESS_MEMORY = 100, 200 * MI


def needs(**requests: QuantityText) -> ResourceRequirements:
    return ResourceRequirements(requests=requests)


def container(name: str = "", **requests: QuantityText) -> Container:
    return Container(name=name, resources=needs(**requests))


def sidecar(name: str = "", **requests: QuantityText) -> Container:
    return Container(name=name, resources=needs(**requests), restart_policy="Always")


def pod(
    *containers: Container,
    init: tuple[Container, ...] = (),
    level: ResourceRequirements | None = None,
    overhead: Requests | None = None,
    status: PodStatus | None = None,
) -> Pod:
    spec = PodSpec(containers=containers, init_containers=init, resources=level, overhead=overhead or {})
    return Pod(spec=spec, status=status or PodStatus())


@pytest.mark.parametrize(
    ("case", "cpu"),
    [
        pytest.param(pod(), 0, id="no-containers"),
        pytest.param(pod(container(cpu="1"), container(cpu="500m")), 1500, id="containers-add-up"),
        pytest.param(pod(container(cpu="1"), init=(container(cpu="3"), container(cpu="2"))), 3000, id="largest-init"),
        pytest.param(pod(container(cpu="4"), init=(container(cpu="3"),)), 4000, id="init-below-the-sum"),
        pytest.param(pod(container(cpu="1"), init=(sidecar(cpu="2"),)), 3000, id="sidecar-adds"),
        pytest.param(
            pod(container(cpu="1"), init=(sidecar(cpu="1"), container(cpu="5"))), 6000, id="init-after-a-sidecar"
        ),
        pytest.param(
            pod(container(cpu="1"), init=(container(cpu="5"), sidecar(cpu="1"))), 5000, id="init-before-a-sidecar"
        ),
        pytest.param(pod(container(cpu="0.1m"), container(cpu="0.1m")), 1, id="rounded-once-at-the-end"),
        pytest.param(pod(container(cpu="1"), overhead={"cpu": "250m"}), 1250, id="overhead"),
        pytest.param(pod(container(cpu="4"), level=needs(cpu="1")), 1000, id="pod-level-replaces"),
        pytest.param(
            pod(container(cpu="4"), level=needs(cpu="1"), overhead={"cpu": "1"}), 2000, id="overhead-on-pod-level"
        ),
        pytest.param(pod(container(cpu="4"), level=needs(memory="1")), 4000, id="pod-level-of-another-resource"),
        pytest.param(
            pod(container(cpu="4"), level=ResourceRequirements(limits={"cpu": "1"})), 4000, id="pod-level-limits"
        ),
        pytest.param(pod(container(cpu=2)), 2000, id="number"),
        pytest.param(pod(container(cpu=0.5)), 500, id="float"),
    ],
)
def test_the_filters_request(case: Pod, cpu: int) -> None:
    assert filter_requests(case).get("cpu", 0) == cpu
    assert accounted_requests(case).get("cpu", 0) == cpu


def test_unaccounted_names_are_left_out() -> None:
    case = pod(container(**{"cpu": "1", "pods": "3", "weird": "1", "x.io/gpu": "2", "hugepages-2Mi": "4Mi"}))
    expected = {"cpu": 1000, "x.io/gpu": 2, "hugepages-2Mi": 4 * MI}
    assert filter_requests(case) == accounted_requests(case) == expected
    assert balanced_requests(case) == {**expected, "pods": 3, "weird": 1}


def test_pod_level_requests_support_only_some_names() -> None:
    level = needs(**{"cpu": "1", "hugepages-2Mi": "8Mi", "ephemeral-storage": "9", "x.io/gpu": "9"})
    case = pod(container(**{"cpu": "4", "x.io/gpu": "2"}), level=level)
    assert filter_requests(case) == {"cpu": 1000, "x.io/gpu": 2, "hugepages-2Mi": 8 * MI}


def test_filter_requests_are_never_negative() -> None:
    case = pod(container(cpu="-1", memory="1"))
    assert filter_requests(case) == {"cpu": 0, "memory": 1}
    assert accounted_requests(case) == {"cpu": -1000, "memory": 1}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(pod(), (0, 0), id="no-containers"),
        pytest.param(pod(container()), (GUESS_CPU, GUESS_MEMORY), id="guess-for-both"),
        pytest.param(pod(container(cpu="1")), (1000, GUESS_MEMORY), id="guess-for-memory"),
        pytest.param(pod(container(cpu="0", memory="0")), (0, 0), id="an-explicit-zero-stays"),
        pytest.param(pod(container(), container(cpu="1")), (1100, 2 * GUESS_MEMORY), id="a-guess-each"),
        pytest.param(pod(container(cpu="50m"), init=(container(),)), (100, GUESS_MEMORY), id="init-containers-too"),
        pytest.param(
            pod(container(), level=needs(cpu="1", memory="1")), (1000, 1), id="pod-level-names-both-so-no-guess"
        ),
        pytest.param(pod(container(), level=needs(cpu="1")), (1000, GUESS_MEMORY), id="pod-level-names-one"),
        pytest.param(
            pod(container(memory="7"), container(), level=needs(cpu="1")), (1000, 7), id="a-container-names-the-other"
        ),
        pytest.param(
            pod(container(), level=needs(cpu="1"), overhead={"memory": "5"}), (1000, 5), id="overhead-names-the-other"
        ),
        pytest.param(
            pod(container(), level=needs(**{"x.io/gpu": "1"})), (GUESS_CPU, GUESS_MEMORY), id="pod-level-of-no-account"
        ),
    ],
)
def test_accounts_for_scores(case: Pod, expected: tuple[int, int]) -> None:
    assert accounted_nonzero(case) == expected


def test_the_fit_scorer_ignores_pod_level_requests_and_uses_defaults() -> None:
    case = pod(container(cpu="1"), container(**{"x.io/gpu": "1"}), level=needs(cpu="9", memory="9"))
    assert fit_score_requests(case) == {"cpu": 1100, "memory": 2 * GUESS_MEMORY, "x.io/gpu": 1}


def resizing(*statuses: ContainerStatus, init: tuple[ContainerStatus, ...] = (), reason: str = "") -> PodStatus:
    conditions = (Condition(type="Ready"), Condition(type="PodResizePending", reason=reason)) if reason else ()
    return PodStatus(container_statuses=statuses, init_container_statuses=init, conditions=conditions)


def runs(name: str, cpu: str | None, allocated: str | None = None) -> ContainerStatus:
    return ContainerStatus(
        name=name,
        resources=None if cpu is None else needs(cpu=cpu),
        allocated_resources=None if allocated is None else {"cpu": allocated},
    )


@pytest.mark.parametrize(
    ("case", "cpu"),
    [
        pytest.param(pod(container("a", cpu="1"), status=resizing(runs("a", "2"))), 2000, id="actual-is-larger"),
        pytest.param(pod(container("a", cpu="3"), status=resizing(runs("a", "2"))), 3000, id="spec-is-larger"),
        pytest.param(
            pod(container("a", cpu="1"), status=resizing(runs("a", "2", "4"))), 4000, id="allocated-is-larger"
        ),
        pytest.param(pod(container("a", cpu="1"), status=resizing(runs("a", None, "4"))), 1000, id="no-actual-no-look"),
        pytest.param(pod(container("a", cpu="1"), status=resizing(runs("b", "2"))), 1000, id="another-container"),
        pytest.param(
            pod(container("a", cpu="9"), status=resizing(runs("a", "2", "1"), reason="Infeasible")),
            2000,
            id="infeasible-resize-does-not-count",
        ),
        pytest.param(
            pod(container("a", cpu="9"), status=resizing(runs("a", "2"), reason="Deferred")), 9000, id="deferred-does"
        ),
        pytest.param(
            pod(container("a", cpu="1"), init=(sidecar("s", cpu="1"),), status=resizing(init=(runs("s", "3"),))),
            4000,
            id="sidecar",
        ),
        pytest.param(
            pod(container("a", cpu="1"), init=(container("i", cpu="1"),), status=resizing(init=(runs("i", "3"),))),
            1000,
            id="plain-init-containers-are-not-resized",
        ),
        pytest.param(
            pod(level=needs(cpu="1"), status=PodStatus(resources=needs(cpu="2"), allocated_resources={"cpu": "3"})),
            3000,
            id="pod-level",
        ),
        pytest.param(
            pod(level=needs(cpu="1"), status=PodStatus(allocated_resources={"cpu": "3"})),
            1000,
            id="pod-level-without-actual",
        ),
        pytest.param(
            pod(
                level=needs(cpu="1"),
                status=PodStatus(
                    resources=needs(memory="1"), conditions=(Condition(type="PodResizePending", reason="Infeasible"),)
                ),
            ),
            0,
            id="pod-level-infeasible-and-not-running",
        ),
    ],
)
def test_a_resize_counts_at_its_largest(case: Pod, cpu: int) -> None:
    assert accounted_requests(case)["cpu"] == cpu
    assert balanced_requests(case)["cpu"] == cpu
    assert accounted_nonzero(case)[0] == cpu


def test_the_incoming_pods_requests_ignore_a_resize() -> None:
    case = pod(container("a", cpu="1"), status=resizing(runs("a", "8", "8")))
    assert filter_requests(case)["cpu"] == fit_score_requests(case)["cpu"] == 1000


def test_exact_requests() -> None:
    case = pod(container(memory="1.5Gi"), container(memory="1n"), level=needs(cpu="1"), overhead={"cpu": "1m"})
    assert pod_requests(case) == {"memory": Quantity.parse("1610612736000000001n"), "cpu": Quantity.parse("1001m")}
    assert pod_requests(case, skip_pod_level=True)["cpu"] == Quantity.parse("1m")
    assert pod_requests(case, non_missing={"x.io/gpu": Quantity.of(3)})["x.io/gpu"] == Quantity.of(6)


@pytest.mark.parametrize(
    ("case", "memory"),
    [
        pytest.param(pod(container(memory="10E")), 0, id="narrow-overflow"),
        pytest.param(pod(container(memory="9223372036854775807"), container(memory="1")), -(2**63), id="sum-overflow"),
        pytest.param(pod(container(memory="8E"), container(memory="1E")), 9 * 10**18, id="large-but-fits"),
    ],
)
def test_overflows_are_upstreams(case: Pod, memory: int) -> None:
    assert accounted_requests(case)["memory"] == memory


def test_results_are_not_shared() -> None:
    case = pod(container(cpu="1"))
    accounted_requests(case)["cpu"] = 7
    assert accounted_requests(case) == {"cpu": 1000}


def test_an_invalid_quantity_is_refused() -> None:
    with pytest.raises(QuantityError):
        filter_requests(pod(container(cpu="one")))


def test_allocatable_amounts_of_a_node() -> None:
    offered: Requests = {"cpu": "3920m", "memory": "1Gi", "pods": "110", "x.io/gpu": 8, "weird": "1", "storage": "1Gi"}
    assert allocatable_amounts(offered) == {"cpu": 3920, "memory": 2**30, "pods": 110, "x.io/gpu": 8}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("cpu", "native accounted pod-level"),
        ("memory", "native accounted pod-level"),
        ("ephemeral-storage", "native accounted"),
        ("pods", "native"),
        ("weird", "native"),
        ("hugepages-2Mi", "native scalar accounted pod-level hugepages"),
        ("attachable-volumes-aws-ebs", "native scalar accounted"),
        ("nvidia.com/gpu", "extended scalar accounted dra"),
        ("kubernetes.io/x", "native prefixed scalar accounted"),
        ("node.kubernetes.io/x", "native prefixed scalar accounted"),
        ("deviceclass.resource.kubernetes.io/gpu", "native prefixed scalar accounted dra"),
        ("requests.nvidia.com/gpu", ""),
        ("nvidia.com/", ""),
        ("a/b/c", ""),
        ("Bad.com/gpu", ""),
        (f"x.io/{'g' * 63}", "extended scalar accounted dra"),
        (f"x.io/{'g' * 64}", ""),
    ],
)
def test_kinds_of_names(name: str, kinds: str) -> None:
    found = {
        "native": is_native(name),
        "prefixed": is_prefixed_native(name),
        "extended": is_extended_resource_name(name),
        "scalar": is_scalar_resource(name),
        "accounted": is_accounted(name),
        "pod-level": is_pod_level(name),
        "hugepages": is_hugepages(name),
        "dra": is_dra_extended_resource_name(name),
    }
    assert {kind for kind, yes in found.items() if yes} == set(kinds.split())


def test_amounts_and_levels() -> None:
    assert amount_of("cpu", Quantity.parse("1.0001")) == 1001
    assert amount_of("memory", Quantity.parse("1.0001")) == 2
    assert has_pod_level_requests(pod(level=needs(cpu="1")))
    assert not has_pod_level_requests(pod(level=needs(**{"x.io/gpu": "1"})))
    assert not has_pod_level_requests(pod())
