"""Balance between resources."""

from __future__ import annotations

import pytest

from bayplan.objects.core import Pod, ResourceRequirements
from bayplan.objects.meta import ResourceList
from bayplan.objects.resource import DeviceClass
from bayplan.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from bayplan.plugins.node_resources.balanced_allocation_args import NodeResourcesBalancedAllocationArgs
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from bayplan.snapshot import Catalog
from support.builders.framework import (
    FakeHandle,
    from_api,
    make_cycle,
    make_node,
    make_plugin,
    make_pod,
    make_scoring,
    make_snapshot,
    run_score,
)

GPU = "example.com/gpu"
NODE: ResourceList = {"cpu": "10", "memory": "1000", "ephemeral-storage": "100", GPU: "4", "pods": "10"}


def between(*names: str) -> NodeResourcesBalancedAllocationArgs:
    return NodeResourcesBalancedAllocationArgs(tuple(ResourceSpec(name, 1) for name in names))


DEFAULT = between("cpu", "memory")


def balance(
    pod: Pod, *pods: Pod, args: NodeResourcesBalancedAllocationArgs = DEFAULT, node: ResourceList = NODE
) -> int | None:
    found = run_score(NodeResourcesBalancedAllocation, pod, make_node("a", allocatable=node), pods=pods, args=args)
    return found.get("a")


def there(**requests: str) -> Pod:
    return make_pod("there", node="a", requests=dict(requests))


@pytest.mark.parametrize(
    ("pod", "pods", "expected"),
    [
        pytest.param(make_pod(requests={"cpu": "5", "memory": "500"}), [], 75, id="even before and after"),
        pytest.param(make_pod(requests={"cpu": "10"}), [], 50, id="as uneven as can be: 100 to 50"),
        pytest.param(make_pod(requests={"memory": "1000"}), [there(cpu="10")], 100, id="balances fully: 50 to 100"),
        pytest.param(make_pod(requests={"cpu": "1"}), [], 50 + (50 + 95 - 100) // 2, id="a little worse"),
        pytest.param(
            make_pod(requests={"cpu": "5"}), [there(memory="500")], 50 + (50 + 100 - 75) // 2, id="a little better"
        ),
        pytest.param(make_pod(requests={"cpu": "30"}), [], 50, id="more than there is counts as all"),
        pytest.param(make_pod(), [], None, id="a pod that asks for nothing is skipped"),
        pytest.param(
            make_pod(requests={"ephemeral-storage": "1"}), [], None, id="so is one that asks for nothing of these"
        ),
    ],
)
def test_two_resources(pod: Pod, pods: list[Pod], expected: int | None) -> None:
    assert balance(pod, *pods) == expected


def test_no_default_requests_are_added() -> None:
    assert balance(make_pod(requests={"cpu": "5"}), there()) == 50 + (50 + 75 - 100) // 2


def test_the_pod_level_counts() -> None:
    pod = make_pod(resources=ResourceRequirements(requests={"cpu": "5", "memory": "500"}))
    assert balance(pod) == 75


@pytest.mark.parametrize(
    ("names", "node", "expected"),
    [
        pytest.param(
            ("cpu", "memory", "ephemeral-storage"), NODE, 50 + (50 + 52 - 100) // 2, id="three: the standard deviation"
        ),
        pytest.param(("cpu",), NODE, 75, id="one alone is always even"),
        pytest.param(("cpu", "memory", GPU), NODE, 50, id="an extended resource that it does not ask for is left out"),
        pytest.param(("cpu", "memory", "pods"), NODE, 50, id="pods is no resource here"),
        pytest.param(("cpu", "memory"), {"cpu": "10"}, 75, id="a node without memory"),
        pytest.param(
            ("cpu", "memory", "ephemeral-storage"), {"cpu": "10", "ephemeral-storage": "7"}, 50, id="two of three"
        ),
    ],
)
def test_other_resources(names: tuple[str, ...], node: ResourceList, expected: int) -> None:
    assert balance(make_pod(requests={"cpu": "10"}), args=between(*names), node=node) == expected


def test_a_node_that_lacks_one_of_several_resources() -> None:
    args = between("cpu", "memory", "ephemeral-storage", GPU)
    pod = make_pod(requests={"cpu": "10", GPU: "4"})
    lacking = balance(pod, args=args, node={"cpu": "10", "memory": "1000", GPU: "4"})
    assert lacking == balance(pod, args=between("cpu", "memory", GPU)) == 50 + (50 + 52 - 100) // 2


def test_score_without_pre_score() -> None:
    plugin = make_plugin(NodeResourcesBalancedAllocation)
    scoring = make_scoring(plugin)
    scoring._pre_scores = ()
    snapshot = make_snapshot([make_node("a", allocatable=NODE)])

    def found(pod: Pod) -> list[int]:
        return list(scoring.score(make_cycle(pod, snapshot), snapshot.table).by_plugin[plugin.name])

    assert found(make_pod()) == [0], "0 instead of skipped"
    assert found(make_pod(requests={"cpu": "10"})) == [50]


def test_signatures() -> None:
    mapped = from_api(DeviceClass, {"metadata": {"name": "gpus"}, "spec": {"extendedResourceName": GPU}})
    sign = make_plugin(NodeResourcesBalancedAllocation, handle=FakeHandle(Catalog([mapped]))).signature
    assert sign(make_pod("x", requests={"cpu": "1"})) == sign(make_pod("y", requests={"cpu": "1000m", "a.b/c": "1"}))
    assert sign(make_pod(requests={"cpu": "1"})) != sign(make_pod(requests={"memory": "1"}))
    assert sign(make_pod(requests={GPU: "1"})) is None
