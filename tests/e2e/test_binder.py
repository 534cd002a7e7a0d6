"""Pods that are placed by one program and bound by another, on both clusters."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def test_the_pod_engine_hands_its_pods_to_the_binder(corner: BinderHarness) -> None:
    corner.add_nodes(3)
    names = [f"web-{number}" for number in range(20)]
    with corner.run_scheduler_with_requests() as scheduler, corner.binder():
        corner.api.create(*(corner.pod(name) for name in names))
        corner.check_settled(scheduler)
        for name in names:
            corner.wait_for_end(name, "Succeeded")
            wait_until(lambda name=name: corner.bound_condition(name).get("status") == "True", f"{name} says so")  # type: ignore[misc]
    pod = corner.api.pod("web-0")
    request = corner.api.get("BindRequest", "web-0")
    assert pod["metadata"]["annotations"]["received-resource-type"] == "Regular"
    assert request["spec"]["selectedNode"] == node_name(pod) == request["metadata"]["labels"]["selected-node"]
    assert request["spec"]["podUID"] == pod["metadata"]["uid"] == request["metadata"]["ownerReferences"][0]["uid"]
    assert request["spec"]["backoffLimit"] == 3
    corner.check_invariants()


def test_one_process_has_both_engines_and_the_binder(corner: BinderHarness) -> None:
    corner.add_nodes(2)
    settings, config = corner.folder / "settings.yaml", corner.folder / "scheduler.yaml"
    settings.write_text(SETTINGS)
    config.write_text(short_backoff_config(BY_BINDER).replace("KUBECONFIG", str(corner.cluster.kubeconfig())))
    with corner.run_combined("--binder", f"--settings={settings}", f"--config={config}"):
        names = corner.gang("ring", 3)
        corner.api.create(corner.pod("web"))
        corner.wait_bound([*names, "web"])
        ended = [corner.wait_for_end(name, "Succeeded")["spec"]["podName"] for name in (*names, "web")]
    assert ended == [*names, "web"]
    assert all(asked == given for asked, given in corner.requested_and_bound_nodes(ended))
    corner.check_invariants()


def test_sessions_hand_gangs_to_the_binder(corner: BinderHarness) -> None:
    corner.add_nodes(2)
    with corner.run_batch_with_requests(), corner.binder():
        names = corner.gang("ring", 4)
        corner.wait_bound(names)
        ended = [corner.wait_for_end(name, "Succeeded")["spec"]["podName"] for name in names]
    assert ended == names
    assert all(asked == given for asked, given in corner.requested_and_bound_nodes(names))
    corner.check_invariants()


def test_no_engine_gives_out_room_that_a_request_of_the_other_has_taken(corner: BinderHarness) -> None:
    """Two programs and a binder that is late: until it comes no pod has a node, and the nodes are full all the same."""
    corner.add_nodes(2, cpu="4")
    pods = ["web-0", "web-1"]
    with corner.run_scheduler_with_requests(), corner.run_batch_with_requests():
        corner.api.create(*(corner.pod(name, cpu="3") for name in pods))
        for name in pods:
            wait_until(lambda name=name: bool(corner.find("BindRequest", name)), f"{name} has a request")  # type: ignore[misc]
        members = corner.gang("ring", 2, cpu="3")

        def decided() -> bool:
            full = ["Insufficient cpu" in each for each in corner.reasons(members)]
            return any(full) or any(corner.find("BindRequest", name) for name in members)

        wait_until(decided, "a session has looked for room", why=lambda: str(corner.reasons(members)))
        assert [corner.find("BindRequest", name) for name in members] == [{}, {}]
        with corner.binder():
            corner.wait_bound(pods)
            corner.api.delete("Pod", *pods)
            corner.wait_bound(members)
    corner.check_invariants()


def test_a_device_that_two_requests_bring_is_given_to_one_of_them(corner: BinderHarness) -> None:
    corner.add_nodes(1)
    for name in ("one", "two"):
        corner.claiming(name, backoffLimit=1)
    with corner.binder():
        wait_until(
            lambda: {corner.phase_of(name) for name in ("one", "two")} == {"Succeeded", "Failed"}, "both have ended"
        )
    late = "one" if corner.phase_of("one") == "Failed" else "two"
    assert "is that of claim" in corner.reason_of(late)
    assert node_name(corner.api.pod(late)) == ""
    corner.check_invariants()


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


def test_malformed_requests_end_as_failed_with_a_sentence_and_are_not_tried_again(corner: BinderHarness) -> None:
    corner.add_nodes(1)
    for name, (spec, _) in MALFORMED.items():
        corner.pod_with_request(name, corner.nodes[0], **spec)
    with pytest.raises(Refused):  # nobody's binder ever sees what the server does not take
        corner.pod_with_request("oversized", corner.nodes[0], annotations={"x.kai.scheduler/y": "z" * 300_000})
    with corner.binder():
        ended = {name: corner.wait_for_end(name, "Failed") for name in MALFORMED}
    for name, (_, sentence) in MALFORMED.items():
        status, limit = ended[name]["status"], ended[name]["spec"]["backoffLimit"]
        assert sentence in status["reason"]
        assert status["failedAttempts"] == limit, name  # by which everybody knows that it is over
        assert node_name(corner.api.pod(name)) == ""
    with corner.binder():
        corner.pod_with_request("good", corner.nodes[0])
        corner.wait_for_end("good", "Succeeded")
    versions = {name: corner.find("BindRequest", name)["metadata"]["resourceVersion"] for name in MALFORMED}
    assert versions == {name: each["metadata"]["resourceVersion"] for name, each in ended.items()}


SHARING = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: GpuSharing}, {name: BindRequestBinder}]")


def test_the_scheduler_chooses_the_device_that_pods_share(corner: BinderHarness) -> None:
    """Two halves of one GPU, and a pod for which only the other one is left."""
    (node,) = corner.add_nodes(1, labels={"nvidia.com/gpu.memory": "16000"})
    amounts = {"nvidia.com/gpu": "2"}
    corner.api.patch("Node", node, {"status": {"capacity": amounts, "allocatable": amounts}}, sub="status")
    corner.ensure_reservations()
    halves = [corner.pod(f"half-{number}") for number in range(2)]
    for pod in halves:
        gpu = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": f"{pod['metadata']['name']}-gpu"}
        pod["metadata"]["annotations"] = gpu
    whole = corner.pod("whole")
    whole["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    with corner.run_scheduler(config=short_backoff_config(SHARING)), corner.binder():
        corner.api.create(halves[0])
        wait_until(lambda: bool(corner.find("BindRequest", "half-0")), "the first has a request")
        (group,) = corner.find("BindRequest", "half-0")["spec"]["selectedGPUGroups"]
        corner.report_device(group)
        corner.wait_for_end("half-0", "Succeeded")
        corner.api.create(halves[1], whole)
        requests = [corner.wait_for_end(name, "Succeeded") for name in ("half-1", "whole")]
    assert [each["spec"]["receivedGPU"] for each in requests] == [
        {"count": 1, "portion": "0.50"},
        {"count": 1, "portion": "1.00"},
    ]
    assert requests[0]["spec"]["selectedGPUGroups"] == [group]
    assert [corner.api.pod(f"half-{number}")["metadata"]["labels"]["runai-gpu-group"] for number in range(2)] == [
        group,
        group,
    ]
    assert len(corner.reservations(group)) == 1
    corner.check_invariants()
    corner.release(group)


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
def test_a_refused_node_is_not_tried_again(corner: BinderHarness, profiles: str) -> None:
    """However much better it is than the others, and wherever the plugin is enabled."""
    (best,) = corner.add_nodes(1, cpu="64", labels={"refused": "yes"})
    (other,) = corner.add_nodes(1, cpu="1")
    folder = plugin_folder(corner.folder, "refusing", REFUSING)
    with corner.run_scheduler(config=short_backoff_config(profiles)), corner.binder(f"--plugins-dir={folder}"):
        corner.api.create(corner.pod("web"))
        corner.wait_bound(["web"])
        corner.wait_for_end("web", "Succeeded")
    assert node_name(corner.api.pod("web")) == other
    refusals = [each for each in corner.event_notes("web") if each.startswith("Pod ") and "it is refused" in each]
    assert len(refusals) == 1, refusals
    assert best in refusals[0]
