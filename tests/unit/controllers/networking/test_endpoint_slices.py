"""EndpointSlices: the pods of services with their readiness and ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    ENDPOINT_SLICES,
    PODS,
    SERVICES,
    EndpointSliceFields,
    PodFields,
    PodStatusFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.networking.endpoint_builder import (
    MAX_ENDPOINTS_PER_SLICE,
    backing_pods,
    endpoint,
    ports_for,
    slice_bodies,
    slice_labels,
)
from bayplan.controllers.networking.endpoint_slices import BATCH_PERIOD_S, EndpointSliceController
from bayplan.objects.core import Node
from bayplan.objects.kinds import convert
from bayplan.objects.meta import ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers
from support.harness.single_controller import SingleControllerHarness, run_controller

ONLY = ("endpointslice-controller",)


def pod(name: str, *, port: int = 8080, **labels: str) -> Tree:
    container = {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": port}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


def service(app: str, **port: Any) -> Tree:
    return {"metadata": {"name": app}, "spec": {"selector": {"app": app}, "ports": [{"port": 80, **port}]}}


@async_test
async def test_a_slice_contains_the_ready_pods_of_its_service(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(SERVICES, service("web", targetPort="http", name="http"))
        for name in ("a", "b"):
            await harness.make(PODS, pod(name, app="web"))
        await harness.make(PODS, pod("other", app="db"))

        async def slices(ready: int) -> Tree | None:
            found = await harness.list(ENDPOINT_SLICES, labels="kubernetes.io/service-name=web")
            serving = [e for each in found for e in each["endpoints"] or () if e["conditions"]["ready"]]
            return found[0] if len(serving) == ready and len(found) == 1 else None

        found = await harness.until(lambda: slices(2))
        assert found["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
        assert sorted(each["targetRef"]["name"] for each in found["endpoints"]) == ["a", "b"]
        assert found["metadata"]["ownerReferences"][0]["kind"] == "Service"
        await harness.delete(PODS, "a")
        await harness.until(lambda: slices(1))
        await harness.delete(ENDPOINT_SLICES, found["metadata"]["name"])
        await harness.until(lambda: slices(1))


def numbered_pod(number: int) -> PodFields:
    return PodFields(
        metadata=ObjectMeta(name=f"p{number:03}"), status=PodStatusFields(phase="Running", pod_ip="10.0.0.1")
    )


def test_endpoints_are_split_into_slices_of_a_hundred() -> None:
    found = UntypedObject(metadata=ObjectMeta(name="web"), spec={"ports": [{"port": 80}]})
    bodies = slice_bodies(
        found, [numbered_pod(number) for number in range(2 * MAX_ENDPOINTS_PER_SLICE + 1)], lambda _: None
    )
    assert [len(each["endpoints"]) for each in bodies] == [100, 100, 1]
    assert slice_bodies(found, [], lambda _: None) == [{"addressType": "IPv4", "endpoints": [], "ports": []}]


# Endpoints, ports and labels, without an API server.

PATH = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MANAGED_LABELS = {
    "kubernetes.io/service-name": "web",
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
}
WEB = ("default", "web")


def a_service(name: str = "web", *, labels: Tree | None = None, **spec: Any) -> UntypedObject:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels or {}}
    tree = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}], **spec}
    return convert({"metadata": meta, "spec": tree}, UntypedObject)


def a_pod(
    name: str = "p",
    *,
    ready: bool = True,
    phase: str = "Running",
    ip: str = "10.0.0.1",
    labels: Tree | None = None,
    deleted: bool = False,
    **spec: Any,
) -> PodFields:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels or {"app": "web"}}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"phase": phase, "podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return convert({"metadata": meta, "spec": spec, "status": status}, PodFields)


def a_slice(
    name: str = "web-1", body: Tree | None = None, *, labels: Tree | None = None, **meta: Any
) -> EndpointSliceFields:
    tree = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    return convert(
        {"metadata": {**tree, "labels": MANAGED_LABELS if labels is None else labels}, **(body or {})},
        EndpointSliceFields,
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(a_pod(), True, id="runs"),
        pytest.param(a_pod(labels={"app": "web", "tier": "front"}), True, id="more-labels"),
        pytest.param(a_pod(ready=False), True, id="not-ready"),
        pytest.param(a_pod(labels={"app": "db"}), False, id="other-label"),
        pytest.param(a_pod(ip=""), False, id="no-address"),
        pytest.param(a_pod(phase="Succeeded"), False, id="finished"),
    ],
)
def test_backing_pods(pod: PodFields, expected: bool) -> None:
    assert backing_pods(a_service(), [pod]) == ([pod] if expected else [])


@pytest.mark.parametrize(
    ("pod", "published", "conditions"),
    [
        pytest.param(a_pod(), False, (True, True, False), id="ready"),
        pytest.param(a_pod(ready=False), False, (False, False, False), id="not-ready"),
        pytest.param(a_pod(deleted=True), False, (False, True, True), id="ready-and-terminating"),
        pytest.param(a_pod(ready=False, deleted=True), True, (True, False, True), id="published-in-any-state"),
    ],
)
def test_conditions_of_an_endpoint(pod: PodFields, published: bool, conditions: tuple[bool, ...]) -> None:
    found = endpoint(a_service(publishNotReadyAddresses=published), pod, None)
    assert tuple(found["conditions"][name] for name in ("ready", "serving", "terminating")) == conditions


@pytest.mark.parametrize(
    ("spec", "labels", "expected"),
    [
        pytest.param({}, None, {}, id="no-node"),
        pytest.param({"nodeName": "n"}, None, {"nodeName": "n"}, id="unknown-node"),
        pytest.param({"nodeName": "n"}, {}, {"nodeName": "n"}, id="node-without-zone"),
        pytest.param(
            {"nodeName": "n"}, {"topology.kubernetes.io/zone": "z"}, {"nodeName": "n", "zone": "z"}, id="node-in-a-zone"
        ),
        pytest.param({"hostname": "h", "subdomain": "web"}, None, {"hostname": "h"}, id="own-subdomain"),
        pytest.param({"hostname": "h", "subdomain": "db"}, None, {}, id="subdomain-of-another-service"),
        pytest.param({"hostname": "h"}, None, {}, id="no-subdomain"),
        pytest.param({"subdomain": "web"}, None, {}, id="no-hostname"),
    ],
)
def test_node_zone_and_hostname_of_an_endpoint(spec: Tree, labels: Tree | None, expected: Tree) -> None:
    node = None if labels is None else convert({"metadata": {"name": "n", "labels": labels}}, Node)
    found = endpoint(a_service(), a_pod(**spec), node)
    assert found.pop("conditions") == {"ready": True, "serving": True, "terminating": False}
    reference = {"kind": "Pod", "namespace": "default", "name": "p", "uid": "uid-p"}
    assert found == {"addresses": ["10.0.0.1"], "targetRef": reference, **expected}


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        pytest.param({"port": 80}, [("", 80, "TCP", "")], id="number-of-the-service"),
        pytest.param({"port": 80, "targetPort": 8080}, [("", 8080, "TCP", "")], id="number-of-the-pod"),
        pytest.param({"port": 80, "targetPort": "http"}, [("", 8000, "TCP", "")], id="name"),
        pytest.param({"port": 80, "targetPort": "dns"}, [], id="name-of-another-protocol"),
        pytest.param({"port": 80, "targetPort": "dns", "protocol": "UDP"}, [("", 53, "UDP", "")], id="name-of-udp"),
        pytest.param({"port": 80, "targetPort": "none"}, [], id="unknown-name"),
        pytest.param(
            {"name": "a", "port": 80, "appProtocol": "h2c"}, [("a", 80, "TCP", "h2c")], id="application-protocol"
        ),
    ],
)
def test_ports_of_a_pod(port: Tree, expected: list[Any]) -> None:
    containers = [
        {"name": "a", "ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}]},
        {"name": "b", "ports": [{"name": "other", "containerPort": 1}, {"name": "http", "containerPort": 8000}]},
    ]
    assert ports_for(a_service(ports=[port]), a_pod(containers=containers)) == tuple(expected)


def test_pods_with_different_ports_have_separate_slices() -> None:
    def container(port: int) -> Tree:
        return {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": port}]}]}

    ports = [{"name": "a", "port": 80, "targetPort": "http", "appProtocol": "h2c"}]
    pods = [a_pod("c", **container(81)), a_pod("b", **container(80)), a_pod("a", **container(80)), a_pod("d")]
    bodies = slice_bodies(a_service(ports=ports), pods, lambda _: None)
    assert [([e["targetRef"]["name"] for e in each["endpoints"]], each["ports"]) for each in bodies] == [
        (["d"], []),
        (["a", "b"], [{"name": "a", "port": 80, "protocol": "TCP", "appProtocol": "h2c"}]),
        (["c"], [{"name": "a", "port": 81, "protocol": "TCP", "appProtocol": "h2c"}]),
    ]


@pytest.mark.parametrize(
    ("labels", "address", "expected"),
    [
        pytest.param({"team": "a"}, "10.1.0.1", {"team": "a", **MANAGED_LABELS}, id="labels-of-the-service"),
        pytest.param(
            {"service.kubernetes.io/headless": "x", "kubernetes.io/service-name": "y"},
            "10.1.0.1",
            MANAGED_LABELS,
            id="reserved",
        ),
        pytest.param({}, "None", {**MANAGED_LABELS, "service.kubernetes.io/headless": ""}, id="headless"),
    ],
)
def test_labels_of_a_slice(labels: Tree, address: str, expected: Tree) -> None:
    assert slice_labels(a_service(labels=labels, clusterIP=address)) == expected


# The controller without an API server.


async def sync(
    harness: SingleControllerHarness[EndpointSliceController],
    service: UntypedObject,
    *items: PodFields | EndpointSliceFields,
) -> list[Any]:
    harness.deliver(harness.controller.services, service)
    for item in items:
        harness.deliver(harness.controller.pods if isinstance(item, PodFields) else harness.controller.slices, item)
    harness.queued()
    assert await harness.controller.sync(WEB) is None
    return harness.requests


@pytest.mark.parametrize(
    "spec",
    [pytest.param({"selector": None}, id="no-selector"), pytest.param({"type": "ExternalName"}, id="external-name")],
)
@async_test
async def test_services_without_slices(spec: Tree) -> None:
    async with run_controller(EndpointSliceController) as harness:
        assert await sync(harness, a_service(**spec), a_pod(), a_slice()) == []
        harness.deliver_deletion(harness.controller.services, a_service(**spec))
        assert await harness.controller.sync(WEB) is None


@async_test
async def test_a_new_slice_is_owned_by_its_service() -> None:
    async with run_controller(EndpointSliceController) as harness:
        ((line, body),) = await sync(harness, a_service(), a_pod())
    assert line == f"POST {PATH}"
    assert (body["apiVersion"], body["kind"], body["addressType"]) == ("discovery.k8s.io/v1", "EndpointSlice", "IPv4")
    ((owner,),) = (body["metadata"].pop("ownerReferences"),)
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Service", "web", "uid-web", True)
    assert body["metadata"] == {"generateName": "web-", "labels": MANAGED_LABELS}
    assert [each["addresses"] for each in body["endpoints"]] == [["10.0.0.1"]]
    assert body["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]


CURRENT_BODY = slice_bodies(a_service(), [a_pod()], lambda _: None)[0]


@pytest.mark.parametrize(
    ("found", "written"),
    [
        pytest.param(a_slice(body=CURRENT_BODY), None, id="right"),
        pytest.param(a_slice(body={**CURRENT_BODY, "endpoints": None}), MANAGED_LABELS, id="other-endpoints"),
        pytest.param(a_slice(body={**CURRENT_BODY, "ports": None}), MANAGED_LABELS, id="other-ports"),
        pytest.param(
            a_slice(body=CURRENT_BODY, labels={**MANAGED_LABELS, "old": "x"}),
            {**MANAGED_LABELS, "old": None},
            id="stale-label",
        ),
    ],
)
@async_test
async def test_an_outdated_slice_is_patched(found: EndpointSliceFields, written: Tree | None) -> None:
    async with run_controller(EndpointSliceController) as harness:
        requests = await sync(harness, a_service(), a_pod(), found)
    content = {"endpoints": CURRENT_BODY["endpoints"], "ports": CURRENT_BODY["ports"]}
    meta = {"labels": written, "resourceVersion": "5"}
    assert requests == ([(f"PATCH {PATH}/web-1", {"metadata": meta, **content})] if written else [])


@async_test
async def test_a_service_without_pods_has_an_empty_slice() -> None:
    async with run_controller(EndpointSliceController) as harness:
        assert await sync(harness, a_service(), a_slice()) == []


@async_test
async def test_surplus_slices_are_deleted_and_terminating_ones_ignored() -> None:
    terminating = a_slice("web-0", CURRENT_BODY, deletionTimestamp="2026-01-01T00:00:00Z")
    async with run_controller(EndpointSliceController) as harness:
        requests = await sync(
            harness, a_service(), a_pod(), a_slice("web-2", CURRENT_BODY), a_slice("web-1", CURRENT_BODY), terminating
        )
    assert [line for line, _ in requests] == [f"DELETE {PATH}/web-2"]


@pytest.mark.parametrize(
    ("old", "new", "queued"),
    [
        pytest.param(None, a_pod(), True, id="comes"),
        pytest.param(a_pod(), None, True, id="goes"),
        pytest.param(a_pod(), a_pod(restartPolicy="Never"), False, id="same-endpoint"),
        pytest.param(a_pod(), a_pod(ip="10.0.0.2"), True, id="other-address"),
        pytest.param(a_pod(), a_pod(ready=False), True, id="not-ready-any-more"),
        pytest.param(a_pod(), a_pod(deleted=True), True, id="terminates"),
        pytest.param(a_pod(), a_pod(phase="Failed"), True, id="ends"),
        pytest.param(a_pod(), a_pod(nodeName="n"), True, id="is-bound"),
        pytest.param(a_pod(), a_pod(labels={"app": "db"}), True, id="leaves-the-selector"),
        pytest.param(None, a_pod(labels={"app": "db"}), False, id="not-selected"),
    ],
)
@async_test
async def test_services_enqueued_by_pod_events(old: PodFields | None, new: PodFields | None, queued: bool) -> None:
    async with run_controller(EndpointSliceController) as harness:
        harness.deliver(harness.controller.services, a_service())
        harness.deliver(
            harness.controller.services, a_service("other", selector=None), a_service("two", selector={"b": "1"})
        )
        if old is not None:
            harness.deliver(harness.controller.pods, old)
        assert harness.queued()
        if new is not None:
            harness.deliver(harness.controller.pods, new)
        elif old is not None:
            harness.deliver_deletion(harness.controller.pods, old)
        assert harness.queued() == ({WEB: BATCH_PERIOD_S} if queued else {})


@async_test
async def test_a_service_is_indexed_by_its_first_label() -> None:
    async with run_controller(EndpointSliceController) as harness:
        harness.deliver(harness.controller.services, a_service(selector={"tier": "front", "app": "web"}))
        harness.queued()
        harness.deliver(harness.controller.pods, a_pod("tier", labels={"tier": "front"}))
        assert harness.queued() == {}
        harness.deliver(harness.controller.pods, a_pod("app", labels={"app": "web"}))
        assert harness.queued() == {WEB: BATCH_PERIOD_S}


@pytest.mark.parametrize(
    ("labels", "queued"),
    [
        pytest.param(MANAGED_LABELS, {WEB: BATCH_PERIOD_S}, id="managed"),
        pytest.param({"kubernetes.io/service-name": "web"}, {}, id="foreign"),
    ],
)
@async_test
async def test_services_enqueued_by_slice_events(labels: Tree, queued: Tree) -> None:
    async with run_controller(EndpointSliceController) as harness:
        item = a_slice(labels=labels)
        harness.deliver(harness.controller.slices, item)
        assert harness.queued() == queued
        harness.deliver_deletion(harness.controller.slices, item)
        assert harness.queued() == queued
