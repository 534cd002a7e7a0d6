"""Recovery after a SIGKILL at each crash point of the binding: each row of the table of crash points."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.bind_watcher import DEVICE, BindWatcher
from support.e2e.binder_harness import BinderHarness, is_stopped
from support.e2e.scheduler_process import crash_at, node_name, wait_until
from support.e2e.volumes_and_devices import bind_claim, device_claim, devices

NOTES = '''
class Notes:
    """Leaves a note on the pod, and takes it off again."""

    name = "notes"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        await self.write(ctx, pod, "prepared")
        if bind_request.metadata.annotations.get("notes.kai.scheduler/fail") == "yes":
            raise RuntimeError("as the request says")

    async def post_bind(self, ctx, pod, node, bind_request, state):
        await self.write(ctx, pod, "bound")

    async def rollback(self, ctx, pod, node, bind_request, state):
        await self.write(ctx, pod, None)

    async def write(self, ctx, pod, text):
        from bayplan.client import MERGE_PATCH, PODS
        from bayplan.errors import NotFound

        body = {"metadata": {"annotations": {"example.com/note": text}}}
        try:
            await ctx.client.patch(PODS, body, name=pod.name, namespace=pod.namespace, kind=MERGE_PATCH)
        except NotFound:
            pass
'''

STANDING = '''
import os, pathlib, signal

FLAG = pathlib.Path("A_FILE")


class Standing:
    """Comes last and stops its process, once: all is prepared, and the binding not written."""

    name = "standing"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        if not FLAG.exists():
            FLAG.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
'''

KILLING = '''
import os, signal


class Killing:
    """Ends its process."""

    name = "killing"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        os.kill(os.getpid(), signal.SIGKILL)
'''

REFUSING = '''
from bayplan.binder.plugin import RejectBind


class Refusing:
    """Has something against one node."""

    name = "refusing"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        if node.name == "BAD":
            raise RejectBind("not here")
'''


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "notes.py").write_text(NOTES)
    mine.add_nodes(2, room={"nvidia.com/gpu": "4"})
    yield mine
    mine.close()


def plugins(harness: BinderHarness) -> str:
    return f"--plugins-dir={harness.folder / 'plugins'}"


def note(pod: Tree) -> str | None:
    found: str | None = pod["metadata"].get("annotations", {}).get("example.com/note")
    return found


@pytest.mark.parametrize(
    ("step", "left_on"),
    [
        pytest.param("taken", None, id="taken"),
        pytest.param("prepared", None, id="prepared"),
        pytest.param("bound", "node", id="bound"),
        pytest.param("finished", "node", id="finished"),
    ],
)
def test_the_next_binder_goes_on(harness: BinderHarness, step: str, left_on: str | None) -> None:
    harness.pod_with_request("web", harness.nodes[0])
    harness.run_until_crash(step, plugins(harness))
    assert harness.phase_of("web") == "Pending"
    assert node_name(harness.api.pod("web")) == (harness.nodes[0] if left_on else "")
    with harness.binder(plugins(harness)):
        harness.wait_for_end("web", "Succeeded")
    pod = harness.api.pod("web")
    assert (node_name(pod), note(pod)) == (harness.nodes[0], "bound")
    harness.check_invariants()


@pytest.mark.parametrize("step", ["broken", "rolled-back"])
def test_a_failed_attempt_leaves_nothing_behind(harness: BinderHarness, step: str) -> None:
    harness.pod_with_request("web", harness.nodes[0], backoffLimit=2, annotations={"notes.kai.scheduler/fail": "yes"})
    harness.run_until_crash(step, plugins(harness))
    assert note(harness.api.pod("web")) == ("prepared" if step == "broken" else None)
    with harness.binder(plugins(harness)):
        request = harness.wait_for_end("web", "Failed")
    assert request["status"]["failedAttempts"] == 2
    assert "as the request says" in request["status"]["reason"]
    assert note(harness.api.pod("web")) is None
    harness.check_invariants()


@pytest.mark.parametrize("limit", [3, 1])
def test_a_request_that_kills_every_binder_fails(harness: BinderHarness, limit: int) -> None:
    (harness.folder / "plugins" / "killing.py").write_text(KILLING)
    with harness.watch_binds(harness.folder / "plugins") as bind_watcher:
        with harness.binder(plugins(harness)) as process:
            wait_until(
                lambda: "the binder is running" in harness.binder_log(), "the binder is running", why=harness.binder_log
            )
            harness.pod_with_request("web", harness.nodes[0], backoffLimit=limit)
            assert process.wait(60) == -signal.SIGKILL
        uid = harness.find("BindRequest", "web")["metadata"]["uid"]
        for count in range(1, limit + 1):
            with harness.binder(plugins(harness)) as process:
                assert process.wait(60) == -signal.SIGKILL
            assert (harness.phase_of("web"), bind_watcher.tried()[uid]) == ("Pending", 1 + count)
        with harness.binder(plugins(harness)):
            harness.wait_for_end("web", "Failed")
    assert f"the binder died during attempt {limit} of {limit}" in harness.reason_of("web")
    assert harness.bound_condition("web")["message"] == harness.reason_of("web")
    assert bind_watcher.faults() == []
    harness.check_invariants()


@pytest.fixture
def group(harness: BinderHarness) -> Iterator[str]:
    harness.ensure_reservations()
    name = f"group-{harness.label[-40:]}".strip("-")
    yield name
    harness.release(name)


@pytest.fixture
def bind_watcher(harness: BinderHarness, group: str) -> Iterator[BindWatcher]:  # noqa: ARG001
    with harness.watch_binds(harness.folder / "plugins") as looking_on:
        yield looking_on


@pytest.mark.parametrize("step", ["prepared", "bound"])
def test_a_shared_device_is_found_again_with_its_config_maps(
    harness: BinderHarness, bind_watcher: BindWatcher, group: str, step: str
) -> None:
    harness.create_gpu_sharing_pod("web", group)
    harness.run_until_crash(step)
    left = left_for_containers(harness, group)
    with harness.binder():
        harness.wait_for_end("web", "Succeeded")
        assert left_for_containers(harness, group) == left
        pod = harness.api.pod("web")
        assert (node_name(pod), pod["metadata"]["labels"]["runai-gpu-group"]) == (harness.nodes[0], group)
        harness.check_invariants()
    assert len(bind_watcher.reserved) == 1
    assert bind_watcher.faults() == []


def left_for_containers(harness: BinderHarness, group: str) -> dict[str, str]:
    """The ConfigMaps that give containers their device, each with its uid, so that a replacement is noticed."""
    (reservation,) = harness.reservations(group)
    device = reservation["metadata"]["annotations"][DEVICE]
    found = {"reservation": reservation["metadata"]["uid"]}
    for name in ("web-gpu-0", "web-gpu-0-evar"):
        config_map = harness.api.get("ConfigMap", name)
        assert config_map["data"]["NVIDIA_VISIBLE_DEVICES"] == device
        found[name] = config_map["metadata"]["uid"]
    return found


@pytest.mark.parametrize("step", ["prepared", "bound"])
def test_the_next_binder_finds_the_claim_reserved(harness: BinderHarness, step: str) -> None:
    pod = harness.create_claim_pod("web")
    harness.run_until_crash(step)
    left = harness.api.get("ResourceClaim", "web")
    assert [user["uid"] for user in left["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    assert left["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    with harness.binder():
        harness.wait_for_end("web", "Succeeded")
    assert harness.api.get("ResourceClaim", "web") == left  # no write was left to do
    assert node_name(harness.api.pod("web")) == harness.nodes[0]
    harness.check_invariants()


def test_the_next_binder_unreserves_the_claim_of_a_deleted_pod(harness: BinderHarness) -> None:
    """Only the request names the pod, and no resource claim controller runs here."""
    pod = harness.create_claim_pod("web", owned=False)
    harness.run_until_crash("prepared")
    left = harness.api.get("ResourceClaim", "web")
    assert [user["uid"] for user in left["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    harness.api.delete("Pod", "web", now=True)
    with harness.binder():
        assert harness.wait_for_end("web", "Failed")["status"]["reason"] == "the pod is gone"
    assert harness.api.get("ResourceClaim", "web").get("status", {}) == {}
    harness.check_invariants()


@pytest.mark.parametrize("step", ["promised", "prepared", "bound"])
def test_a_volume_is_found_again(harness: BinderHarness, step: str) -> None:
    """Another volume would match as well; a binder killed while it waits finds the volume promised, every time."""
    names = harness.create_volume_pod("web", backoffLimit=6)
    harness.run_until_crash("promised")
    (left,) = harness.volumes()
    assert left["metadata"]["name"] in names
    assert left["spec"]["claimRef"]["uid"] == harness.api.get("PersistentVolumeClaim", "web")["metadata"]["uid"]
    with crash_at(step), harness.binder() as dying:
        if step != "promised":
            bind_claim(harness, "web", left["metadata"]["name"])
        assert dying.wait(60) == -signal.SIGKILL, harness.binder_log()
    assert node_name(harness.api.pod("web")) == (harness.nodes[0] if step == "bound" else "")
    with harness.binder():
        bind_claim(harness, "web", left["metadata"]["name"])
        harness.wait_for_end("web", "Succeeded")
    (found,) = harness.volumes()
    assert (found["metadata"]["name"], found["spec"]) == (left["metadata"]["name"], left["spec"])
    assert node_name(harness.api.pod("web")) == harness.nodes[0]
    harness.check_invariants()


def test_the_node_of_a_provisioned_volume_stays(harness: BinderHarness) -> None:
    (made, _) = harness.create_volume_pod("web", "example.com/maker", backoffLimit=6)
    for _ in range(2):
        harness.run_until_crash("promised")
        left = harness.api.get("PersistentVolumeClaim", "web")
        assert left["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == harness.nodes[0]
        assert harness.volumes() == []
    with harness.binder():
        uid = {"namespace": harness.namespace, "name": "web", "uid": left["metadata"]["uid"]}
        harness.api.patch("PersistentVolume", made, {"spec": {"claimRef": uid}})  # as its provisioner would create it
        bind_claim(harness, "web", made)
        harness.wait_for_end("web", "Succeeded")
    assert node_name(harness.api.pod("web")) == harness.nodes[0]
    harness.check_invariants()


def standing(harness: BinderHarness) -> tuple[str, str]:
    """Flags of a binder that is stopped before its first binding."""
    text = STANDING.replace("A_FILE", str(harness.folder / "stood"))
    (harness.folder / "plugins" / "standing.py").write_text(text)
    return plugins(harness), harness.long_timeout_settings


def wanted(harness: BinderHarness, kind: str, group: str) -> Tree:
    """A pod of this kind, and a request that is not garbage-collected with the pod."""
    if kind == "shared":
        return harness.create_gpu_sharing_pod("web", group, owned=False)
    if kind == "claim":
        return harness.create_claim_pod("web", owned=False)
    return harness.pod_with_request("web", harness.nodes[0], owned=False)


@pytest.mark.parametrize("kind", ["plain", "shared", "claim"])
def test_a_pod_deleted_while_it_is_bound_is_not_tried_again(
    harness: BinderHarness, bind_watcher: BindWatcher, group: str, kind: str
) -> None:
    """The server refuses the binding: its preparations are rolled back, and the request fails at once."""
    pod = wanted(harness, kind, group)
    with harness.binder(*standing(harness)) as process:
        wait_until(lambda: is_stopped(process), "all is prepared", why=harness.binder_log)
        if kind == "claim":
            assert "allocation" in harness.api.get("ResourceClaim", "web")["status"]
        assert len(harness.reservations(group)) == (kind == "shared")
        harness.api.delete("Pod", "web", now=True)
        process.send_signal(signal.SIGCONT)
        request = harness.wait_for_end("web", "Failed")
        wait_until(lambda: harness.reservations(group) == [], "the device is given back")
        wait_until(lambda: harness.faults() == [], "nothing is left", why=lambda: str(harness.faults()))
    assert request["status"]["reason"] == "the pod is gone"
    assert request["status"]["failedAttempts"] == request["spec"]["backoffLimit"]  # final after one attempt
    assert pod["metadata"]["uid"] not in bind_watcher.nodes
    if kind == "claim":
        assert harness.api.get("ResourceClaim", "web").get("status", {}) == {}
    assert bind_watcher.faults() == []


def test_a_pod_recreated_during_the_binding_gets_its_own_request(
    harness: BinderHarness, bind_watcher: BindWatcher
) -> None:
    with harness.run_scheduler_with_requests(), harness.binder(*standing(harness)) as process:
        harness.api.create(harness.pod("web"))
        wait_until(lambda: is_stopped(process), "all is prepared", why=harness.binder_log)
        old = harness.find("BindRequest", "web")
        harness.api.delete("Pod", "web", now=True)
        wait_until(lambda: harness.find("Pod", "web") == {}, "the pod is gone")
        (fresh,) = harness.api.create(harness.pod("web"))
        process.send_signal(signal.SIGCONT)
        harness.wait_bound(["web"])
        wait_until(lambda: harness.phase_of("web") == "Succeeded", "the new request is carried out")
        wait_until(lambda: bind_watcher.has_seen(harness.api.pods()), "that was seen")
    request = harness.find("BindRequest", "web")
    assert request["spec"]["podUID"] == fresh["metadata"]["uid"] != old["spec"]["podUID"]
    assert set(bind_watcher.nodes) == {fresh["metadata"]["uid"]}
    assert bind_watcher.faults() == []
    harness.check_invariants()


def test_a_pod_whose_node_is_removed_is_bound_to_another_node(
    harness: BinderHarness, bind_watcher: BindWatcher
) -> None:
    """The engine deletes the request, whatever its status, and places the pod again when no binding to the old node can
    arrive any more.
    """
    settings = harness.folder / "quick.yaml"
    settings.write_text("apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nrequestTimeoutSeconds: 5\n")
    with harness.run_scheduler_with_requests(f"--settings={settings}"):
        harness.api.create(harness.pod("web"))
        wait_until(lambda: bool(harness.find("BindRequest", "web")), "the request is made")
        first = harness.find("BindRequest", "web")
        harness.run_until_crash("taken")
        harness.api.delete("Node", first["spec"]["selectedNode"])
        with harness.binder():
            harness.wait_bound(["web"])
            second = harness.wait_for_end("web", "Succeeded")
            wait_until(lambda: bind_watcher.has_seen(harness.api.pods()), "that was seen")
    (other,) = set(harness.nodes) - {first["spec"]["selectedNode"]}
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert node_name(harness.api.pod("web")) == second["spec"]["selectedNode"] == other
    assert bind_watcher.faults() == []
    harness.check_invariants()


@pytest.mark.parametrize("sessions", [False, True], ids=["pods", "sessions"])
def test_no_device_stays_on_a_removed_node(harness: BinderHarness, sessions: bool) -> None:
    """The binder is killed after it has written the claim; the next one finds neither the request nor the node."""
    kind = f"gpu-{harness.label[-40:]}"
    (here, device_class), (there, _) = (devices(harness, node, kind) for node in harness.nodes)
    for each in (here, there):
        each["metadata"]["name"] = each["spec"]["nodeName"]
    harness.group("ring", 1)
    pod = harness.member("ring", 0, resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    if not sessions:
        del pod["spec"]["schedulerName"]
    engine = harness.run_batch_with_requests if sessions else harness.run_scheduler_with_requests
    harness.api.create(here, device_class, device_claim("gpu", kind), pod)
    with engine():
        wait_until(lambda: bool(harness.find("BindRequest", "ring-w-0")), "the request is made")
        harness.run_until_crash("prepared")
    first = harness.find("BindRequest", "ring-w-0")
    assert harness.api.get("ResourceClaim", "gpu")["status"]["reservedFor"]
    harness.api.create(there)
    harness.api.delete("Node", harness.nodes[0])
    harness.api.delete("ResourceSlice", here["metadata"]["name"])
    with engine():
        wait_until(lambda: harness.find("BindRequest", "ring-w-0") != first, "the request to that node is gone")
    with engine(), harness.binder():
        harness.wait_bound(["ring-w-0"])
        harness.wait_for_end("ring-w-0", "Succeeded")
    assert node_name(harness.api.pod("ring-w-0")) == harness.nodes[1]
    harness.check_invariants()


def test_a_recreated_pod_is_left_alone(harness: BinderHarness) -> None:
    pod = harness.pod_with_request("web", harness.nodes[0])
    harness.api.delete_all("BindRequest", ["web"])
    harness.api.delete("Pod", "web", now=True)
    wait_until(lambda: harness.find("Pod", "web") == {}, "the pod is gone")
    harness.api.create(harness.pod("web", schedulerName="other-scheduler"))
    harness.api.create(harness.request(pod, harness.nodes[0], owned=False))
    with harness.binder(plugins(harness)):
        assert harness.wait_for_end("web", "Failed")["status"]["reason"] == "the pod is gone; another pod has its name"
    assert node_name(harness.api.pod("web")) == ""


def test_a_request_fails_when_its_node_is_removed(harness: BinderHarness) -> None:
    harness.pod_with_request("web", harness.nodes[0], backoffLimit=1)
    harness.run_until_crash("taken")
    harness.api.delete("Node", harness.nodes[0])
    with harness.binder():
        assert "is not there" in harness.wait_for_end("web", "Failed")["status"]["reason"]
    assert node_name(harness.api.pod("web")) == ""


def test_a_half_requested_gang_is_completed(harness: BinderHarness) -> None:
    """Half of the requests exist, as a scheduler left them; the next scheduler creates the other half."""
    harness.group("ring", 4)
    pods = harness.api.create(*(harness.member("ring", number) for number in range(4)))
    for pod, node in zip(pods[:2], harness.nodes, strict=True):
        harness.api.create(harness.request(pod, node))
    with harness.run_batch_with_requests():
        wait_until(lambda: len(harness.api.list("BindRequest")) == 4, "the rest of the gang has requests")
        first = {each["spec"]["podName"]: each["spec"]["selectedNode"] for each in harness.api.list("BindRequest")}
        with harness.binder():
            harness.wait_bound([pod["metadata"]["name"] for pod in pods])
    assert [first["ring-w-0"], first["ring-w-1"]] == harness.nodes
    assert {name: node_name(pod) for name, pod in harness.api.pods().items()} == first
    harness.check_invariants()


def test_live_requests_count_after_a_restart(harness: BinderHarness) -> None:
    with harness.run_scheduler_with_requests() as scheduler:
        harness.api.create(harness.pod("big", cpu="4"))
        wait_until(lambda: bool(harness.find("BindRequest", "big")), "the request is made")
        scheduler.send_signal(signal.SIGKILL)
        scheduler.wait(60)
    taken = harness.find("BindRequest", "big")["spec"]["selectedNode"]
    (free,) = set(harness.nodes) - {taken}
    with harness.run_scheduler_with_requests():
        harness.api.create(harness.pod("other", cpu="4"))
        wait_until(lambda: bool(harness.find("BindRequest", "other")), "the other pod has a request")
        assert harness.find("BindRequest", "other")["spec"]["selectedNode"] == free
        with harness.binder():
            harness.wait_bound(["big", "other"])
    harness.check_invariants()


def test_a_pod_with_a_failed_request_is_bound_to_another_node(harness: BinderHarness) -> None:
    (harness.folder / "plugins" / "refusing.py").write_text(REFUSING.replace("BAD", harness.nodes[0]))
    with harness.run_scheduler_with_requests(), harness.binder(plugins(harness)):
        harness.api.create(*(harness.pod(f"web-{number}") for number in range(4)))
        harness.wait_bound()
    assert {node_name(pod) for pod in harness.api.pods().values()} == {harness.nodes[1]}
    harness.check_invariants()


# shared devices


@pytest.mark.parametrize("step", ["reserved", "labelled"])
def test_a_reservation_is_found_again(harness: BinderHarness, group: str, step: str) -> None:
    """The reservation of a live request is not an orphan."""
    harness.create_gpu_sharing_pod("web", group)
    with crash_at(step), harness.binder() as process:
        harness.report_device(group)
        assert process.wait(60) == -signal.SIGKILL, harness.binder_log()
    before = [pod["metadata"]["uid"] for pod in harness.reservations(group)]
    with harness.binder():
        harness.wait_for_end("web", "Succeeded")
        assert [pod["metadata"]["uid"] for pod in harness.reservations(group)] == before
        pod = harness.api.pod("web")
        assert pod["metadata"]["labels"]["runai-gpu-group"] == group
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
        # When its only user is deleted the device is free again.
        harness.api.delete("Pod", "web", now=True)
        harness.api.delete_all("BindRequest", ["web"])
        wait_until(lambda: not harness.reservations(group), "the reservation goes")
    assert harness.reservations(group) == []


def test_requests_of_other_schedulers_are_left_alone(harness: BinderHarness) -> None:
    harness.pod_with_request("theirs", harness.nodes[0], labels={})
    harness.pod_with_request("ours", harness.nodes[0])
    with harness.binder():
        harness.wait_for_end("ours", "Succeeded")
    assert harness.phase_of("theirs") == ""
    assert node_name(harness.api.pod("theirs")) == ""
    with harness.binder("--all"):
        harness.wait_for_end("theirs", "Succeeded")
    assert node_name(harness.api.pod("theirs")) == harness.nodes[0]


def test_the_next_holder_of_the_lease_takes_over(harness: BinderHarness) -> None:
    elect = ("--leader-elect", f"--leader-elect-resource-namespace={harness.namespace}")
    with harness.binder(*elect) as first:
        harness.pod_with_request("first", harness.nodes[0])
        harness.wait_for_end("first", "Succeeded")
        with harness.binder(*elect):
            first.kill()
            first.wait(60)
            harness.pod_with_request("second", harness.nodes[1])
            harness.wait_for_end("second", "Succeeded")
    assert harness.requested_and_bound_nodes(["first", "second"]) == [(node, node) for node in harness.nodes]
    harness.check_invariants()
