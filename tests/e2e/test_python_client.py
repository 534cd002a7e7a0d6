"""The official Python client: it lists, watches, creates, patches and deletes as on any cluster."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

from cluster.run import Cluster


@pytest.fixture
def api(cluster: Cluster) -> client.ApiClient:
    return config.new_client_from_config(str(cluster.kubeconfig()))


def pod(name: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "example.com/c:1"}], "schedulerName": "nobody"}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def test_the_life_of_a_pod(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    made = core.create_namespaced_pod(namespace, pod("a"))
    assert made.status.phase == "Pending"
    assert [each.metadata.name for each in core.list_namespaced_pod(namespace).items] == ["a"]
    patched = core.patch_namespaced_pod("a", namespace, {"metadata": {"labels": {"x": "y"}}})
    assert patched.metadata.labels == {"app": "a", "x": "y"}
    patched = core.patch_namespaced_pod("a", namespace, [{"op": "remove", "path": "/metadata/labels/x"}])
    assert patched.metadata.labels == {"app": "a"}
    patched.metadata.annotations = {"k": "v"}
    assert core.replace_namespaced_pod("a", namespace, patched).metadata.annotations == {"k": "v"}
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_pod(namespace, pod("a"))
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    core.delete_namespaced_pod("a", namespace)
    with pytest.raises(ApiException, match="404"):
        core.read_namespaced_pod("a", namespace)


def test_a_watch_delivers_events(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    first = core.list_namespaced_pod(namespace)
    core.create_namespaced_pod(namespace, pod("a"))
    core.delete_namespaced_pod("a", namespace, grace_period_seconds=0)
    stream = watch.Watch().stream(
        core.list_namespaced_pod, namespace, resource_version=first.metadata.resource_version, timeout_seconds=1
    )
    told = [(each["type"], each["object"].metadata.name) for each in stream]
    assert told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_deployment_is_scaled(api: client.ApiClient, namespace: str) -> None:
    apps = client.AppsV1Api(api)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    apps.create_namespaced_deployment(namespace, {"metadata": {"name": "web"}, "spec": spec})
    apps.patch_namespaced_deployment_scale("web", namespace, {"spec": {"replicas": 4}})
    assert apps.read_namespaced_deployment_scale("web", namespace).spec.replicas == 4
    assert apps.read_namespaced_deployment("web", namespace).metadata.generation == 2


def test_the_dynamic_client_applies(api: client.ApiClient, namespace: str) -> None:
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    maps.server_side_apply(body=body, namespace=namespace, field_manager="tests")
    found = maps.get(name="c", namespace=namespace)
    assert (found.data.a, found.metadata.managedFields[0].operation) == ("1", "Apply")
