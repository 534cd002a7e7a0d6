"""What of a quota is used, by pods, claims, services and anything that is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.quota_sums import in_scopes
from bayplan.controllers.seen import CLAIMS, CONFIG_MAPS, PODS, QUOTAS, SERVICES, SeenPod, Tree
from bayplan.objects.kinds import convert
from controlled import controlled
from wire_server import on_loop

ONLY = ("resourcequota-controller",)


def pod(name: str, **resources: Any) -> Tree:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}


@on_loop
async def test_what_is_used_is_told_and_given_back(tmp_path: Path) -> None:
    async with controlled(tmp_path, nodes=1, only=ONLY) as world:
        hard = {
            "pods": "10",
            "requests.cpu": "4",
            "limits.memory": "8Gi",
            "requests.storage": "10Gi",
            "services": "5",
            "services.nodeports": "2",
            "count/configmaps": "20",
            "count/deployments.apps": "3",
        }
        await world.make(QUOTAS, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
        asks = {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
        await world.make(PODS, pod("one", **asks))
        await world.make(PODS, pod("two", **asks))
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
        await world.make(CLAIMS, {"metadata": {"name": "data"}, "spec": claim})
        ports = {"type": "NodePort", "ports": [{"port": 80}], "selector": {"app": "web"}}
        await world.make(SERVICES, {"metadata": {"name": "web"}, "spec": ports})
        await world.make(CONFIG_MAPS, {"metadata": {"name": "settings"}})
        maps = len(await world.list(CONFIG_MAPS))
        services = len(await world.list(SERVICES))

        def used(pods: int) -> Tree:
            return {
                "pods": f"{pods}",
                "requests.cpu": "1" if pods == 2 else "500m",
                "limits.memory": f"{pods}Gi",
                "requests.storage": "2Gi",
                "services": f"{services}",
                "services.nodeports": "1",
                "count/configmaps": f"{maps}",
                "count/deployments.apps": "0",
            }

        found = await world.when(QUOTAS, "team", lambda it: it["status"]["used"] == used(2))
        assert found["status"]["hard"] == hard
        await world.delete(PODS, "two")
        await world.when(QUOTAS, "team", lambda it: it["status"]["used"] == used(1))


@pytest.mark.parametrize(
    ("scope", "spec", "expected"),
    [
        ({"scopeName": "BestEffort"}, {}, True),
        ({"scopeName": "NotBestEffort"}, {}, False),
        ({"scopeName": "Terminating"}, {"activeDeadlineSeconds": 5}, True),
        ({"scopeName": "NotTerminating"}, {"activeDeadlineSeconds": 5}, False),
        ({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}, {"priorityClassName": "high"}, True),
        ({"scopeName": "PriorityClass", "operator": "Exists"}, {}, False),
        ({"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}, {}, True),
        ({"scopeName": "CrossNamespacePodAffinity"}, {}, False),
        ({"scopeName": "Nonsense"}, {}, False),
    ],
)
def test_scopes(scope: Tree, spec: Tree, expected: bool) -> None:
    found = convert({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}, SeenPod)
    assert in_scopes(found, [scope]) == expected
