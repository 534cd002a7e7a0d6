"""The check for overcommitted nodes of the end-to-end tests."""

from __future__ import annotations

from typing import Any

import pytest

from support.e2e.scheduler_harness import overcommitted_resources

ROOM = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "10Gi", "example.com/card": "2", "pods": "3"}
NODE = {"metadata": {"name": "node"}, "status": {"allocatable": ROOM}}


def container(**more: Any) -> dict[str, Any]:
    asked = {name: more.pop(name) for name in list(more) if name not in ("restartPolicy", "card")}
    if "card" in more:
        asked["example.com/card"] = more.pop("card")
    return {"resources": {"requests": asked}, **more}


def pod(*containers: dict[str, Any], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": "node", "containers": list(containers), **spec}, "status": {"phase": phase}}


HALF = pod(container(cpu="1", memory="512Mi", card="1", **{"ephemeral-storage": "5Gi"}))
SIDECAR = container(cpu="1", restartPolicy="Always")


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        pytest.param([HALF, HALF], [], id="full"),
        pytest.param([HALF, pod(container(cpu="1001m"))], ["2001 of 2000 cpu"], id="processors"),
        pytest.param(
            [HALF, pod(container(memory="513Mi"))], [f"{1025 * 2**20 * 1000} of {2**30 * 1000} memory"], id="memory"
        ),
        pytest.param(
            [HALF, HALF, pod(container(**{"ephemeral-storage": "1"}))],
            [f"{(10 * 2**30 + 1) * 1000} of {10 * 2**30 * 1000} ephemeral-storage"],
            id="storage",
        ),
        pytest.param([HALF, pod(container(card="2"))], ["3000 of 2000 example.com/card"], id="cards"),
        pytest.param([pod(container(unknown="1"))], ["1000 of 0 unknown"], id="what the node does not have"),
        pytest.param([pod(container())] * 4, ["4000 of 3000 pods"], id="pods"),
        pytest.param([pod(container(cpu="1"), container(cpu="2"))], ["3000 of 2000 cpu"], id="containers add up"),
        pytest.param([pod(container(cpu="1"), initContainers=[container(cpu="2")] * 2)], [], id="one after the other"),
        pytest.param(
            [pod(container(), initContainers=[SIDECAR, container(cpu="2")])],
            ["3000 of 2000 cpu"],
            id="beside a sidecar that started before",
        ),
        pytest.param(
            [pod(container(), initContainers=[container(cpu="2"), SIDECAR])], [], id="before a sidecar starts"
        ),
        pytest.param([pod(container(cpu="2"), initContainers=[SIDECAR])], ["3000 of 2000 cpu"], id="sidecars go on"),
        pytest.param([pod(container(cpu="2"), overhead={"cpu": "1m"})], ["2001 of 2000 cpu"], id="overhead"),
        pytest.param(
            [pod(container(cpu="1"), resources={"requests": {"cpu": "3"}})], ["3000 of 2000 cpu"], id="the whole pod"
        ),
        pytest.param([HALF, HALF, {**HALF, "status": {"phase": "Succeeded"}}], [], id="finished"),
        pytest.param([HALF, HALF, pod(container(cpu="1"), nodeName="")], [], id="waiting"),
    ],
)
def test_what_is_overfull(pods: list[dict[str, Any]], found: list[str]) -> None:
    assert overcommitted_resources([NODE], pods) == [f"node: {each}" for each in found]


def test_what_is_given_as_devices_is_not_the_nodes() -> None:
    mapped = {"requestMappings": [{"resourceName": "example.com/other", "containerName": "main", "requestName": "r"}]}
    user = pod(container(**{"example.com/other": "1"}))
    assert overcommitted_resources([NODE], [user]) == ["node: 1000 of 0 example.com/other"]
    assert overcommitted_resources([NODE], [{**user, "status": {"extendedResourceClaimStatus": mapped}}]) == []
