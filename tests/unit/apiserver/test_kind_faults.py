"""Refused fields of kinds other than pods, each with all its errors, and accepted values next to them."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders.recorded_bounds import assert_faults

P = "spec.rules.0.http.paths.0"
R = "webhooks.0.rules.0"
U = "webhooks.0.clientConfig"
IN = "spec.ingress.0"


BUCKET = {"resource": {"kind": "K", "name": "n"}}


def service_hook(path: str) -> dict[str, Any]:
    return {"service": {"name": "s", "namespace": "n", "path": path}}


TABLES: dict[str, list[tuple[str, Any, list[str]]]] = {
    "Ingress/site": [
        ("spec.rules.0.host", "10.0.0.1", ["rules[0].host: must be a DNS name, not an IP address"]),
        ("spec.rules.0.host", "*.example.com", []),
        ("spec.rules.0.host", "a.*.com", ["rules[0].host: a wildcard DNS-1123 subdomain"]),
        ("spec.rules.0.http.paths", [], ["rules[0].http.paths: Required value"]),
        ("spec.tls.0.hosts", ["*.a"], []),
        ("spec.tls.0.hosts", ["*a"], ["tls[0].hosts[0]: a wildcard DNS-1123 subdomain"]),
        (f"{P}.path", "a", ["paths[0].path: must be an absolute path"]),
        (f"{P}.path", "/a//b", ["paths[0].path: must not contain '//'"]),
        (f"{P}.path", "/a/..", ["paths[0].path: cannot end with '/..'"]),
        (f"{P}.path", "/a/.", ["paths[0].path: cannot end with '/.'"]),
        (P, {"pathType": "ImplementationSpecific", "backend": BUCKET}, []),
        (
            P,
            {"pathType": "ImplementationSpecific", "path": "a", "backend": BUCKET},
            ["paths[0].path: must be an absolute path"],
        ),
        (P, {"pathType": "ImplementationSpecific", "path": "/a//b", "backend": BUCKET}, []),
        (f"{P}.pathType", "Odd", ["paths[0].pathType: Unsupported value"]),
        (f"{P}.backend", {}, ["paths[0].backend: resource or service backend is required"]),
        (f"{P}.backend.resource", {"kind": "K", "name": "n"}, ["cannot set both resource and service backends"]),
        (f"{P}.backend.service.port", {"name": "a", "number": 1}, ["cannot set both port name & port number"]),
        (f"{P}.backend.service.port", {}, ["paths[0].backend: port name or number is required"]),
        (f"{P}.backend.service.port", {"number": 65536}, ["service.port.number: must be between 1 and 65535"]),
        (f"{P}.backend.service.name", "", ["service.name: Required value"]),
        ("metadata.annotations", {"kubernetes.io/ingress.class": "nginx"}, []),
        ("metadata.annotations", {"kubernetes.io/ingress.class": "other"}, ["must match `ingressClassName`"]),
    ],
    "IngressClass/nginx": [
        ("spec.parameters.scope", "Namespace", ["spec.parameters.namespace: Required value"]),
        ("spec.parameters.namespace", "n", ["spec.parameters.namespace: `parameters.scope` is set to 'Cluster'"]),
        ("spec.parameters.scope", "Odd", ["spec.parameters.scope: Unsupported value"]),
        ("spec.controller", "a.io", ["spec.controller: must be a domain-prefixed path"]),
        ("spec.controller", "a.io/b/c", []),
        ("spec.controller", "a.io/b c", ["spec.controller: Invalid path"]),
    ],
    "NetworkPolicy/guard": [
        (f"{IN}.from.1.ipBlock.except", ["10.0.0.0/8"], ["except[0]: must be a strict subset of `cidr`"]),
        (f"{IN}.from.1.ipBlock.except", ["10.0.0.0/9"], []),
        (f"{IN}.from.1.ipBlock.except", ["11.0.0.0/9"], ["except[0]: must be a strict subset of `cidr`"]),
        (f"{IN}.from.1.ipBlock.except", ["fd00::/64"], ["except[0]: must be a strict subset of `cidr`"]),
        (f"{IN}.from.1.ipBlock.cidr", "", ["ipBlock.cidr: Required value"]),
        (f"{IN}.from.1.podSelector", {}, ["may not specify both ipBlock and another peer"]),
        (f"{IN}.from.0.namespaceSelector", {}, []),
        (f"{IN}.from.0", {}, ["from[0]: must specify a peer"]),
        (f"{IN}.ports.1.port", "web", ["ports[1].endPort: may not be specified when `port` is non-numeric"]),
        (f"{IN}.ports.1", {"endPort": 1}, ["ports[1].endPort: may not be specified when `port` is not specified"]),
        (f"{IN}.ports.1.endPort", 65536, ["ports[1].endPort: must be between 1 and 65535"]),
        (f"{IN}.ports.0.protocol", "SCTP", []),
        (f"{IN}.ports.0.protocol", "ICMP", ["ports[0].protocol: Unsupported value"]),
        ("spec.policyTypes", ["Ingress", "Egress"], []),
        ("spec.policyTypes", ["Ingress", "Egress", "Ingress"], ["may not specify more than two policyTypes"]),
        ("spec.policyTypes", ["Odd"], ["spec.policyTypes[0]: Unsupported value"]),
    ],
    "Role/reader": [
        ("rules.0.nonResourceURLs", ["/a"], ["rules cannot apply to both", "namespaced rules cannot apply to"]),
        ("rules.0.verbs", [], ["rules[0].verbs: verbs must contain at least one value"]),
        ("rules.0.apiGroups", [], ["rules[0].apiGroups: resource rules must supply at least one api group"]),
        ("rules.0.resources", [], ["rules[0].resources: resource rules must supply at least one resource"]),
    ],
    "ClusterRole/all": [
        ("aggregationRule", {}, ["clusterRoleSelectors: at least one clusterRoleSelector required"]),
        (
            "aggregationRule.clusterRoleSelectors",
            [{"matchLabels": {"bad key!": "b"}}],
            ["clusterRoleSelectors[0]: invalid label selector.", "clusterRoleSelectors[0].matchLabels: name part"],
        ),
    ],
    "RoleBinding/readers": [
        ("roleRef.kind", "ClusterRole", []),
        ("roleRef.kind", "Odd", ["roleRef.kind: Unsupported value"]),
        ("roleRef.apiGroup", "apps", ["roleRef.apiGroup: Unsupported value"]),
        ("roleRef.name", "", ["roleRef.name: Required value"]),
        ("subjects.1.namespace", "", []),
        ("subjects.1.apiGroup", "apps", ["subjects[1].apiGroup: Unsupported value"]),
        ("subjects.0.apiGroup", "apps", ["subjects[0].apiGroup: Unsupported value"]),
        ("subjects.0.kind", "Odd", ["subjects[0].kind: Unsupported value"]),
        ("subjects.0.name", "", ["subjects[0].name: Required value"]),
    ],
    "ClusterRoleBinding/readers": [
        ("roleRef.kind", "Role", ["roleRef.kind: Unsupported value"]),
        ("subjects.0", {"kind": "ServiceAccount", "name": "a"}, ["subjects[0].namespace: Required value"]),
        ("subjects.0", {"kind": "ServiceAccount", "name": "a", "namespace": "n"}, []),
    ],
    "MutatingWebhookConfiguration/changing": [
        (f"{R}.operations", ["*"], []),
        (f"{R}.operations", ["*", "CREATE"], ["operations: if '*' is present, must not specify other operations"]),
        (f"{R}.operations", [], ["operations: Required value"]),
        (f"{R}.operations", ["ODD"], ["operations[0]: Unsupported value"]),
        (f"{R}.apiVersions", [""], ["apiVersions[0]: Required value"]),
        (f"{R}.resources", [], ["rules[0].resources: Required value"]),
        (f"{R}.resources", ["*"], []),
        (f"{R}.resources", ["*", "*/*"], ["if '*/*' is present, must not specify other resources"]),
        (f"{R}.resources", ["*", "pods"], ["if '*' is present, must not specify other resources without sub"]),
        (f"{R}.resources", ["pods", "*"], []),
        (f"{R}.resources", ["*", "pods/status"], []),
        (f"{R}.resources", ["pods/*", "pods/status"], ["[1]: if 'pods/*' is present, must not specify pods/status"]),
        (f"{R}.resources", ["*/status", "pods/status"], ["[1]: if '*/status' is present, must not specify pods/"]),
        (f"{R}.resources", ["pods/status", "nodes/status"], []),
        (f"{R}.resources", ["pods/*", "nodes/status"], []),
        (f"{R}.scope", "Odd", ["rules[0].scope: Unsupported value"]),
        ("webhooks.0.admissionReviewVersions", ["v1", "v1"], ["[1]: duplicate version"]),
        ("webhooks.0.admissionReviewVersions", ["v2"], ["must include at least one of v1, v1beta1"]),
        ("webhooks.0.admissionReviewVersions", ["v2", "v1beta1"], []),
        ("webhooks.0.sideEffects", "Some", ["sideEffects: Unsupported value"]),
        ("webhooks.0.matchConditions", [{"name": "a", "expression": " "}], ["expression: Required value"]),
        ("webhooks.0.matchConditions", [{"expression": "true"}], ["matchConditions[0].name: Required value"]),
        ("webhooks.0.matchConditions", [{"name": "a", "expression": "true"}] * 2, ["[1].name: Duplicate value"]),
        (f"{U}.url", "http://a/b", ["clientConfig.url: 'https' is the only allowed URL scheme"]),
        (f"{U}.url", "https:///b", ["clientConfig.url: host must be specified"]),
        (f"{U}.url", "https://u@a/b", ["clientConfig.url: user information is not permitted"]),
        (f"{U}.url", "https://a/b#c", ["clientConfig.url: fragments are not permitted"]),
        (f"{U}.url", "https://a/b?c", ["clientConfig.url: query parameters are not permitted"]),
        (f"{U}.service", {"name": "s", "namespace": "n"}, ["exactly one of url or service is required"]),
        (U, {}, ["exactly one of url or service is required"]),
        (U, service_hook("/"), []),
        (U, service_hook("/a/b/"), []),
        (U, service_hook("//"), ["service.path: segment[0] may not be empty"]),
        (U, service_hook("/a//b"), ["service.path: segment[1] may not be empty"]),
        (U, service_hook("/a/B"), ["service.path: segment[1]: a lowercase RFC 1123 subdomain"]),
        (U, service_hook("a"), ["service.path: must start with a '/'", "service.path: segment[0] may not be empty"]),
        (f"{U}", {"service": {"name": "s", "namespace": "n", "port": 65536}}, ["service.port: port is not valid"]),
    ],
    "Service/web": [
        ("spec.ports.1.name", "", ["ports[1].name: Required value"]),
        ("spec.ports.1.name", "http", ["ports[1].name: Duplicate value"]),
        ("spec.ports", [{"port": 80}], []),
        ("spec.ports", [], ["spec.ports: Required value"]),
        ("spec.ports.1", {"name": "b", "port": 80}, ["ports[1]: Duplicate value"]),
        ("spec.ports.1", {"name": "b", "port": 80, "protocol": "UDP"}, []),
        ("spec.ports.0.nodePort", 30080, ["ports[0].nodePort: may not be used when `type` is 'ClusterIP'"]),
        ("spec.sessionAffinity", "Odd", ["spec.sessionAffinity: Unsupported value"]),
        ("spec.externalIPs", ["127.0.0.1"], ["externalIPs[0]: may not be in the loopback range"]),
        ("spec.externalIPs", ["169.254.0.1"], ["externalIPs[0]: may not be in the link-local range"]),
        ("spec.externalIPs", ["224.0.0.1"], ["externalIPs[0]: may not be in the link-local multicast range"]),
        ("spec.externalIPs", ["0.0.0.0"], ["externalIPs[0]: may not be unspecified (0.0.0.0)"]),
        ("spec.externalIPs", ["224.0.1.1"], []),
        ("spec.loadBalancerClass", "a", ["spec.loadBalancerClass: may only be used when `type` is 'LoadBalancer'"]),
        ("spec.loadBalancerSourceRanges", ["10.0.0.0/8"], ["LoadBalancerSourceRanges: may only be used when"]),
        ("spec.externalTrafficPolicy", "Local", ["may only be set for externally-accessible services"]),
        ("spec.internalTrafficPolicy", "Odd", ["spec.internalTrafficPolicy: Unsupported value"]),
        ("spec.trafficDistribution", "PreferClose", []),
        ("spec.trafficDistribution", "Odd", ["spec.trafficDistribution: Unsupported value"]),
        ("spec.healthCheckNodePort", 30000, ["spec.healthCheckNodePort: may only be set when `type`"]),
    ],
    "Service/balanced": [
        ("spec.externalTrafficPolicy", "Local", []),
        ("spec.externalTrafficPolicy", "Odd", ["spec.externalTrafficPolicy: Unsupported value"]),
        ("spec.loadBalancerSourceRanges", [" 10.0.0.0/8 "], []),
        ("spec.loadBalancerSourceRanges", ["10.0.0.0"], ["LoadBalancerSourceRanges[0]: must be a valid CIDR value"]),
        ("spec.allocateLoadBalancerNodePorts", False, []),
    ],
    "Service/outside": [
        ("spec.externalName", "a.example.com.", []),
        ("spec.externalName", "", ["spec.externalName: Required value"]),
        ("spec.ipFamilyPolicy", "SingleStack", ["spec.ipFamilyPolicy: may not be set for ExternalName services"]),
    ],
    "Endpoints/ext": [
        ("subsets.0.ports", [{"port": 1}], []),
        ("subsets.0.ports", [{"port": 1}, {"port": 2, "name": "b"}], ["ports[0].name: Required value"]),
        ("subsets.0", {"ports": [{"port": 1}]}, ["subsets[0]: must specify `addresses` or `notReadyAddresses`"]),
        ("subsets.0.addresses.0.ip", "::1", ["addresses[0].ip: may not be in the loopback range"]),
    ],
    "EndpointSlice/web-1": [
        ("endpoints.0.addresses", [], ["endpoints[0].addresses: must contain at least 1 address"]),
        ("endpoints.0.addresses", ["fd00::1"], ["endpoints[0].addresses: must be an IPv4 address"]),
        ("endpoints.0.hints", {"forZones": [{"name": "a b"}]}, ["hints.forZones[0].name: a valid label"]),
        ("ports", [{"name": "a"}, {"name": "a"}], ["ports[1].name: Duplicate value"]),
        ("ports", [{}, {}], ["ports[1].name: Duplicate value"]),
    ],
    "PodDisruptionBudget/budget": [
        ("spec.maxUnavailable", 1, ["spec: minAvailable and maxUnavailable cannot be both set"]),
        ("spec.minAvailable", "100%", []),
        ("spec.minAvailable", "101%", ["spec.minAvailable: must not be greater than 100%"]),
        ("spec.minAvailable", "a%", ["spec.minAvailable: a valid percent string"]),
        ("spec.minAvailable", -1, ["spec.minAvailable: must be greater than or equal to 0"]),
        ("spec.unhealthyPodEvictionPolicy", "Odd", ["spec.unhealthyPodEvictionPolicy: Unsupported value"]),
    ],
    "PersistentVolumeClaim/data": [
        ("spec.accessModes", [], ["spec.accessModes: at least 1 access mode is required"]),
        ("spec.accessModes", ["ReadWriteOncePod", "ReadOnlyMany"], ["may not use ReadWriteOncePod with other access"]),
        ("spec.volumeMode", "Odd", ["spec.volumeMode: Unsupported value"]),
        ("spec.dataSource", {"kind": "PersistentVolumeClaim", "name": "c"}, []),
        ("spec.dataSourceRef", {"kind": "Odd", "name": "c"}, ["when referencing the default apiGroup"]),
        ("spec.dataSourceRef", {"kind": "K", "name": "", "apiGroup": "a.io"}, ["Source.name: Req", "Ref.name: Req"]),
    ],
    "PersistentVolume/vol": [
        ("spec.nodeAffinity", {}, ["spec.nodeAffinity.required: must specify required node constraints"]),
        ("spec.capacity", {"storage": "1", "cpu": "1"}, ["spec.capacity: Unsupported value"]),
        ("spec.capacity", {}, ["spec.capacity: Required value", "spec.capacity: Unsupported value"]),
        ("spec.local.path", "", ["spec.local.path: Required value"]),
        ("spec.local.path", "/a/../b", ["spec.local.path: must not contain '..'"]),
        ("spec.nfs", {"server": "s", "path": "/"}, ["spec.nfs: may not specify more than 1 volume type"]),
        ("spec.persistentVolumeReclaimPolicy", "Odd", ["spec.persistentVolumeReclaimPolicy: Unsupported value"]),
    ],
    "StorageClass/fast": [
        ("reclaimPolicy", "Retain", []),
        ("reclaimPolicy", "Odd", ["reclaimPolicy: Unsupported value"]),
        ("volumeBindingMode", "Odd", ["volumeBindingMode: Unsupported value"]),
        ("provisioner", "", ["provisioner: Required value"]),
        ("provisioner", "A.io/B", []),
        ("parameters", {"": "v"}, ["parameters: field can not be empty."]),
        ("allowedTopologies.0.matchLabelExpressions.0.values", ["a", "a"], ["values[1]: Duplicate value"]),
        ("allowedTopologies.0.matchLabelExpressions.0.values", [], ["values: Required value"]),
        (
            "allowedTopologies.0.matchLabelExpressions",
            [{"key": "a", "values": ["a"]}, {"key": "a", "values": ["b"]}],
            ["matchLabelExpressions[1].key: Duplicate value"],
        ),
    ],
    "VolumeAttachment/att": [
        ("spec.source", {}, ["spec.source: must specify exactly one of inlineVolumeSpec"]),
        ("spec.source.persistentVolumeName", "", ["must specify non empty persistentVolumeName", "RFC 1123 subdomain"]),
    ],
    "CSINode/n1": [
        ("spec.drivers.0.topologyKeys", ["a", "a"], ["spec.drivers[0]: Duplicate value"]),
        ("spec.drivers.0.nodeID", "", ["spec.drivers[0].nodeID: Required value"]),
        ("spec.drivers", [{"name": "a", "nodeID": "n"}] * 2, ["spec.drivers[1].name: Duplicate value"]),
        ("spec.drivers.0.allocatable", {}, []),
    ],
    "Secret/basic": [("stringData", {"username": "u"}, []), ("stringData", {}, ["[username]: Req", "[password]: Req"])],
    "Secret/pull": [
        ("data", {".dockerconfigjson": "W10="}, ["cannot unmarshal array into Go value"]),
        ("data", {".dockerconfigjson": "MQ=="}, ["cannot unmarshal number into Go value"]),
        ("data", {".dockerconfigjson": "ew=="}, ["data[.dockerconfigjson]: unexpected end of JSON input"]),
        ("data", {"other": "e30="}, ["data[.dockerconfigjson]: Required value"]),
    ],
    "ConfigMap/settings": [
        ("binaryData", {"level": "YQ=="}, ["data[level]: duplicate of key present in binaryData"]),
        ("binaryData", {"bad key!": "YQ=="}, ["binaryData[bad key!]: a valid config key"]),
    ],
    "Event/newer": [
        ("series", {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}, []),
        ("series", {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}, ["should be at least 2"]),
        ("series", {"count": 2}, ["series.lastObservedTime: Required value"]),
        ("type", "Odd", ["type: has invalid value: Odd"]),
        ("deprecatedCount", 1, ["count: needs to be unset"]),
        ("action", "", ["action: Required value"]),
        ("regarding.namespace", "", []),
    ],
    "Event/happened": [("involvedObject.namespace", "other", ["does not match event.namespace"])],
    "Lease/leader": [
        ("spec.strategy", "OldestEmulationVersion", []),
        ("spec.strategy", "a.io/own", []),
        ("spec.strategy", "Odd", ["spec.strategy.strategy: Unsupported value"]),
        ("spec.preferredHolder", "h", ["may only be specified if `strategy` is defined"]),
    ],
    "RuntimeClass/kata": [
        ("handler", "", ["handler: Required value"]),
        ("scheduling.tolerations", [{"key": "a", "operator": "Exists"}] * 2, ["tolerations[1]: Duplicate value"]),
        (
            "scheduling.tolerations",
            [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": each} for each in (1, 2)],
            ["tolerations[1]: Duplicate value"],
        ),
    ],
    "Node/n1": [
        ("spec.taints.0.effect", "", ["taints[0].effect: Required value"]),
        (
            "spec.taints",
            [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule", "value": "b"}],
            ["taints[1]: taints must be unique by key and effect pair"],
        ),
        ("spec.taints", [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}], []),
        ("status.capacity.pods", "1500m", ["capacity.pods: must be an integer", "allocatable.pods: must"]),
    ],
    "DeviceClass/gpu": [
        ("spec.extendedResourceName", "example.com/gpu", []),
        ("spec.extendedResourceName", "gpu", ["spec.extendedResourceName: must be a valid extended resource name"]),
        ("spec.config.0.opaque.parameters", [1], ["parameters: must be a valid JSON object"]),
    ],
    "ResourceClaim/shared": [
        ("spec.devices.constraints.0.requests", ["any/big"], []),
        ("spec.devices.constraints.0.requests", ["any/other"], ["must be the name of a request in the claim"]),
        ("spec.devices.constraints.0.requests", ["one/a/b"], ["must be the name of a request in the claim"]),
        ("spec.devices.constraints.0.requests", ["one", "one"], ["requests[1]: Duplicate value"]),
        ("spec.devices.constraints.0.matchAttribute", "model", ["a fully qualified name must be a domain and a name"]),
        ("spec.devices.constraints.0.matchAttribute", "", ["matchAttribute: Required value"]),
        ("spec.devices.constraints.0.matchAttribute", "a.io/", ["the name must not be empty"]),
        ("spec.devices.constraints.0.matchAttribute", "a.io/1", ["a valid C identifier must start with"]),
        ("spec.devices.requests.1.firstAvailable.1.count", 1, ["must not be specified when allocationMode is 'All'"]),
        ("spec.devices.requests.1.firstAvailable.1.name", "big", ["firstAvailable[1]: Duplicate value"]),
        ("spec.devices.requests.1.name", "one", ["requests[1]: Duplicate value"]),
        ("spec.devices.requests.0", {"name": "one"}, ["exactly one of `exactly` or `firstAvailable` is required"]),
        ("spec.devices.requests.0.exactly.allocationMode", "Odd", ["allocationMode: Unsupported value"]),
    ],
    "ResourceSlice/slice": [
        ("spec.allNodes", True, ["spec: exactly one of `nodeName`"]),
        ("spec.allNodes", False, ["spec.allNodes: must be either unset or set to true"]),
        ("spec.nodeName", "", ["spec.nodeName: must be either unset or set to a non-empty", "spec: exactly one of"]),
        ("spec.devices.0.attributes.model", {}, ["attributes[model]: exactly one value must be specified"]),
        ("spec.devices.0.attributes.model.bool", True, ["attributes[model]: exactly one value must be specified"]),
        ("spec.pool.name", "a/b", []),
        ("spec.pool.name", "", ["spec.pool.name: Required value"]),
        ("spec.devices", [{"name": "a"}, {"name": "a"}], ["spec.devices[1]: Duplicate value"]),
    ],
    "CronJob/nightly": [
        ("spec.schedule", "TZ=UTC * * * * *", ["cannot use TZ or CRON_TZ in schedule, use timeZone field instead"]),
        ("spec.schedule", "", ["spec.schedule: Required value"]),
        ("spec.timeZone", "Mars/Base", ["spec.timeZone: unknown time zone"]),
        ("spec.concurrencyPolicy", "Odd", ["spec.concurrencyPolicy: Unsupported value"]),
    ],
}


@pytest.mark.parametrize(
    ("name", "path", "value", "expected"),
    [
        pytest.param(name, *row, id=f"{name}-{number}-{row[0]}")
        for name, rows in TABLES.items()
        for number, row in enumerate(rows)
    ],
)
def test_errors_of_a_changed_field(name: str, path: str, value: Any, expected: list[str]) -> None:
    assert_faults(name, path, value, expected)
