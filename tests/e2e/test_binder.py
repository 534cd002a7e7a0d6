"""Pods that an engine places and the binder binds, on both clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Refused
from cluster.run import Cluster
from support.e2e.binder_harness import BY_BINDER, SETTINGS, BinderHarness
from support.e2e.scheduler_harness import plugin_folder, short_backoff_config
from support.e2e.scheduler_process import node_name, wait_until


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_the_pod_engine_hands_its_pods_to_the_binder(harness: BinderHarness) -> None:
    harness.add_nodes(3)
    names = [f"web-{number}" for number in range(20)]
    with harness.run_scheduler_with_requests() as scheduler, harness.binder():
        harness.api.create(*(harness.pod(name) for name in names))
        harness.check_settled(scheduler)
        for name in names:
            harness.wait_for_end(name, "Succeeded")
            wait_until(lambda name=name: harness.bound_condition(name).get("status") == "True", f"{name} says so")  # type: ignore[misc]
    pod = harness.api.pod("web-0")
    request = harness.api.get("BindRequest", "web-0")
    assert pod["metadata"]["annotations"]["received-resource-type"] == "Regular"
    assert request["spec"]["selectedNode"] == node_name(pod) == request["metadata"]["labels"]["selected-node"]
    assert request["spec"]["podUID"] == pod["metadata"]["uid"] == request["metadata"]["ownerReferences"][0]["uid"]
    assert request["spec"]["backoffLimit"] == 3
    harness.check_invariants()


def test_one_process_has_both_engines_and_the_binder(harness: BinderHarness) -> None:
    harness.add_nodes(2)
    settings, config = harness.folder / "settings.yaml", harness.folder / "scheduler.yaml"
    settings.write_text(SETTINGS)
    config.write_text(short_backoff_config(BY_BINDER).replace("KUBECONFIG", str(harness.cluster.kubeconfig())))
    with harness.run_combined("--binder", f"--settings={settings}", f"--config={config}"):
        names = harness.gang("ring", 3)
        harness.api.create(harness.pod("web"))
        harness.wait_bound([*names, "web"])
        ended = [harness.wait_for_end(name, "Succeeded")["spec"]["podName"] for name in (*names, "web")]
    assert ended == [*names, "web"]
    assert all(asked == given for asked, given in harness.requested_and_bound_nodes(ended))
    harness.check_invariants()


def test_sessions_hand_gangs_to_the_binder(harness: BinderHarness) -> None:
    harness.add_nodes(2)
    with harness.run_batch_with_requests(), harness.binder():
        names = harness.gang("ring", 4)
        harness.wait_bound(names)
        ended = [harness.wait_for_end(name, "Succeeded")["spec"]["podName"] for name in names]
    assert ended == names
    assert all(asked == given for asked, given in harness.requested_and_bound_nodes(names))
    harness.check_invariants()


def test_no_engine_uses_room_that_a_request_of_the_other_occupies(harness: BinderHarness) -> None:
    """Two processes and a late binder: until it starts no pod has a node, and the nodes are full all the same."""
    harness.add_nodes(2, cpu="4")
    pods = ["web-0", "web-1"]
    with harness.run_scheduler_with_requests(), harness.run_batch_with_requests():
        harness.api.create(*(harness.pod(name, cpu="3") for name in pods))
        for name in pods:
            wait_until(lambda name=name: bool(harness.find("BindRequest", name)), f"{name} has a request")  # type: ignore[misc]
        members = harness.gang("ring", 2, cpu="3")

        def decided() -> bool:
            full = ["Insufficient cpu" in each for each in harness.reasons(members)]
            return any(full) or any(harness.find("BindRequest", name) for name in members)

        wait_until(decided, "a session has looked for room", why=lambda: str(harness.reasons(members)))
        assert [harness.find("BindRequest", name) for name in members] == [{}, {}]
        with harness.binder():
            harness.wait_bound(pods)
            harness.api.delete("Pod", *pods)
            harness.wait_bound(members)
    harness.check_invariants()


def test_a_device_in_two_requests_is_given_to_one_of_them(harness: BinderHarness) -> None:
    harness.add_nodes(1)
    for name in ("one", "two"):
        harness.create_claim_pod(name, backoffLimit=1)
    with harness.binder():
        wait_until(
            lambda: {harness.phase_of(name) for name in ("one", "two")} == {"Succeeded", "Failed"}, "both have ended"
        )
    late = "one" if harness.phase_of("one") == "Failed" else "two"
    assert "is that of claim" in harness.reason_of(late)
    assert node_name(harness.api.pod(late)) == ""
    harness.check_invariants()


MALFORMED: dict[str, tuple[Any, str]] = {
    "no-pod": ({"podName": ""}, "it names no pod"),
    "no-node": ({"selectedNode": ""}, "it names no node"),
    "dots": ({"podName": ".."}, 'its podName is "..", a name that nothing can have'),
    "percent": ({"podName": "%2e%2e"}, 'its podName is "%2e%2e", a name that nothing can have'),
    "crowding": (
        {"predictedNUMAZones": [{"zone": "z" * 300_000, "amount": {}}]},
        "the pod's annotations would take 300",
    ),
    "gone": ({"podName": "nobody"}, "the pod is gone"),
    "wrong-uid": ({"podUID": "an-earlier-one"}, "another pod has its name"),
    "unknown-node": ({"selectedNode": "nowhere", "backoffLimit": 1}, 'node "nowhere" is not there'),
    "bad-type": ({"receivedResourceType": "Slice"}, 'its receivedResourceType is "Slice"'),
    "no-groups": ({"receivedResourceType": "Fraction"}, "names no GPU group"),
    "same-groups": ({"receivedResourceType": "Fraction", "selectedGPUGroups": ["g", "g"]}, 'have "g" twice'),
}


def test_malformed_requests_end_as_failed_with_a_sentence_and_are_not_tried_again(harness: BinderHarness) -> None:
    harness.add_nodes(1)
    for name, (spec, _) in MALFORMED.items():
        harness.pod_with_request(name, harness.nodes[0], **spec)
    with pytest.raises(Refused):  # the API server refuses these, so no binder sees them
        harness.pod_with_request("oversized", harness.nodes[0], annotations={"x.kai.scheduler/y": "z" * 300_000})
    with harness.binder():
        ended = {name: harness.wait_for_end(name, "Failed") for name in MALFORMED}
    for name, (_, sentence) in MALFORMED.items():
        status, limit = ended[name]["status"], ended[name]["spec"]["backoffLimit"]
        assert sentence in status["reason"]
        assert status["failedAttempts"] == limit, name  # the reason by which engines know that the request is over
        assert node_name(harness.api.pod(name)) == ""
    with harness.binder():
        harness.pod_with_request("good", harness.nodes[0])
        harness.wait_for_end("good", "Succeeded")
    versions = {name: harness.find("BindRequest", name)["metadata"]["resourceVersion"] for name in MALFORMED}
    assert versions == {name: each["metadata"]["resourceVersion"] for name, each in ended.items()}


SHARING = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: GpuSharing}, {name: BindRequestBinder}]")


def test_the_scheduler_chooses_the_device_that_pods_share(harness: BinderHarness) -> None:
    """Two halves of one GPU, and a pod that fits only on the other one."""
    (node,) = harness.add_nodes(1, labels={"nvidia.com/gpu.memory": "16000"})
    amounts = {"nvidia.com/gpu": "2"}
    harness.api.patch("Node", node, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    harness.ensure_reservations()
    halves = [harness.pod(f"half-{number}") for number in range(2)]
    for pod in halves:
        gpu = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": f"{pod['metadata']['name']}-gpu"}
        pod["metadata"]["annotations"] = gpu
    whole = harness.pod("whole")
    whole["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    with harness.run_scheduler(config=short_backoff_config(SHARING)), harness.binder():
        harness.api.create(halves[0])
        wait_until(lambda: bool(harness.find("BindRequest", "half-0")), "the first has a request")
        (group,) = harness.find("BindRequest", "half-0")["spec"]["selectedGPUGroups"]
        harness.report_device(group)
        harness.wait_for_end("half-0", "Succeeded")
        harness.api.create(halves[1], whole)
        requests = [harness.wait_for_end(name, "Succeeded") for name in ("half-1", "whole")]
    assert [each["spec"]["receivedGPU"] for each in requests] == [
        {"count": 1, "portion": "0.50"},
        {"count": 1, "portion": "1.00"},
    ]
    assert requests[0]["spec"]["selectedGPUGroups"] == [group]
    assert [harness.api.pod(f"half-{number}")["metadata"]["labels"]["runai-gpu-group"] for number in range(2)] == [
        group,
        group,
    ]
    assert len(harness.reservations(group)) == 1
    harness.check_invariants()
    harness.release(group)


REFUSING = """
from bayplan.binder import RejectBind

class Refusing:
    name = "refusing"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        if "refused" in node.labels:
            raise RejectBind("it is refused")
"""
AT_BIND = BY_BINDER.replace("multiPoint:", "bind:")


@pytest.mark.parametrize("profiles", [BY_BINDER, AT_BIND], ids=["multipoint", "bind"])
def test_a_refused_node_is_not_tried_again(harness: BinderHarness, profiles: str) -> None:
    """Although its score is much higher than that of the other nodes, and wherever the plugin is enabled."""
    (best,) = harness.add_nodes(1, cpu="64", labels={"refused": "yes"})
    (other,) = harness.add_nodes(1, cpu="1")
    folder = plugin_folder(harness.folder, "refusing", REFUSING)
    with harness.run_scheduler(config=short_backoff_config(profiles)), harness.binder(f"--plugins-dir={folder}"):
        harness.api.create(harness.pod("web"))
        harness.wait_bound(["web"])
        harness.wait_for_end("web", "Succeeded")
    assert node_name(harness.api.pod("web")) == other
    refusals = [each for each in harness.event_notes("web") if each.startswith("Pod ") and "it is refused" in each]
    assert len(refusals) == 1, refusals
    assert best in refusals[0]
