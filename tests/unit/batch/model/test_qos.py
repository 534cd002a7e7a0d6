from __future__ import annotations

import pytest

from bayplan.batch.model.qos import Qos, qos_of
from bayplan.objects.core import Container, Pod, PodSpec, ResourceRequirements
from bayplan.objects.meta import ResourceList

BOTH: ResourceList = {"cpu": "1", "memory": "1Gi"}


def container(requests: ResourceList, limits: ResourceList) -> Container:
    return Container(resources=ResourceRequirements(requests=requests, limits=limits))


def pod(*containers: Container, init: tuple[Container, ...] = (), whole: ResourceRequirements | None = None) -> Pod:
    return Pod(spec=PodSpec(containers=containers, init_containers=init, resources=whole))


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param(pod(container({}, {})), Qos.BEST_EFFORT, id="asks-for-nothing"),
        pytest.param(pod(container({"cpu": "0"}, {"cpu": "0"})), Qos.BEST_EFFORT, id="zeros-do-not-count"),
        pytest.param(
            pod(container({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1})), Qos.BEST_EFFORT, id="other-resources"
        ),
        pytest.param(pod(container({"cpu": "1"}, {})), Qos.BURSTABLE, id="no-limits"),
        pytest.param(pod(container(BOTH, BOTH)), Qos.GUARANTEED, id="limits-of-both"),
        pytest.param(pod(container({"cpu": "1000m", "memory": "1Gi"}, BOTH)), Qos.GUARANTEED, id="written-differently"),
        pytest.param(pod(container(BOTH, {**BOTH, "cpu": "2"})), Qos.BURSTABLE, id="other-limits"),
        pytest.param(pod(container({"cpu": "1"}, {"cpu": "1"})), Qos.BURSTABLE, id="cpu-alone"),
        pytest.param(pod(container({}, BOTH)), Qos.BURSTABLE, id="limits-without-requests"),
        pytest.param(pod(container(BOTH, BOTH), container({}, {})), Qos.BURSTABLE, id="every-container"),
        pytest.param(pod(container(BOTH, BOTH), init=(container({}, {}),)), Qos.BURSTABLE, id="init-containers-too"),
        pytest.param(
            pod(container({}, {}), whole=ResourceRequirements(requests=BOTH, limits=BOTH)),
            Qos.GUARANTEED,
            id="as-a-whole",
        ),
        pytest.param(
            pod(container(BOTH, BOTH), whole=ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "1"})),
            Qos.BURSTABLE,
            id="what-is-said-as-a-whole-counts-alone",
        ),
        pytest.param(pod(container(BOTH, BOTH), whole=ResourceRequirements()), Qos.BEST_EFFORT, id="an-empty-whole"),
    ],
)
def test_classes(subject: Pod, expected: Qos) -> None:
    assert qos_of(subject) is expected


def test_best_effort_is_first_in_eviction_order() -> None:
    assert sorted(Qos) == [Qos.BEST_EFFORT, Qos.BURSTABLE, Qos.GUARANTEED]
