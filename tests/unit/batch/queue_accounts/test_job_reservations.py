from __future__ import annotations

import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.queue_accounts.job_reservations import insufficient_message, reserved_resources
from bayplan.objects.core import Pod
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import PodGroup
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session

GPU = "nvidia.com/gpu"
RUNNING = make_member("a", node="n", requests={"cpu": "1", GPU: 1})


def group_with_minimum(phase: str, min_resources: ResourceList | None, min_member: int = 1) -> PodGroup:
    return make_group(phase=phase, min_resources=min_resources, min_member=min_member)


@pytest.mark.parametrize(
    ("group", "pods", "expected"),
    [
        pytest.param(group_with_minimum("Inqueue", {"cpu": "3"}), [], Amounts(3000), id="let-in"),
        pytest.param(group_with_minimum("Pending", {"cpu": "3"}), [], Amounts(), id="not-let-in"),
        pytest.param(group_with_minimum("Inqueue", None), [], Amounts(), id="says-no-minimum"),
        pytest.param(
            group_with_minimum("Inqueue", {"cpu": "3"}),
            [make_member("g", gates=["x"])],
            Amounts(2000),
            id="gated-tasks-left-out",
        ),
        pytest.param(
            group_with_minimum("Running", {"cpu": "3", "memory": 5}), [RUNNING], Amounts(2000, 5), id="running"
        ),
        pytest.param(group_with_minimum("Running", {"cpu": "500m"}), [RUNNING], Amounts(), id="running-with-enough"),
        pytest.param(group_with_minimum("Running", {"cpu": "3"}, 2), [RUNNING], Amounts(), id="most-of-it-has-ended"),
        pytest.param(
            group_with_minimum("Running", {GPU: 3, "x.io/y": 0, "pods": 3}),
            [RUNNING],
            Amounts(scalars={GPU: 2000.0, "x.io/y": 0.0, "pods": 2.0}),
            id="scalars",
        ),
        pytest.param(
            group_with_minimum("Running", {GPU: 1, "pods": 1}), [RUNNING], Amounts(), id="enough-scalars-are-not-named"
        ),
        pytest.param(
            group_with_minimum("Running", {"ephemeral-storage": 5}),
            [RUNNING],
            Amounts(),
            id="ephemeral-storage-forgotten",
        ),
    ],
)
def test_reserved_resources_of_a_job(group: PodGroup, pods: list[Pod], expected: Amounts) -> None:
    with open_session(nodes=[make_node("n")], pods=pods, objects=[group]) as session:
        assert reserved_resources(session.jobs["default/job"]) == expected


def test_insufficient_message() -> None:
    assert insufficient_message("queue full", "insufficient", []) == "queue full"
    assert (
        insufficient_message("queue full", "insufficient", ["a", "b"]) == "queue full: insufficient a, insufficient b"
    )
