"""Usage of quotas by pods, claims, services and other counted objects."""

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
from bayplan.controllers.policy.quota_usage import add_known, claim_usage, in_scopes, pod_usage, service_usage
from bayplan.controllers.policy.resource_quotas import BATCH_PERIOD_S, ResourceQuotaController
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.objects.quotas import object_count
from bayplan.objects.volumes import PersistentVolumeClaim
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers
from support.harness.single_controller import SingleControllerHarness, run_controller

ONLY = ("resourcequota-controller",)


def pod(name: str, **resources: Any) -> Tree:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}


@async_test
async def test_usage_follows_created_and_deleted_objects(tmp_path: Path) -> None:
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
        resources = {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
        await world.make(PODS, pod("one", **resources))
        await world.make(PODS, pod("two", **resources))
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
def test_pods_match_scopes(scope: Tree, spec: Tree, expected: bool) -> None:
    found = convert({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}, PodFields)
    assert in_scopes(found, [scope]) == expected


# Usage of objects.

RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}


def meta(name: str, **metadata: Any) -> Tree:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **metadata}


def make_pod(name: str = "p", *, phase: str = "Running", resources: Tree | None = None, **spec: Any) -> PodFields:
    containers = [{"name": "c", "image": "i", "resources": resources or {}}]
    return convert(
        {"metadata": meta(name), "spec": {"containers": containers, **spec}, "status": {"phase": phase}}, PodFields
    )


def make_claim(storage_class: str | None = None, size: str | None = "2Gi") -> PersistentVolumeClaim:
    resources = {"requests": {"storage": size} if size else {}}
    spec = {"resources": resources, "storageClassName": storage_class}
    return convert({"metadata": meta("data"), "spec": spec}, PersistentVolumeClaim)


def make_service(**spec: Any) -> UntypedObject:
    return convert({"metadata": meta("web"), "spec": spec}, UntypedObject)


def texts(amounts: Any) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


ONE_POD = {"count/pods": "1", "pods": "1"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(make_pod(), ONE_POD, id="asks-for-nothing"),
        pytest.param(
            make_pod(resources=RESOURCES),
            ONE_POD | {"cpu": "1", "requests.cpu": "1", "memory": "1Gi", "requests.memory": "1Gi", "limits.cpu": "2"},
            id="asks",
        ),
        pytest.param(
            make_pod(resources={"requests": {"hugepages-2Mi": "4Mi", "example.com/fpga": "1"}}),
            ONE_POD | {"hugepages-2Mi": "4Mi", "requests.hugepages-2Mi": "4Mi", "requests.example.com/fpga": "1"},
            id="huge-pages-and-a-device",
        ),
        pytest.param(make_pod(resources=RESOURCES, phase="Succeeded"), {"count/pods": "1"}, id="ended"),
    ],
)
def test_usage_of_a_pod(item: PodFields, expected: dict[str, str]) -> None:
    assert texts(pod_usage(item)) == expected


ONE_CLAIM = {"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(make_claim(), ONE_CLAIM | {"requests.storage": "2Gi"}, id="no-class"),
        pytest.param(make_claim(size=None), ONE_CLAIM, id="no-size"),
        pytest.param(
            make_claim("fast"),
            ONE_CLAIM
            | {
                "requests.storage": "2Gi",
                "fast.storageclass.storage.k8s.io/requests.storage": "2Gi",
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            },
            id="of-a-class",
        ),
        pytest.param(
            make_claim("fast", None),
            ONE_CLAIM | {"fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1"},
            id="of-a-class-without-a-size",
        ),
    ],
)
def test_usage_of_a_claim(item: PersistentVolumeClaim, expected: dict[str, str]) -> None:
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
def test_usage_of_a_service(spec: Tree, node_ports: int, balancers: int) -> None:
    expected = {"services.nodeports": f"{node_ports}", "services.loadbalancers": f"{balancers}"}
    assert texts(service_usage(make_service(**spec))) == {"count/services": "1", "services": "1", **expected}


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
def test_affinity_across_namespaces(spec: Tree, expected: bool) -> None:
    assert in_scopes(make_pod(**spec), [{"scopeName": "CrossNamespacePodAffinity"}]) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, True, id="asks-for-nothing"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, False, id="requests"),
        pytest.param({"resources": {"limits": {"memory": "1"}}}, False, id="limits"),
        pytest.param({"resources": {"requests": {"cpu": "0", "memory": "0"}}}, True, id="zero"),
        pytest.param({"resources": {"requests": {"cpu": "0", "memory": "1"}}}, False, id="zero-and-more"),
        pytest.param({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, True, id="other-resource"),
        pytest.param({"initContainers": [{"name": "i", "resources": RESOURCES}]}, False, id="init-container"),
    ],
)
def test_best_effort_pods(spec: Tree, expected: bool) -> None:
    item = make_pod(**spec)
    for scope, answer in (("BestEffort", expected), ("NotBestEffort", not expected)):
        assert in_scopes(item, [{"scopeName": scope}]) == answer


def test_pod_level_resources_count_for_the_scope() -> None:
    item = convert({"metadata": meta("p"), "spec": {"containers": [{"name": "c"}], "resources": RESOURCES}}, PodFields)
    assert not in_scopes(item, [{"scopeName": "BestEffort"}])


def test_a_pod_must_match_all_scopes() -> None:
    best_effort, ends = {"scopeName": "BestEffort"}, {"scopeName": "Terminating"}
    assert in_scopes(make_pod(activeDeadlineSeconds=1), [best_effort, ends])
    assert not in_scopes(make_pod(), [best_effort, ends])
    assert in_scopes(make_pod(), [])


# The controller without an API server.

TEAM = ("default", "team")
STATUS = "PATCH /api/v1/namespaces/default/resourcequotas/team/status"


def a_quota(name: str = "team", *, status: Tree | None = None, terminating: bool = False, **spec: Any) -> UntypedObject:
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}
    return convert({"metadata": meta(name, **metadata), "spec": spec, "status": status or {}}, UntypedObject)


async def used(harness: SingleControllerHarness[ResourceQuotaController], quota: UntypedObject) -> Tree | None:
    """Return the status that a sync writes."""
    harness.deliver(harness.controller.quotas, quota)
    assert await harness.controller.sync(TEAM) is None
    writes = harness.writes
    assert [line for line, _ in writes] == [STATUS] * len(writes)
    return writes[0][1]["status"] if writes else None


@async_test
async def test_objects_of_the_namespace_are_added_up() -> None:
    hard = {"pods": "9", "count/pods": "9", "requests.cpu": "9", "requests.storage": "9Gi", "services": "9"}
    elsewhere = {"namespace": "other"}
    async with run_controller(ResourceQuotaController) as harness:
        found = harness.controller
        harness.deliver(
            found.pods, make_pod("a", resources=RESOURCES), make_pod("b", resources=RESOURCES, phase="Failed")
        )
        harness.deliver(found.pods, convert({"metadata": meta("c", **elsewhere)}, PodFields))
        harness.deliver(found.claims, make_claim())
        harness.deliver(found.services, make_service())
        expected = {"pods": "1", "count/pods": "2", "requests.cpu": "1", "requests.storage": "2Gi", "services": "1"}
        assert await used(harness, a_quota(hard=hard)) == {"hard": hard, "used": expected}
        assert await used(harness, a_quota(hard=hard, status={"hard": hard, "used": expected})) is None


@async_test
async def test_a_quota_with_scopes_counts_pods_only() -> None:
    hard = {"pods": "9", "services": "9", "persistentvolumeclaims": "9", "configmaps": "9"}
    async with run_controller(ResourceQuotaController) as harness:
        harness.deliver(harness.controller.pods, make_pod("a", resources=RESOURCES), make_pod("b"))
        harness.deliver(harness.controller.claims, make_claim())
        harness.deliver(harness.controller.services, make_service())
        found = await used(harness, a_quota(hard=hard, scopes=["BestEffort"]))
    counted = {"pods": "1", "services": "0", "persistentvolumeclaims": "0", "configmaps": "0"}
    assert found == {"hard": hard, "used": counted}


@pytest.mark.parametrize(
    "quota",
    [pytest.param(a_quota(terminating=True, hard={"pods": "1"}), id="deleted"), pytest.param(a_quota(), id="empty")],
)
@async_test
async def test_quotas_without_a_new_status(quota: UntypedObject) -> None:
    async with run_controller(ResourceQuotaController) as harness:
        assert await harness.controller.sync(TEAM) is None
        found = await used(harness, quota)
        assert found == (None if quota.terminating else {"hard": {}, "used": {}})


def kind(plural: str) -> Tree:
    return {"name": plural, "namespaced": True, "verbs": ["list", "watch", "delete"]}


DISCOVERY = {
    "GET /apis": {"groups": [{"name": "apps", "versions": [], "preferredVersion": {"version": "v1"}}]},
    "GET /api/v1": {"resources": [kind("pods"), kind("configmaps")]},
    "GET /apis/apps/v1": {"resources": [kind("deployments")]},
}


@async_test
async def test_other_resources_are_counted_by_informers() -> None:
    hard = {"configmaps": "9", "count/configmaps": "9", "count/deployments.apps": "9", "count/deployments": "9"}
    hard = {"pods": "9", "limits.cpu": "9", **hard}  # these two are not object counts
    counted = {
        "pods": "0",
        "limits.cpu": "0",
        "configmaps": "2",
        "count/configmaps": "2",
        "count/deployments.apps": "1",
        "count/deployments": "0",
    }
    async with run_controller(ResourceQuotaController, DISCOVERY) as harness:
        world, found = harness.controller.informers, a_quota(hard=hard)
        maps = world.informer(CONFIG_MAPS, KubeObject)
        deployments = world.informer(DEPLOYMENTS, UntypedObject)
        for informer in (maps, deployments, harness.controller.pods):
            informer._informer._synced.set()
        harness.deliver(harness.controller.pods, make_pod("a", phase="Failed"))
        for name, namespace in (("a", "default"), ("b", "default"), ("far", "other")):
            harness.deliver(maps, convert({"metadata": meta(name, namespace=namespace)}, KubeObject))
        harness.deliver(deployments, convert({"metadata": meta("web")}, UntypedObject))
        assert await used(harness, found) == {"hard": hard, "used": counted}
        harness.queued()
        extra = convert({"metadata": meta("c")}, KubeObject)
        for change, queued in (
            (harness.deliver, {TEAM: BATCH_PERIOD_S}),
            (harness.deliver, {}),
            (harness.deliver_deletion, {TEAM: BATCH_PERIOD_S}),
        ):
            change(maps, extra)
            assert harness.queued() == queued
        assert await used(harness, found) == {"hard": hard, "used": counted}
        assert len(maps._handlers) == 1


@async_test
async def test_a_counted_resource_is_watched_from_its_first_use() -> None:
    async with run_controller(ResourceQuotaController, DISCOVERY) as harness:
        harness.deliver(harness.controller.quotas, a_quota(hard={"count/deployments.apps": "9"}))
        counting = asyncio.create_task(harness.controller.sync(TEAM))
        while (informer := harness.controller.informers.get_informer("apps", "deployments")) is None:
            await asyncio.sleep(0)
        harness.deliver(informer, convert({"metadata": meta("web")}, KubeObject))
        informer._informer._synced.set()
        assert await counting is None
        ((_, body),) = harness.writes
        assert body["status"]["used"] == {"count/deployments.apps": "1"}


@async_test
async def test_an_unknown_resource_counts_as_zero() -> None:
    async with run_controller(ResourceQuotaController, DISCOVERY) as harness:
        found = await used(harness, a_quota(hard={"count/boats.example.com": "9", "limits.cpu": "9"}))
    assert found is not None
    assert found["used"] == {"count/boats.example.com": "0", "limits.cpu": "0"}


BOTH = {TEAM: BATCH_PERIOD_S, ("default", "second"): BATCH_PERIOD_S}


@pytest.mark.parametrize(
    ("old", "new", "queued"),
    [
        pytest.param(None, make_pod(), BOTH, id="comes"),
        pytest.param(make_pod(), None, BOTH, id="goes"),
        pytest.param(make_pod(), make_pod(), {}, id="same"),
        pytest.param(make_pod(), make_pod(phase="Failed"), BOTH, id="ends"),
        pytest.param(make_pod(), make_pod(resources=RESOURCES), BOTH, id="is-resized"),
    ],
)
@async_test
async def test_quotas_enqueued_by_pod_events(old: PodFields | None, new: PodFields | None, queued: Tree) -> None:
    async with run_controller(ResourceQuotaController) as harness:
        far = convert({"metadata": meta("far", namespace="other")}, UntypedObject)
        harness.deliver(harness.controller.quotas, a_quota(), a_quota("second"), far)
        if old is not None:
            harness.deliver(harness.controller.pods, old)
        assert harness.queued()
        if new is not None:
            harness.deliver(harness.controller.pods, new)
        elif old is not None:
            harness.deliver_deletion(harness.controller.pods, old)
        assert harness.queued() == queued


@async_test
async def test_quotas_enqueued_by_other_events() -> None:
    async with run_controller(ResourceQuotaController) as harness:
        harness.deliver(harness.controller.quotas, a_quota())
        assert harness.queued() == {TEAM: 0.0}
        for informer, item in (
            (harness.controller.claims, make_claim()),
            (harness.controller.services, make_service()),
        ):
            harness.deliver(informer, item)
            assert harness.queued() == {TEAM: BATCH_PERIOD_S}
            harness.deliver(informer, item)
            assert harness.queued() == {TEAM: BATCH_PERIOD_S}
            harness.deliver_deletion(informer, item)
            assert harness.queued() == {TEAM: BATCH_PERIOD_S}
