"""Objects that an API server would refuse, and the errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.codec.quantity import QuantityText
from bayplan.errors import ObjectError
from bayplan.objects import field_checks
from bayplan.objects.field_checks import check_object, object_errors
from bayplan.objects.kinds import KINDS, convert, kinds_by_name

LONG = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "spec": {"containers": [{"name": "main"}], **spec}}


def container(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "main", **fields}])


def requests(**amounts: Any) -> dict[str, Any]:
    return container(resources={"requests": amounts})


def node(**status: Any) -> dict[str, Any]:
    return {"kind": "Node", "status": status}


def spread(**fields: Any) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}
    return pod(topologySpreadConstraints=[constraint])


def node_term(**requirement: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", **requirement}]}]}
    return pod(affinity={"nodeAffinity": {LONG: terms}})


def pod_term(**requirement: Any) -> dict[str, Any]:
    selector = {"matchExpressions": [{"key": "a", **requirement}]}
    return pod(affinity={"podAntiAffinity": {LONG: [{"topologyKey": "zone", "labelSelector": selector}]}})


def slice_with(**device: Any) -> dict[str, Any]:
    return {"kind": "ResourceSlice", "spec": {"devices": [{"name": "d", **device}]}}


def errors_of(raw: dict[str, Any]) -> list[str]:
    fields = {key: value for key, value in raw.items() if key != "kind"}
    return list(object_errors(convert({"metadata": {"name": "x"}, **fields}, kinds_by_name()[raw["kind"]].struct)))


NO_QUANTITY = "is not a quantity (quantities must match"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            requests(cpu="much"), f'spec.containers[0].resources.requests.cpu: "much" {NO_QUANTITY}', id="cpu"
        ),
        pytest.param(pod(overhead={"cpu": ""}), f'spec.overhead.cpu: "" {NO_QUANTITY}', id="overhead"),
        pytest.param(pod(resources={"limits": {"cpu": "x"}}), 'spec.resources.limits.cpu: "x"', id="pod-level"),
        pytest.param(node(allocatable={"cpu": "1x"}), 'status.allocatable.cpu: "1x"', id="node"),
        pytest.param({"kind": "CSIStorageCapacity", "capacity": "lots"}, 'capacity: "lots"', id="storage-capacity"),
        pytest.param(
            {"kind": "CSIStorageCapacity", "maximumVolumeSize": "lots"}, 'maximumVolumeSize: "lots"', id="volume-size"
        ),
        pytest.param(slice_with(capacity={"m": {"value": "x"}}), 'devices[0].capacity.m.value: "x"', id="device"),
        pytest.param(
            slice_with(capacity={"m": {"value": 1, "requestPolicy": {"validRange": {"min": "x"}}}}),
            'capacity.m.requestPolicy.validRange.min: "x"',
            id="policy",
        ),
        pytest.param(
            slice_with(consumesCounters=[{"counterSet": "s", "counters": {"m": {"value": "x"}}}]),
            'consumesCounters[0].counters.m.value: "x"',
            id="consumed-counter",
        ),
        pytest.param(
            {"kind": "ResourceSlice", "spec": {"sharedCounters": [{"name": "s", "counters": {"m": {"value": "x"}}}]}},
            'spec.sharedCounters[0].counters.m.value: "x"',
            id="shared-counter",
        ),
        pytest.param(
            {"kind": "PersistentVolumeClaim", "spec": {"resources": {"requests": {"storage": "x"}}}},
            'spec.resources.requests.storage: "x"',
            id="volume-claim",
        ),
        pytest.param(
            {"kind": "PersistentVolume", "spec": {"capacity": {"storage": "x"}}}, 'capacity.storage: "x"', id="volume"
        ),
    ],
)
def test_invalid_quantities(raw: dict[str, Any], words: str) -> None:
    (problem,) = errors_of(raw)
    assert words in problem
    assert problem.endswith("; write it like 500m, 2 or 4Gi")


def quantity_fields(hint: Any, found: set[type], seen: set[Any]) -> None:
    """Every struct in a type with a quantity among its fields, found by other means than the checks."""
    if hint in seen:
        return
    seen.add(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        for field in msgspec.structs.fields(hint):
            if str(field.type).find("str | int | float") >= 0:
                found.add(hint)
            quantity_fields(field.type, found, seen)
    for argument in getattr(hint, "__args__", ()):
        quantity_fields(argument, found, seen)


def test_every_quantity_of_every_kind_is_checked() -> None:
    structs: set[type] = set()
    for kind in KINDS:
        quantity_fields(kind.struct, structs, set())
    assert len(structs) > 10
    for struct in structs:
        fields = [each for each in msgspec.structs.fields(struct) if "str | int | float" in str(each.type)]
        for field in fields:
            checked = [name for name, _, _ in field_checks._fields_with_checks(struct)]
            assert field.name in checked, f"{struct.__name__}.{field.name}"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(requests(cpu="-1"), 'requests.cpu: "-1" is negative; write zero or more', id="request"),
        pytest.param(container(resources={"limits": {"a/b": -1}}), 'limits.a/b: "-1" is negative', id="limit"),
        pytest.param(node(allocatable={"memory": "-5Gi"}), 'allocatable.memory: "-5Gi" is negative', id="allocatable"),
        pytest.param(node(capacity={"memory": "-5Gi"}), 'capacity.memory: "-5Gi" is negative', id="capacity"),
        pytest.param({"kind": "CSIStorageCapacity", "capacity": "-1"}, 'capacity: "-1" is negative', id="storage"),
        pytest.param(
            requests(cpu="9223372036854775808m"),
            'requests.cpu: "9223372036854775808m" is too large; write at most 9223372036854775807m',
            id="cpu",
        ),
        pytest.param(requests(memory="1e400"), 'requests.memory: "1e400" is too large', id="memory"),
        pytest.param(requests(cpu="9999999999999999999E"), "is too large", id="exa"),
        pytest.param(pod(priority=2**31), "spec.priority: 2147483648 is out of range; write a number from", id="int32"),
        pytest.param(
            container(ports=[{"hostPort": 65536}]), "ports[0].hostPort: 65536 is out of range", id="host-port"
        ),
        pytest.param(container(ports=[{"containerPort": -1}]), "ports[0].containerPort: -1 is out of", id="port"),
        pytest.param(
            pod(tolerations=[{"key": "a", "tolerationSeconds": 2**63}]),
            "tolerationSeconds: 9223372036854775808",
            id="int64",
        ),
        pytest.param(spread(maxSkew=0), "maxSkew: 0 is out of range", id="skew"),
        pytest.param(spread(minDomains=0), "minDomains: 0 is out of range", id="domains"),
        pytest.param(
            pod(affinity={"nodeAffinity": {PREFERRED: [{"weight": 101}]}}), "[0].weight: 101 is out of", id="weight"
        ),
        pytest.param({"kind": "PriorityClass", "value": 2**31}, "value: 2147483648 is out of range", id="class"),
        pytest.param(
            {"kind": "PriorityClass", "value": 1_000_000_001}, "reserved for system classes", id="system-class"
        ),
    ],
)
def test_numbers_out_of_range(raw: dict[str, Any], words: str) -> None:
    assert words in errors_of(raw)[0]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            pod(tolerations=[{"key": "a", "operator": "Foo"}]),
            'spec.tolerations[0].operator: "Foo" is not known; write Equal or Exists',
            id="toleration-operator",
        ),
        pytest.param(pod(tolerations=[{"key": "a", "operator": "Lt", "value": "1"}]), '"Lt" is not known', id="gated"),
        pytest.param(pod(tolerations=[{"key": "a", "effect": "X"}]), '[0].effect: "X" is not known', id="effect"),
        pytest.param(
            {"kind": "Node", "spec": {"taints": [{"key": "a"}]}},
            "spec.taints[0].effect: the value is missing; write NoSchedule, PreferNoSchedule or NoExecute",
            id="taint-without-effect",
        ),
        pytest.param(spread(whenUnsatisfiable="Maybe"), 'whenUnsatisfiable: "Maybe" is not known', id="spread"),
        pytest.param(spread(whenUnsatisfiable=""), "whenUnsatisfiable: the value is missing", id="spread-nothing"),
        pytest.param(spread(nodeTaintsPolicy="x"), 'nodeTaintsPolicy: "x" is not known; write Honor', id="policy"),
        pytest.param(
            spread(labelSelector={"matchExpressions": [{"key": "a", "operator": "No"}]}),
            '"No" is not',
            id="spread-label",
        ),
        pytest.param(node_term(operator="Bar", values=["x"]), 'matchExpressions[0].operator: "Bar"', id="node-term"),
        pytest.param(
            pod_term(operator="Gt", values=["1"]), 'labelSelector.matchExpressions[0].operator: "Gt"', id="pod"
        ),
        pytest.param(
            {"kind": "PodDisruptionBudget", "spec": {"selector": {"matchExpressions": [{"key": "a"}]}}},
            "spec.selector.matchExpressions[0].operator: the value is missing",
            id="budget",
        ),
        pytest.param(pod(preemptionPolicy="Perhaps"), 'spec.preemptionPolicy: "Perhaps" is not known', id="preemption"),
        pytest.param(
            {"kind": "PriorityClass", "preemptionPolicy": "x"}, 'preemptionPolicy: "x"', id="class-preemption"
        ),
        pytest.param(container(restartPolicy="Often"), 'restartPolicy: "Often" is not known', id="restart"),
        pytest.param(container(ports=[{"protocol": "ICMP"}]), 'protocol: "ICMP" is not known', id="protocol"),
        pytest.param({"kind": "StorageClass", "volumeBindingMode": "Late"}, 'volumeBindingMode: "Late"', id="binding"),
        pytest.param(
            {"kind": "PersistentVolume", "spec": {"accessModes": ["ReadWriteOnce", "RWX"]}},
            'spec.accessModes[1]: "RWX" is not known',
            id="access",
        ),
        pytest.param({"kind": "PersistentVolumeClaim", "spec": {"volumeMode": "x"}}, 'volumeMode: "x"', id="mode"),
        pytest.param(
            {
                "kind": "ResourceClaim",
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"allocationMode": "Some"}}]}},
            },
            'exactly.allocationMode: "Some" is not known; write ExactCount or All',
            id="allocation",
        ),
    ],
)
def test_unknown_enum_values(raw: dict[str, Any], words: str) -> None:
    assert words in errors_of(raw)[0]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            pod(containers=[]), "spec.containers: the list is empty; a pod needs at least one container", id="none"
        ),
        pytest.param({"kind": "Pod"}, "spec.containers: the list is empty", id="no-spec"),
        pytest.param(
            node_term(operator="In"), "values: the list is empty; operator In needs at least one value", id="in"
        ),
        pytest.param(
            node_term(operator="Exists", values=["x"]), "values: operator Exists takes no values", id="exists"
        ),
        pytest.param(node_term(operator="Gt", values=["1", "2"]), "values: 2 values; operator Gt needs", id="gt"),
        pytest.param(pod_term(operator="NotIn"), "values: the list is empty; operator NotIn", id="label-not-in"),
        pytest.param(pod(tolerations=[{}]), "tolerations[0].key: missing; write a key, or", id="no-key"),
        pytest.param(
            pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
            "operator Exists takes no value",
            id="value",
        ),
    ],
)
def test_missing_and_superfluous_fields(raw: dict[str, Any], words: str) -> None:
    assert words in errors_of(raw)[0]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(requests(cpu="9223372036854775807m", memory="8Ei"), id="as-large-as-can-be"),
        pytest.param(requests(cpu=0.5, memory=0), id="numbers"),
        pytest.param(requests(cpu=None), id="null"),
        pytest.param(pod(priority=-(2**31)), id="lowest-priority"),
        pytest.param(pod(tolerations=[{"operator": "Exists"}, {"key": "a"}]), id="tolerations"),
        pytest.param(
            container(ports=[{"containerPort": 65535, "protocol": "SCTP"}], restartPolicy="Always"), id="port"
        ),
        pytest.param(node_term(operator="Lt", values=["1"]), id="node-term"),
        pytest.param(pod_term(operator="DoesNotExist"), id="pod-term"),
        pytest.param(spread(minDomains=1, nodeAffinityPolicy="Ignore"), id="spread"),
        pytest.param({"kind": "PriorityClass", "value": 1_000_000_000}, id="priority-class"),
        pytest.param({"kind": "CSIStorageCapacity"}, id="capacity-unknown"),
        pytest.param(slice_with(capacity={"m": {"value": "1Gi"}}, attributes={"a": {"int": 1}}), id="device"),
    ],
)
def test_valid_objects(raw: dict[str, Any]) -> None:
    assert errors_of(raw) == []


@pytest.mark.parametrize("name", sorted(kinds_by_name()))
def test_an_empty_object_has_errors_but_no_traceback(name: str) -> None:
    found = errors_of({"kind": name})
    assert (found != []) is (name == "Pod")


def test_the_error_names_the_object() -> None:
    item = convert({"metadata": {"name": "web"}}, kinds_by_name()["Pod"].struct)
    with pytest.raises(ObjectError, match=r'^Pod "web": spec\.containers: the list is empty'):
        check_object(item)
    with pytest.raises(ObjectError, match=r"^Pod: spec\.containers"):
        check_object(convert({}, kinds_by_name()["Pod"].struct))


def test_the_checks_know_the_type_of_quantities() -> None:
    assert str(QuantityText) == "str | int | float"
