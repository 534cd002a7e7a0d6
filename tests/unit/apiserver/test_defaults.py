"""Defaults of fields, allocated numbers of services, and responses of reviews."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.auth import reviews
from bayplan.apiserver.defaulting.kind_defaults import set_defaults
from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.writes.ip_port_allocation import allocate

Tree = dict[str, Any]
FLOW = "flowcontrol.apiserver.k8s.io"
SHARES = {"nominalConcurrencyShares": 30, "lendablePercent": 0}
BALANCER = {"type": "LoadBalancer", "ports": [{"port": 1}]}
HTTP = {"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}}
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def defaulted(kind: str, group: str, body: Tree) -> Tree:
    item = {"metadata": {"name": "a"}, "kind": kind, **body}
    set_defaults(built_in(kind, group), item)
    return item


def container(fields: Tree) -> Tree:
    item = defaulted("Pod", "", {"spec": {"containers": [{"name": "c", **fields}]}})
    found: Tree = item["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("kind", "group", "body", "path", "expected"),
    [
        (
            "Service",
            "",
            {"spec": {"ports": [{"port": 1}]}},
            "spec.ports.0",
            {"port": 1, "targetPort": 1, "protocol": "TCP"},
        ),
        ("Service", "", {"spec": {}}, "spec.internalTrafficPolicy", "Cluster"),
        ("Service", "", {"spec": {}}, "spec.externalTrafficPolicy", None),
        ("Service", "", {"spec": {"externalIPs": ["1.2.3.4"]}}, "spec.externalTrafficPolicy", "Cluster"),
        ("Service", "", {"spec": {"type": "NodePort"}}, "spec.externalTrafficPolicy", "Cluster"),
        ("Service", "", {"spec": {"type": "NodePort"}}, "spec.allocateLoadBalancerNodePorts", None),
        ("Service", "", {"spec": BALANCER}, "spec.allocateLoadBalancerNodePorts", True),
        ("Service", "", {"spec": {"type": "ExternalName"}}, "spec.internalTrafficPolicy", None),
        (
            "Service",
            "",
            {"spec": {"type": "ExternalName", "externalIPs": ["1.2.3.4"]}},
            "spec.externalTrafficPolicy",
            None,
        ),
        (
            "Service",
            "",
            {"spec": {"sessionAffinity": "ClientIP"}},
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            10800,
        ),
        ("Service", "", {"spec": {"sessionAffinityConfig": {"clientIP": {}}}}, "spec.sessionAffinityConfig", None),
        (
            "Service",
            "",
            {"spec": BALANCER, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
            "status.loadBalancer.ingress.0.ipMode",
            "VIP",
        ),
        (
            "Service",
            "",
            {"spec": BALANCER, "status": {"loadBalancer": {"ingress": [{"hostname": "h"}]}}},
            "status.loadBalancer.ingress.0.ipMode",
            None,
        ),
        (
            "Service",
            "",
            {"spec": {}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
            "status.loadBalancer.ingress.0.ipMode",
            None,
        ),
        ("Node", "", {"spec": {"podCIDR": "a"}}, "spec.podCIDRs", ["a"]),
        ("Node", "", {"spec": {"podCIDR": "a", "podCIDRs": ["b", "c"]}}, "spec.podCIDRs", ["a"]),
        ("Node", "", {"spec": {"podCIDR": "a", "podCIDRs": ["a", "c"]}}, "spec.podCIDRs", ["a", "c"]),
        ("Node", "", {"spec": {"podCIDRs": ["b", "c"]}}, "spec.podCIDR", "b"),
        ("Node", "", {"status": {"capacity": {"cpu": "1"}}}, "status.allocatable", {"cpu": "1"}),
        (
            "Node",
            "",
            {"status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"}}},
            "status.allocatable",
            {"cpu": "1"},
        ),
        ("Node", "", {}, "status.daemonEndpoints.kubeletEndpoint.Port", 0),
        ("Namespace", "", {}, "metadata.labels", {"kubernetes.io/metadata.name": "a"}),
        ("Namespace", "", {}, "status.phase", "Active"),
        (
            "LimitRange",
            "",
            {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}},
            "spec.limits.0.default",
            {"cpu": "2"},
        ),
        (
            "LimitRange",
            "",
            {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}},
            "spec.limits.0.defaultRequest",
            {"cpu": "2"},
        ),
        (
            "LimitRange",
            "",
            {"spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}}]}},
            "spec.limits.0.default",
            None,
        ),
        (
            "LimitRange",
            "",
            {"spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}}]}},
            "spec.limits.0.defaultRequest",
            {"cpu": "2"},
        ),
        ("LimitRange", "", {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}}, "spec.limits.0.default", None),
        ("Secret", "", {"stringData": {"a": "b"}, "data": {"a": "Yg=="}}, "data", {"a": "Yg=="}),
        ("Secret", "", {"stringData": {"a": "b"}}, "stringData", None),
        ("NetworkPolicy", "networking.k8s.io", {"spec": {"egress": [{}]}}, "spec.policyTypes", ["Ingress", "Egress"]),
        ("NetworkPolicy", "networking.k8s.io", {"spec": {}}, "spec.policyTypes", ["Ingress"]),
        (
            "NetworkPolicy",
            "networking.k8s.io",
            {"spec": {"egress": [{"ports": [{}]}]}},
            "spec.egress.0.ports.0.protocol",
            "TCP",
        ),
        ("FlowSchema", FLOW, {"spec": {}}, "spec.matchingPrecedence", 1000),
        ("FlowSchema", FLOW, {"spec": {"matchingPrecedence": 5}}, "spec.matchingPrecedence", 5),
        ("FlowSchema", FLOW, {"spec": {}}, "status", {}),
        (
            "PriorityLevelConfiguration",
            FLOW,
            {"spec": {"exempt": {}}},
            "spec.exempt",
            {"nominalConcurrencyShares": 0, "lendablePercent": 0},
        ),
        (
            "PriorityLevelConfiguration",
            FLOW,
            {"spec": {"limited": {}}},
            "spec.limited",
            {**SHARES, "limitResponse": {}},
        ),
        (
            "PriorityLevelConfiguration",
            FLOW,
            {"spec": {"limited": {"limitResponse": {"queuing": {}}}}},
            "spec.limited.limitResponse.queuing",
            {"queues": 64, "handSize": 8, "queueLengthLimit": 50},
        ),
        ("PriorityLevelConfiguration", FLOW, {"spec": {}}, "status", {}),
        (
            "ResourceSlice",
            "resource.k8s.io",
            {"spec": {}},
            "spec.pool",
            {"name": "", "generation": 0, "resourceSliceCount": 0},
        ),
        ("ResourceClaim", "resource.k8s.io", {"spec": {}}, "status", {}),
        ("ServiceCIDR", "networking.k8s.io", {}, "status", {}),
        ("ServiceCIDR", "networking.k8s.io", {}, "spec", {}),
        ("CertificateSigningRequest", "certificates.k8s.io", {}, "status", {}),
        ("CertificateSigningRequest", "certificates.k8s.io", {}, "spec.signerName", ""),
        ("StorageClass", "storage.k8s.io", {}, "reclaimPolicy", "Delete"),
        ("CSIDriver", "storage.k8s.io", {"spec": {}}, "spec.attachRequired", True),
        ("CSIDriver", "storage.k8s.io", {"spec": {}}, "spec.volumeLifecycleModes", ["Persistent"]),
        (
            "RoleBinding",
            "rbac.authorization.k8s.io",
            {"subjects": [{"kind": "User"}]},
            "subjects.0.apiGroup",
            "rbac.authorization.k8s.io",
        ),
        (
            "RoleBinding",
            "rbac.authorization.k8s.io",
            {"subjects": [{"kind": "ServiceAccount"}]},
            "subjects.0.apiGroup",
            None,
        ),
        ("IngressClass", "networking.k8s.io", {"spec": {"parameters": {}}}, "spec.parameters.scope", "Cluster"),
        ("ValidatingAdmissionPolicy", "admissionregistration.k8s.io", {"spec": {}}, "status", {}),
        (
            "ValidatingAdmissionPolicy",
            "admissionregistration.k8s.io",
            {"spec": {"matchConstraints": {"excludeResourceRules": [{}]}}},
            "spec.matchConstraints.excludeResourceRules.0.scope",
            "*",
        ),
        ("Pod", "", {"spec": {"terminationGracePeriodSeconds": -1}}, "spec.terminationGracePeriodSeconds", 1),
        ("Pod", "", {"spec": {"terminationGracePeriodSeconds": 0}}, "spec.terminationGracePeriodSeconds", 0),
        ("Pod", "", {"spec": {}}, "spec.terminationGracePeriodSeconds", 30),
        ("Pod", "", {"spec": {}}, "spec.enableServiceLinks", True),
        ("Pod", "", {"spec": {"serviceAccount": "a"}}, "spec.serviceAccountName", "a"),
        ("Pod", "", {"status": {"podIP": "1"}}, "status.podIPs", [{"ip": "1"}]),
        (
            "Pod",
            "",
            {"status": {"podIP": "1", "podIPs": [{"ip": "1"}, {"ip": "2"}]}},
            "status.podIPs",
            [{"ip": "1"}, {"ip": "2"}],
        ),
        ("Pod", "", {"status": {"podIP": "1", "podIPs": [{"ip": "3"}, {"ip": "2"}]}}, "status.podIPs", [{"ip": "1"}]),
        ("Pod", "", {"status": {"podIPs": [{"ip": "3"}]}}, "status.podIP", "3"),
        (
            "Pod",
            "",
            {"spec": {"hostNetwork": True, "containers": [{"ports": [{"containerPort": 5}]}]}},
            "spec.containers.0.ports.0.hostPort",
            5,
        ),
        (
            "Pod",
            "",
            {"spec": {"containers": [{"ports": [{"containerPort": 5}]}]}},
            "spec.containers.0.ports.0.hostPort",
            None,
        ),
        (
            "Pod",
            "",
            {"spec": {"hostNetwork": True, "containers": [{"ports": [{"containerPort": 5, "hostPort": 6}]}]}},
            "spec.containers.0.ports.0.hostPort",
            6,
        ),
        (
            "Pod",
            "",
            {
                "spec": {
                    "resources": {"limits": {"cpu": "2"}},
                    "containers": [{"resources": {"requests": {"cpu": "1"}}}],
                }
            },
            "spec.resources.requests",
            {"cpu": "1"},
        ),
        (
            "Pod",
            "",
            {"spec": {"resources": {"limits": {"cpu": "2"}}, "containers": [{}]}},
            "spec.resources.requests",
            {"cpu": "2"},
        ),
        (
            "Pod",
            "",
            {
                "spec": {
                    "resources": {"limits": {"cpu": "2"}},
                    "containers": [{"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}],
                }
            },
            "spec.resources.limits",
            {"cpu": "2", "hugepages-2Mi": "2Mi"},
        ),
    ],
)
def test_defaults_of_fields(kind: str, group: str, body: Tree, path: str, expected: Any) -> None:
    found: Any = defaulted(kind, group, body)
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found.get(step)
        if found is None:
            break
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({"image": "a"}, "imagePullPolicy", "Always"),
        ({"image": "a:1"}, "imagePullPolicy", "IfNotPresent"),
        ({"image": "a:latest"}, "imagePullPolicy", "Always"),
        ({"ports": [{}]}, "ports", [{"protocol": "TCP", "containerPort": 0}]),
        ({"livenessProbe": {"httpGet": {"port": 1}}}, "livenessProbe", {**PROBE, **HTTP}),
        ({"startupProbe": {"grpc": {"port": 1}}}, "startupProbe", {**PROBE, "grpc": {"port": 1, "service": ""}}),
        ({"readinessProbe": {"periodSeconds": 2}}, "readinessProbe", {**PROBE, "periodSeconds": 2}),
        (
            {"lifecycle": {"preStop": {"httpGet": {"port": 1}}, "stopSignal": "A"}},
            "lifecycle",
            {"preStop": HTTP, "stopSignal": "A"},
        ),
        (
            {"env": [{"valueFrom": {"resourceFieldRef": {}}}]},
            "env",
            [{"valueFrom": {"resourceFieldRef": {"divisor": "0"}}}],
        ),
        ({"env": [{"valueFrom": {"fieldRef": {}}}]}, "env", [{"valueFrom": {"fieldRef": {"apiVersion": "v1"}}}]),
        ({"env": [{"valueFrom": {"fileKeyRef": {}}}]}, "env", [{"valueFrom": {"fileKeyRef": {"optional": False}}}]),
        ({"resources": {"limits": {"cpu": "2"}}}, "resources", {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}),
        ({"resources": {"requests": {"cpu": "1u"}}}, "resources", {"requests": {"cpu": "1m"}}),
    ],
)
def test_defaults_of_containers(fields: Tree, field: str, expected: Any) -> None:
    assert container(fields)[field] == expected


# Allocated numbers of services


def service(name: str = "s", **spec: Any) -> Tree:
    return {"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"type": "ClusterIP", **spec}}


def allocated_spec(item: Tree, *other_services: Tree, old: Tree | None = None) -> Tree:
    allocate(item, old, other_services)
    found: Tree = item["spec"]
    return found


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (29999, "The range of valid ports is 30000-32767"),
        (30000, ""),
        (32767, ""),
        (32768, "The range of valid ports is 30000-32767"),
        (31000, "provided port is already allocated"),
        (31001, "provided port is already allocated"),
    ],
)
def test_a_node_port_must_be_free_and_in_range(number: int, message: str) -> None:
    other = service("o", type="LoadBalancer", ports=[{"port": 1, "nodePort": 31000}], healthCheckNodePort=31001)
    item = service(type="NodePort", ports=[{"port": 1, "nodePort": number}])
    if not message:
        assert allocated_spec(item, other)["ports"][0]["nodePort"] == number
        return
    with pytest.raises(StatusError, match=message):
        allocated_spec(item, other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.0", ""),
        ("10.0.0.255", ""),
        ("10.0.1.0", "the provided network does not match the current range"),
        ("10.0.0.7", "provided IP is already allocated"),
    ],
)
def test_a_cluster_ip_must_be_free_and_in_range(text: str, message: str) -> None:
    other = service("o", clusterIP="10.0.0.7", clusterIPs=["10.0.0.7"])
    item = service(clusterIP=text)
    if not message:
        assert allocated_spec(item, other)["clusterIPs"] == [text]
        return
    with pytest.raises(StatusError, match=message):
        allocated_spec(item, other)


def test_the_last_free_address_is_found_and_then_the_range_is_full() -> None:
    other_services = [
        service(f"o{number}", clusterIPs=[f"10.0.0.{number}"]) for number in range(16, 255) if number != 99
    ]
    assert allocated_spec(service(), *other_services)["clusterIP"] == "10.0.0.99"
    with pytest.raises(StatusError, match="range is full"):
        allocated_spec(service(), *other_services, service("last", clusterIPs=["10.0.0.99"]))


def test_the_last_free_port_is_found_and_then_the_range_is_full() -> None:
    ports = [{"port": 1, "nodePort": number} for number in range(30000, 32768) if number != 31234]
    other = service("o", ports=ports)
    assert allocated_spec(service(type="NodePort", ports=[{"port": 1}]), other)["ports"][0]["nodePort"] == 31234
    with pytest.raises(StatusError, match="range is full"):
        allocated_spec(service(type="NodePort", ports=[{"port": 1}, {"port": 2}]), other)


def test_service_ports_with_one_number_share_a_node_port() -> None:
    ports = [{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}, {"port": 2}]
    first, second, third = (each["nodePort"] for each in allocated_spec(service(type="NodePort", ports=ports))["ports"])
    assert first == second != third


@pytest.mark.parametrize(
    ("spec", "has_port", "has_check"),
    [
        ({"type": "ClusterIP"}, False, False),
        ({"type": "NodePort"}, True, False),
        ({"type": "LoadBalancer"}, True, False),
        ({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}, False, False),
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, True, True),
        ({"type": "NodePort", "externalTrafficPolicy": "Local"}, True, False),
        ({"type": "NodePort", "allocateLoadBalancerNodePorts": False}, True, False),
    ],
)
def test_services_that_get_node_ports(spec: Tree, has_port: bool, has_check: bool) -> None:
    found = allocated_spec(service(ports=[{"port": 1}], **spec))
    assert ("nodePort" in found["ports"][0], "healthCheckNodePort" in found) == (has_port, has_check)


def test_an_update_keeps_omitted_numbers() -> None:
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 1, "name": "a"}]}
    old = service(**spec)
    before = allocated_spec(old)
    new = service(type="LoadBalancer", externalTrafficPolicy="Local", ports=[{"port": 1, "name": "a"}])
    assert allocated_spec(new, old, old=old) == before


# Reviews

OBJECTS = {"verb": "get", "resource": "pods", "namespace": "n"}


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("SelfSubjectAccessReview", {"resourceAttributes": OBJECTS}, ""),
        ("SelfSubjectAccessReview", {}, "exactly one of nonResourceAttributes or resourceAttributes"),
        ("SelfSubjectAccessReview", {"resourceAttributes": {}, "nonResourceAttributes": {}}, "in combination with"),
        ("SubjectAccessReview", {"resourceAttributes": OBJECTS}, "at least one of user or group"),
        ("SubjectAccessReview", {"resourceAttributes": OBJECTS, "user": "u"}, ""),
        ("SubjectAccessReview", {"resourceAttributes": OBJECTS, "groups": ["g"]}, ""),
        ("LocalSubjectAccessReview", {"resourceAttributes": OBJECTS, "user": "u"}, ""),
        ("LocalSubjectAccessReview", {"resourceAttributes": {"namespace": "m"}, "user": "u"}, "must match metadata"),
        ("LocalSubjectAccessReview", {"nonResourceAttributes": {"path": "/"}, "user": "u"}, "disallowed on this kind"),
    ],
)
def test_an_access_review_has_one_kind_of_attributes(kind: str, spec: Tree, message: str) -> None:
    review = {"kind": kind, "spec": spec}
    if not message:
        empty = {"group": "", "subresource": "", "name": ""}
        assert reviews.review_attributes(review, namespace="n") == {**OBJECTS, **empty}
        return
    with pytest.raises(StatusError, match=message):
        reviews.review_attributes(review, namespace="n")


def test_the_attributes_of_a_non_resource_review() -> None:
    review = {"kind": "SelfSubjectAccessReview", "spec": {"nonResourceAttributes": {"path": "/m", "verb": "get"}}}
    assert reviews.review_attributes(review) == {"verb": "get", "path": "/m"}


def test_responses_of_reviews() -> None:
    review = {"kind": "SubjectAccessReview", "metadata": {"a": "b"}, "spec": {"user": "u"}}
    answer = reviews.access_review(review, allowed=True, reason="r", namespace="n")
    assert (answer["metadata"], answer["spec"]) == ({"a": "b", "namespace": "n"}, {"user": "u"})
    assert answer["status"] == {"allowed": True, "reason": "r"}
    assert reviews.access_review(review, allowed=False)["status"] == {"allowed": False}
    assert reviews.rules_namespace({"spec": {"namespace": "n"}}) == "n"
    with pytest.raises(StatusError, match="no namespace on request"):
        reviews.rules_namespace({"spec": {}})
    token = reviews.token_review({"spec": {"token": "t"}}, {"username": "u"}, "issuer")
    assert token["status"] == {"authenticated": True, "user": {"username": "u"}, "audiences": ["issuer"]}
    assert reviews.token_review({}, None, "issuer")["status"]["error"] == "invalid bearer token"
