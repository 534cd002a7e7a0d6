"""Optimised encoding and comparison of BindRequests and pod versions, against the general ones."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.framework.runtime.object_changes import pod_update_events
from bayplan.objects.core import (
    Container,
    ContainerStatus,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaimStatus,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Toleration,
)
from bayplan.objects.kai.bind_request import BindRequest, manifest, manifest_text, new_request
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.snapshot.pod_info import has_same_row_amounts

words = st.text(max_size=6)
names = st.text(alphabet='abc-."\\é', min_size=1, max_size=6)
pairs = st.dictionaries(words, words, max_size=2)


@given(names, words, words, pairs, pairs, st.none() | st.integers(0, 5), st.booleans())
def test_the_text_of_a_request_equals_its_manifest(
    name: str,
    namespace: str,
    uid: str,
    annotations: dict[str, str],
    labels: dict[str, str],
    limit: int | None,
    bare: bool,
) -> None:
    pod = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid))
    request = new_request(pod, "node", annotations=annotations, backoff_limit=limit, labels=labels)
    if bare:
        request = BindRequest(metadata=ObjectMeta(annotations=annotations, labels=labels), spec=request.spec)
    told = msgspec.json.decode(manifest_text(request))
    assert told == msgspec.json.decode(msgspec.json.encode(manifest(request)))
    assert told["metadata"]["annotations"] == annotations


def one_of(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from(values)


container = Container(name="c", resources=ResourceRequirements(requests={"cpu": "1"}))
smaller = replace(container, resources=ResourceRequirements(requests={"cpu": "500m"}))
running = ContainerStatus(name="c", resources=ResourceRequirements(requests={"cpu": "2"}))
bound, pending = Condition(type="PodBound", reason="Bound"), Condition(type="PodResizePending", reason="Deferred")
SPEC = {
    "containers": one_of((container,), (smaller,)),
    "scheduling_gates": one_of((), (PodSchedulingGate("g"),)),
    "tolerations": one_of((), (Toleration("t"),)),
    "node_name": one_of("", "n"),
}
STATUS = {
    "conditions": one_of((), (bound,), (pending,), (bound, pending)),
    "container_statuses": one_of((), (running,)),
    "resource_claim_statuses": one_of((), (PodResourceClaimStatus("c", "d"),)),
    "extended_resource_claim_status": one_of(None, PodExtendedResourceClaimStatus("c")),
}
pods = st.builds(
    Pod,
    metadata=st.builds(ObjectMeta, labels=one_of({}, {"a": "b"}), resource_version=one_of("1", "2")),
    spec=st.builds(PodSpec, **SPEC),
    status=st.builds(PodStatus, **STATUS),
)


@given(pods, pods, st.booleans(), st.booleans())
def test_of_versions_that_weigh_alike_less_need_be_compared(one: Pod, other: Pod, spec: bool, labels: bool) -> None:
    """Most pairs are equal in the columns, otherwise few would need a comparison."""
    if spec:
        other = replace(other, spec=one.spec)
    if labels:
        other = replace(other, metadata=replace(other.metadata, labels=one.metadata.labels))
    if has_same_row_amounts(one, other):
        assert pod_update_events(one, other, same_amounts=True) == pod_update_events(one, other)
    else:
        assert one != other
