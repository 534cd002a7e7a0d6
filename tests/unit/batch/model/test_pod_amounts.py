from __future__ import annotations

import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.pod_amounts import pod_amounts
from bayplan.codec.quantity import QuantityText
from bayplan.objects.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from bayplan.objects.meta import Condition, ResourceList

GPU = "nvidia.com/gpu"


def requirements(requests: ResourceList) -> ResourceRequirements:
    return ResourceRequirements(requests=requests)


def container(cpu: QuantityText, *, name: str = "", sidecar: bool = False, **other_requests: QuantityText) -> Container:
    return Container(
        name=name, resources=requirements({"cpu": cpu, **other_requests}), restart_policy="Always" if sidecar else None
    )


def pod(
    *containers: Container,
    init: tuple[Container, ...] = (),
    level: ResourceList | None = None,
    overhead: ResourceList | None = None,
    status: PodStatus | None = None,
) -> Pod:
    whole = None if level is None else requirements(level)
    spec = PodSpec(containers=containers, init_containers=init, resources=whole, overhead=overhead or {})
    return Pod(spec=spec, status=status or PodStatus())


def resized(actual: QuantityText, allocated: QuantityText, *, infeasible: bool = False) -> PodStatus:
    containers = ContainerStatus(
        name="main", resources=requirements({"cpu": actual}), allocated_resources={"cpu": allocated}
    )
    pending = Condition(type="PodResizePending", reason="Infeasible" if infeasible else "Deferred")
    return PodStatus(container_statuses=(containers,), conditions=(pending,))


@pytest.mark.parametrize(
    ("case", "milli_cpu"),
    [
        pytest.param(pod(), 0, id="no-containers"),
        pytest.param(pod(container("1"), container("500m")), 1500, id="containers-add-up"),
        pytest.param(pod(container("0.5m"), container("0.5m")), 2, id="each-container-is-rounded-up"),
        pytest.param(pod(container("1"), init=(container("3"), container("2"))), 3000, id="the-largest-init-container"),
        pytest.param(pod(container("1"), init=(container("2", sidecar=True),)), 3000, id="sidecars-add-up"),
        pytest.param(
            pod(container("1"), init=(container("2", sidecar=True), container("3"))),
            5000,
            id="an-init-container-beside-sidecars",
        ),
        pytest.param(
            pod(container("1"), init=(container("3"), container("2", sidecar=True))),
            3000,
            id="a-sidecar-that-starts-later",
        ),
        pytest.param(pod(container("1"), level={"cpu": "4"}), 4000, id="the-pod-as-a-whole"),
        pytest.param(pod(container("1"), level={"memory": "4"}), 1000, id="the-pod-as-a-whole-names-memory"),
        pytest.param(pod(container("1"), level={"cpu": "4"}, overhead={"cpu": "1"}), 5000, id="overhead-on-top"),
        pytest.param(pod(container("1", name="main"), status=resized("2", "3")), 3000, id="resize-in-progress"),
        pytest.param(pod(container("4", name="main"), status=resized("2", "3")), 4000, id="resize-deferred"),
        pytest.param(
            pod(container("4", name="main"), status=resized("2", "1", infeasible=True)), 2000, id="infeasible"
        ),
    ],
)
def test_cpu_of_a_pod(case: Pod, milli_cpu: float) -> None:
    assert pod_amounts(case).milli_cpu == milli_cpu


def test_every_task_requests_one_of_pods() -> None:
    assert pod_amounts(pod()) == Amounts(scalars={"pods": 1.0})


def test_pod_level_hugepages_are_scalars() -> None:
    whole = pod_amounts(pod(container("1"), level={"hugepages-2Mi": "2Mi", GPU: 3}))
    assert whole.scalars == {"pods": 1.0, "hugepages-2Mi": 2097152000.0}


def test_cached_amounts_are_not_shared() -> None:
    first = pod_amounts(pod(container("1")))
    first.add(first.clone())
    assert pod_amounts(pod(container("1"))).milli_cpu == 1000
