"""What of a quota is used, by pods, claims, services and anything that is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.policy.quota_usage import (
    add_known,
    claim_usage,
    in_scopes,
    pod_usage,
    service_usage,
)
from bayplan.controllers.policy.resource_quotas import BATCH_PERIOD_S, ResourceQuotaController
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.objects.quotas import object_count
from bayplan.objects.volumes import PersistentVolumeClaim
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers
from support.harness.single_controller import ControllerRig, rig_of

ONLY = ("resourcequota-controller",)


def pod(name: str, **resources: Any) -> Tree:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}


@async_test
async def test_what_is_used_is_told_and_given_back(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=1, only=ONLY) as world:
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
        await world.make(RESOURCE_QUOTAS, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
        asks = {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
        await world.make(PODS, pod("one", **asks))
        await world.make(PODS, pod("two", **asks))
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
        await world.make(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": claim})
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

        found = await world.when(RESOURCE_QUOTAS, "team", lambda it: it["status"]["used"] == used(2))
        assert found["status"]["hard"] == hard
        await world.delete(PODS, "two")
        await world.when(RESOURCE_QUOTAS, "team", lambda it: it["status"]["used"] == used(1))


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
    found = convert({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}, PodFields)
    assert in_scopes(found, [scope]) == expected


# What objects count for

ASKS = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}


def meta(name: str, **more: Any) -> Tree:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **more}


def seen_pod(name: str = "p", *, phase: str = "Running", resources: Tree | None = None, **spec: Any) -> PodFields:
    containers = [{"name": "c", "image": "i", "resources": resources or {}}]
    return convert(
        {"metadata": meta(name), "spec": {"containers": containers, **spec}, "status": {"phase": phase}}, PodFields
    )


def seen_claim(storage_class: str | None = None, size: str | None = "2Gi") -> PersistentVolumeClaim:
    resources = {"requests": {"storage": size} if size else {}}
    spec = {"resources": resources, "storageClassName": storage_class}
    return convert({"metadata": meta("data"), "spec": spec}, PersistentVolumeClaim)


def seen_service(**spec: Any) -> UntypedObject:
    return convert({"metadata": meta("web"), "spec": spec}, UntypedObject)


def texts(amounts: Any) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


ONE_POD = {"count/pods": "1", "pods": "1"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(seen_pod(), ONE_POD, id="asks-for-nothing"),
        pytest.param(
            seen_pod(resources=ASKS),
            ONE_POD | {"cpu": "1", "requests.cpu": "1", "memory": "1Gi", "requests.memory": "1Gi", "limits.cpu": "2"},
            id="asks",
        ),
        pytest.param(
            seen_pod(resources={"requests": {"hugepages-2Mi": "4Mi", "example.com/fpga": "1"}}),
            ONE_POD | {"hugepages-2Mi": "4Mi", "requests.hugepages-2Mi": "4Mi", "requests.example.com/fpga": "1"},
            id="huge-pages-and-a-device",
        ),
        pytest.param(seen_pod(resources=ASKS, phase="Succeeded"), {"count/pods": "1"}, id="ended"),
    ],
)
def test_what_a_pod_counts_for(item: PodFields, expected: dict[str, str]) -> None:
    assert texts(pod_usage(item)) == expected


ONE_CLAIM = {"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(seen_claim(), ONE_CLAIM | {"requests.storage": "2Gi"}, id="no-class"),
        pytest.param(seen_claim(size=None), ONE_CLAIM, id="no-size"),
        pytest.param(
            seen_claim("fast"),
            ONE_CLAIM
            | {
                "requests.storage": "2Gi",
                "fast.storageclass.storage.k8s.io/requests.storage": "2Gi",
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            },
            id="of-a-class",
        ),
        pytest.param(
            seen_claim("fast", None),
            ONE_CLAIM | {"fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1"},
            id="of-a-class-without-a-size",
        ),
    ],
)
def test_what_a_claim_counts_for(item: PersistentVolumeClaim, expected: dict[str, str]) -> None:
    assert texts(claim_usage(item)) == expected


PORTS = [{"port": 1, "nodePort": 30001}, {"port": 2}, {"port": 3, "nodePort": 30003}]


@pytest.mark.parametrize(
    ("spec", "node_ports", "balancers"),
    [
        pytest.param({"ports": PORTS}, 0, 0, id="cluster-ip"),
        pytest.param({"type": "NodePort", "ports": PORTS}, 3, 0, id="node-port"),
        pytest.param({"type": "LoadBalancer", "ports": PORTS}, 3, 1, id="load-balancer"),
        pytest.param(
            {"type": "LoadBalancer", "ports": PORTS, "allocateLoadBalancerNodePorts": False}, 2, 1, id="ports-by-hand"
        ),
    ],
)
def test_what_a_service_counts_for(spec: Tree, node_ports: int, balancers: int) -> None:
    expected = {"services.nodeports": f"{node_ports}", "services.loadbalancers": f"{balancers}"}
    assert texts(service_usage(seen_service(**spec))) == {"count/services": "1", "services": "1", **expected}


def test_only_named_amounts_are_added() -> None:
    total = {"pods": object_count(1)}
    add_known(total, {"pods": object_count(2), "services": object_count(4)})
    assert texts(total) == {"pods": "3"}


def affinity(kind: str, **term: Any) -> Tree:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", **term}]}}}


PREFERRED = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": ["other"]}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(affinity("podAffinity"), False, id="own-namespace"),
        pytest.param(affinity("podAffinity", namespaces=["other"]), True, id="named-namespaces"),
        pytest.param(affinity("podAntiAffinity", namespaceSelector={}), True, id="selected-namespaces"),
        pytest.param(
            {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}}},
            True,
            id="preferred",
        ),
        pytest.param({"affinity": {}}, False, id="no-terms"),
    ],
)
def test_which_affinity_crosses_namespaces(spec: Tree, expected: bool) -> None:
    assert in_scopes(seen_pod(**spec), [{"scopeName": "CrossNamespacePodAffinity"}]) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, True, id="asks-for-nothing"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, False, id="requests"),
        pytest.param({"resources": {"limits": {"memory": "1"}}}, False, id="limits"),
        pytest.param({"resources": {"requests": {"cpu": "0", "memory": "0"}}}, True, id="zero"),
        pytest.param({"resources": {"requests": {"cpu": "0", "memory": "1"}}}, False, id="zero-and-more"),
        pytest.param({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, True, id="other-resource"),
        pytest.param({"initContainers": [{"name": "i", "resources": ASKS}]}, False, id="init-container"),
    ],
)
def test_which_pods_are_best_effort(spec: Tree, expected: bool) -> None:
    item = seen_pod(**spec)
    for scope, answer in (("BestEffort", expected), ("NotBestEffort", not expected)):
        assert in_scopes(item, [{"scopeName": scope}]) == answer


def test_resources_of_the_whole_pod_count_for_the_scope() -> None:
    item = convert({"metadata": meta("p"), "spec": {"containers": [{"name": "c"}], "resources": ASKS}}, PodFields)
    assert not in_scopes(item, [{"scopeName": "BestEffort"}])


def test_a_pod_is_in_all_scopes_or_not_counted() -> None:
    best, ends = {"scopeName": "BestEffort"}, {"scopeName": "Terminating"}
    assert in_scopes(seen_pod(activeDeadlineSeconds=1), [best, ends])
    assert not in_scopes(seen_pod(), [best, ends])
    assert in_scopes(seen_pod(), [])


# The controller, without an API server

TEAM = ("default", "team")
STATUS = "PATCH /api/v1/namespaces/default/resourcequotas/team/status"


def a_quota(name: str = "team", *, status: Tree | None = None, going: bool = False, **spec: Any) -> UntypedObject:
    more = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if going else {}
    return convert({"metadata": meta(name, **more), "spec": spec, "status": status or {}}, UntypedObject)


async def used(rig: ControllerRig[ResourceQuotaController], quota: UntypedObject) -> Tree | None:
    """The status that a sync writes."""
    rig.hear(rig.controller.quotas, quota)
    assert await rig.controller.sync(TEAM) is None
    written = rig.writes
    assert [line for line, _ in written] == [STATUS] * len(written)
    return written[0][1]["status"] if written else None


@async_test
async def test_objects_of_the_namespace_are_added_up() -> None:
    hard = {"pods": "9", "count/pods": "9", "requests.cpu": "9", "requests.storage": "9Gi", "services": "9"}
    elsewhere = {"namespace": "other"}
    async with rig_of(ResourceQuotaController) as rig:
        found = rig.controller
        rig.hear(found.pods, seen_pod("a", resources=ASKS), seen_pod("b", resources=ASKS, phase="Failed"))
        rig.hear(found.pods, convert({"metadata": meta("c", **elsewhere)}, PodFields))
        rig.hear(found.claims, seen_claim())
        rig.hear(found.services, seen_service())
        expected = {"pods": "1", "count/pods": "2", "requests.cpu": "1", "requests.storage": "2Gi", "services": "1"}
        assert await used(rig, a_quota(hard=hard)) == {"hard": hard, "used": expected}
        assert await used(rig, a_quota(hard=hard, status={"hard": hard, "used": expected})) is None


@async_test
async def test_a_quota_with_scopes_counts_pods_only() -> None:
    hard = {"pods": "9", "services": "9", "persistentvolumeclaims": "9", "configmaps": "9"}
    async with rig_of(ResourceQuotaController) as rig:
        rig.hear(rig.controller.pods, seen_pod("a", resources=ASKS), seen_pod("b"))
        rig.hear(rig.controller.claims, seen_claim())
        rig.hear(rig.controller.services, seen_service())
        found = await used(rig, a_quota(hard=hard, scopes=["BestEffort"]))
    counted = {"pods": "1", "services": "0", "persistentvolumeclaims": "0", "configmaps": "0"}
    assert found == {"hard": hard, "used": counted}


@pytest.mark.parametrize(
    "quota", [pytest.param(a_quota(going=True, hard={"pods": "1"}), id="deleted"), pytest.param(a_quota(), id="empty")]
)
@async_test
async def test_quotas_without_a_new_status(quota: UntypedObject) -> None:
    async with rig_of(ResourceQuotaController) as rig:
        assert await rig.controller.sync(TEAM) is None
        found = await used(rig, quota)
        assert found == (None if quota.terminating else {"hard": {}, "used": {}})


def kind(plural: str) -> Tree:
    return {"name": plural, "namespaced": True, "verbs": ["list", "watch", "delete"]}


DISCOVERY = {
    "GET /apis": {"groups": [{"name": "apps", "versions": [], "preferredVersion": {"version": "v1"}}]},
    "GET /api/v1": {"resources": [kind("pods"), kind("configmaps")]},
    "GET /apis/apps/v1": {"resources": [kind("deployments")]},
}


@async_test
async def test_other_kinds_are_counted_by_feeds() -> None:
    hard = {"configmaps": "9", "count/configmaps": "9", "count/deployments.apps": "9", "count/deployments": "9"}
    hard = {"pods": "9", "limits.cpu": "9", **hard}  # these two are not counted as objects of a kind
    counted = {
        "pods": "0",
        "limits.cpu": "0",
        "configmaps": "2",
        "count/configmaps": "2",
        "count/deployments.apps": "1",
        "count/deployments": "0",
    }
    async with rig_of(ResourceQuotaController, DISCOVERY) as rig:
        world, found = rig.controller.informers, a_quota(hard=hard)
        maps = world.informer(CONFIG_MAPS, KubeObject)
        deployments = world.informer(DEPLOYMENTS, UntypedObject)
        for feed in (maps, deployments, rig.controller.pods):
            feed._informer._synced.set()
        rig.hear(rig.controller.pods, seen_pod("a", phase="Failed"))
        for name, namespace in (("a", "default"), ("b", "default"), ("far", "other")):
            rig.hear(maps, convert({"metadata": meta(name, namespace=namespace)}, KubeObject))
        rig.hear(deployments, convert({"metadata": meta("web")}, UntypedObject))
        assert await used(rig, found) == {"hard": hard, "used": counted}
        rig.queued()
        extra = convert({"metadata": meta("c")}, KubeObject)
        for change, queued in (
            (rig.hear, {TEAM: BATCH_PERIOD_S}),
            (rig.hear, {}),
            (rig.hear_gone, {TEAM: BATCH_PERIOD_S}),
        ):
            change(maps, extra)
            assert rig.queued() == queued
        assert await used(rig, found) == {"hard": hard, "used": counted}
        assert len(maps._handlers) == 1


@async_test
async def test_a_kind_that_the_server_offers_is_watched_from_then_on() -> None:
    async with rig_of(ResourceQuotaController, DISCOVERY) as rig:
        rig.hear(rig.controller.quotas, a_quota(hard={"count/deployments.apps": "9"}))
        counting = asyncio.create_task(rig.controller.sync(TEAM))
        while (feed := rig.controller.informers.get_informer("apps", "deployments")) is None:
            await asyncio.sleep(0)
        rig.hear(feed, convert({"metadata": meta("web")}, KubeObject))
        feed._informer._synced.set()
        assert await counting is None
        ((_, body),) = rig.writes
        assert body["status"]["used"] == {"count/deployments.apps": "1"}


@async_test
async def test_a_kind_that_the_server_does_not_have_counts_as_none() -> None:
    async with rig_of(ResourceQuotaController, DISCOVERY) as rig:
        found = await used(rig, a_quota(hard={"count/boats.example.com": "9", "limits.cpu": "9"}))
    assert found is not None
    assert found["used"] == {"count/boats.example.com": "0", "limits.cpu": "0"}


BOTH = {TEAM: BATCH_PERIOD_S, ("default", "second"): BATCH_PERIOD_S}


@pytest.mark.parametrize(
    ("old", "new", "queued"),
    [
        pytest.param(None, seen_pod(), BOTH, id="comes"),
        pytest.param(seen_pod(), None, BOTH, id="goes"),
        pytest.param(seen_pod(), seen_pod(), {}, id="same"),
        pytest.param(seen_pod(), seen_pod(phase="Failed"), BOTH, id="ends"),
        pytest.param(seen_pod(), seen_pod(resources=ASKS), BOTH, id="is-resized"),
    ],
)
@async_test
async def test_which_changes_of_pods_wake_quotas(old: PodFields | None, new: PodFields | None, queued: Tree) -> None:
    async with rig_of(ResourceQuotaController) as rig:
        far = convert({"metadata": meta("far", namespace="other")}, UntypedObject)
        rig.hear(rig.controller.quotas, a_quota(), a_quota("second"), far)
        if old is not None:
            rig.hear(rig.controller.pods, old)
        assert rig.queued()
        if new is not None:
            rig.hear(rig.controller.pods, new)
        elif old is not None:
            rig.hear_gone(rig.controller.pods, old)
        assert rig.queued() == queued


@async_test
async def test_claims_services_and_quotas_wake_quotas() -> None:
    async with rig_of(ResourceQuotaController) as rig:
        rig.hear(rig.controller.quotas, a_quota())
        assert rig.queued() == {TEAM: 0.0}
        for feed, item in ((rig.controller.claims, seen_claim()), (rig.controller.services, seen_service())):
            rig.hear(feed, item)
            assert rig.queued() == {TEAM: BATCH_PERIOD_S}
            rig.hear(feed, item)
            assert rig.queued() == {TEAM: BATCH_PERIOD_S}
            rig.hear_gone(feed, item)
            assert rig.queued() == {TEAM: BATCH_PERIOD_S}
