"""Who dies where, and what the next one makes of it: each row of the table of crash points, by SIGKILL at the step."""

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
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    plugins = tmp_path / "plugins"
    plugins.mkdir(mode=0o755)
    (plugins / "notes.py").write_text(NOTES)
    mine.add_nodes(2, room={"nvidia.com/gpu": "4"})
    yield mine
    mine.close()


def plugins(corner: BinderHarness) -> str:
    return f"--plugins-dir={corner.folder / 'plugins'}"


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
def test_the_next_binder_goes_on(corner: BinderHarness, step: str, left_on: str | None) -> None:
    corner.pod_with_request("web", corner.nodes[0])
    corner.run_until_crash(step, plugins(corner))
    assert corner.phase_of("web") == "Pending"
    assert node_name(corner.api.pod("web")) == (corner.nodes[0] if left_on else "")
    with corner.binder(plugins(corner)):
        corner.wait_for_end("web", "Succeeded")
    pod = corner.api.pod("web")
    assert (node_name(pod), note(pod)) == (corner.nodes[0], "bound")
    corner.check_invariants()


@pytest.mark.parametrize("step", ["broken", "rolled-back"])
def test_nothing_is_left_of_a_failure(corner: BinderHarness, step: str) -> None:
    corner.pod_with_request("web", corner.nodes[0], backoffLimit=2, annotations={"notes.kai.scheduler/fail": "yes"})
    corner.run_until_crash(step, plugins(corner))
    assert note(corner.api.pod("web")) == ("prepared" if step == "broken" else None)
    with corner.binder(plugins(corner)):
        request = corner.wait_for_end("web", "Failed")
    assert request["status"]["failedAttempts"] == 2
    assert "as the request says" in request["status"]["reason"]
    assert note(corner.api.pod("web")) is None
    corner.check_invariants()


@pytest.mark.parametrize("limit", [3, 1])
def test_a_request_that_kills_every_binder_is_given_up(corner: BinderHarness, limit: int) -> None:
    (corner.folder / "plugins" / "killing.py").write_text(KILLING)
    with corner.watch_binds(corner.folder / "plugins") as witness:
        with corner.binder(plugins(corner)) as process:
            wait_until(
                lambda: "the binder is running" in corner.binder_log(), "the binder is running", why=corner.binder_log
            )
            corner.pod_with_request("web", corner.nodes[0], backoffLimit=limit)
            assert process.wait(60) == -signal.SIGKILL
        uid = corner.find("BindRequest", "web")["metadata"]["uid"]
        for count in range(1, limit + 1):
            with corner.binder(plugins(corner)) as process:
                assert process.wait(60) == -signal.SIGKILL
            assert (corner.phase_of("web"), witness.tried()[uid]) == ("Pending", 1 + count)
        with corner.binder(plugins(corner)):
            corner.wait_for_end("web", "Failed")
    assert f"the binder died during attempt {limit} of {limit}" in corner.reason_of("web")
    assert corner.bound_condition("web")["message"] == corner.reason_of("web")
    assert witness.faults() == []
    corner.check_invariants()


@pytest.fixture
def group(corner: BinderHarness) -> Iterator[str]:
    corner.ensure_reservations()
    name = f"group-{corner.label[-40:]}".strip("-")
    yield name
    corner.release(name)


@pytest.fixture
def witness(corner: BinderHarness, group: str) -> Iterator[BindWatcher]:  # noqa: ARG001
    with corner.watch_binds(corner.folder / "plugins") as looking_on:
        yield looking_on


@pytest.mark.parametrize("step", ["prepared", "bound"])
def test_a_shared_device_is_found_again_with_all_that_is_told(
    corner: BinderHarness, witness: BindWatcher, group: str, step: str
) -> None:
    corner.sharing("web", group)
    corner.run_until_crash(step)
    left = left_for_containers(corner, group)
    with corner.binder():
        corner.wait_for_end("web", "Succeeded")
        assert left_for_containers(corner, group) == left
        pod = corner.api.pod("web")
        assert (node_name(pod), pod["metadata"]["labels"]["runai-gpu-group"]) == (corner.nodes[0], group)
        corner.check_invariants()
    assert len(witness.reserved) == 1
    assert witness.faults() == []


def left_for_containers(corner: BinderHarness, group: str) -> dict[str, str]:
    """The objects by which containers get their device: each with its uid, so that another one is seen."""
    (reservation,) = corner.reservations(group)
    device = reservation["metadata"]["annotations"][DEVICE]
    found = {"reservation": reservation["metadata"]["uid"]}
    for name in ("web-gpu-0", "web-gpu-0-evar"):
        told = corner.api.get("ConfigMap", name)
        assert told["data"]["NVIDIA_VISIBLE_DEVICES"] == device
        found[name] = told["metadata"]["uid"]
    return found


@pytest.mark.parametrize("step", ["prepared", "bound"])
def test_the_next_binder_finds_the_claim_reserved(corner: BinderHarness, step: str) -> None:
    pod = corner.claiming("web")
    corner.run_until_crash(step)
    left = corner.api.get("ResourceClaim", "web")
    assert [user["uid"] for user in left["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    assert left["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    with corner.binder():
        corner.wait_for_end("web", "Succeeded")
    assert corner.api.get("ResourceClaim", "web") == left  # nothing was left to write
    assert node_name(corner.api.pod("web")) == corner.nodes[0]
    corner.check_invariants()


def test_the_next_binder_gives_back_the_claim_of_a_pod_that_has_gone_meanwhile(corner: BinderHarness) -> None:
    """Nothing but the request tells of the pod, and nobody runs here who looks after claims."""
    pod = corner.claiming("web", owned=False)
    corner.run_until_crash("prepared")
    left = corner.api.get("ResourceClaim", "web")
    assert [user["uid"] for user in left["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    corner.api.delete("Pod", "web", now=True)
    with corner.binder():
        assert corner.wait_for_end("web", "Failed")["status"]["reason"] == "the pod is gone"
    assert corner.api.get("ResourceClaim", "web").get("status", {}) == {}
    corner.check_invariants()


@pytest.mark.parametrize("step", ["promised", "prepared", "bound"])
def test_a_volume_is_found_again(corner: BinderHarness, step: str) -> None:
    """Another one would fit as well; and who dies while it is awaited finds it promised, as often as that happens."""
    names = corner.storing("web", backoffLimit=6)
    corner.run_until_crash("promised")
    (left,) = corner.volumes()
    assert left["metadata"]["name"] in names
    assert left["spec"]["claimRef"]["uid"] == corner.api.get("PersistentVolumeClaim", "web")["metadata"]["uid"]
    with crash_at(step), corner.binder() as dying:
        if step != "promised":
            bind_claim(corner, "web", left["metadata"]["name"])
        assert dying.wait(60) == -signal.SIGKILL, corner.binder_log()
    assert node_name(corner.api.pod("web")) == (corner.nodes[0] if step == "bound" else "")
    with corner.binder():
        bind_claim(corner, "web", left["metadata"]["name"])
        corner.wait_for_end("web", "Succeeded")
    (found,) = corner.volumes()
    assert (found["metadata"]["name"], found["spec"]) == (left["metadata"]["name"], left["spec"])
    assert node_name(corner.api.pod("web")) == corner.nodes[0]
    corner.check_invariants()


def test_the_node_of_a_volume_that_is_made_stays(corner: BinderHarness) -> None:
    (made, _) = corner.storing("web", "example.com/maker", backoffLimit=6)
    for _ in range(2):
        corner.run_until_crash("promised")
        left = corner.api.get("PersistentVolumeClaim", "web")
        assert left["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == corner.nodes[0]
        assert corner.volumes() == []
    with corner.binder():
        uid = {"namespace": corner.namespace, "name": "web", "uid": left["metadata"]["uid"]}
        corner.api.patch("PersistentVolume", made, {"spec": {"claimRef": uid}})  # as its provisioner would make it
        bind_claim(corner, "web", made)
        corner.wait_for_end("web", "Succeeded")
    assert node_name(corner.api.pod("web")) == corner.nodes[0]
    corner.check_invariants()


def standing(corner: BinderHarness) -> tuple[str, str]:
    """Flags of a binder that stands still before its first binding."""
    text = STANDING.replace("A_FILE", str(corner.folder / "stood"))
    (corner.folder / "plugins" / "standing.py").write_text(text)
    return plugins(corner), corner.long_timeout_settings


def wanted(corner: BinderHarness, kind: str, group: str) -> Tree:
    """A pod of this kind, and a request that nobody collects when the pod goes."""
    if kind == "shared":
        return corner.sharing("web", group, owned=False)
    if kind == "claim":
        return corner.claiming("web", owned=False)
    return corner.pod_with_request("web", corner.nodes[0], owned=False)


@pytest.mark.parametrize("kind", ["plain", "shared", "claim"])
def test_a_pod_deleted_while_it_is_bound_is_not_tried_again(
    corner: BinderHarness, witness: BindWatcher, group: str, kind: str
) -> None:
    """The server refuses the binding: what was prepared is given back, and the request is given up at once."""
    pod = wanted(corner, kind, group)
    with corner.binder(*standing(corner)) as process:
        wait_until(lambda: is_stopped(process), "all is prepared", why=corner.binder_log)
        if kind == "claim":
            assert "allocation" in corner.api.get("ResourceClaim", "web")["status"]
        assert len(corner.reservations(group)) == (kind == "shared")
        corner.api.delete("Pod", "web", now=True)
        process.send_signal(signal.SIGCONT)
        request = corner.wait_for_end("web", "Failed")
        wait_until(lambda: corner.reservations(group) == [], "the device is given back")
        wait_until(lambda: corner.faults() == [], "nothing is left", why=lambda: str(corner.faults()))
    assert request["status"]["reason"] == "the pod is gone"
    assert request["status"]["failedAttempts"] == request["spec"]["backoffLimit"]  # over: it was tried once
    assert pod["metadata"]["uid"] not in witness.nodes
    if kind == "claim":
        assert corner.api.get("ResourceClaim", "web").get("status", {}) == {}
    assert witness.faults() == []


def test_a_pod_made_anew_while_the_old_one_is_bound_gets_a_request_of_its_own(
    corner: BinderHarness, witness: BindWatcher
) -> None:
    with corner.run_scheduler_with_requests(), corner.binder(*standing(corner)) as process:
        corner.api.create(corner.pod("web"))
        wait_until(lambda: is_stopped(process), "all is prepared", why=corner.binder_log)
        old = corner.find("BindRequest", "web")
        corner.api.delete("Pod", "web", now=True)
        wait_until(lambda: corner.find("Pod", "web") == {}, "the pod is gone")
        (fresh,) = corner.api.create(corner.pod("web"))
        process.send_signal(signal.SIGCONT)
        corner.wait_bound(["web"])
        wait_until(lambda: corner.phase_of("web") == "Succeeded", "the new request is carried out")
        wait_until(lambda: witness.has_seen(corner.api.pods()), "that was seen")
    request = corner.find("BindRequest", "web")
    assert request["spec"]["podUID"] == fresh["metadata"]["uid"] != old["spec"]["podUID"]
    assert set(witness.nodes) == {fresh["metadata"]["uid"]}
    assert witness.faults() == []
    corner.check_invariants()


def test_a_pod_whose_node_is_removed_goes_elsewhere(corner: BinderHarness, witness: BindWatcher) -> None:
    """The engine deletes the request, whatever the binder says of it, and places the pod anew when its binding to that
    node cannot land any more."""
    settings = corner.folder / "quick.yaml"
    settings.write_text("apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nrequestTimeoutSeconds: 5\n")
    with corner.run_scheduler_with_requests(f"--settings={settings}"):
        corner.api.create(corner.pod("web"))
        wait_until(lambda: bool(corner.find("BindRequest", "web")), "the request is made")
        first = corner.find("BindRequest", "web")
        corner.run_until_crash("taken")
        corner.api.delete("Node", first["spec"]["selectedNode"])
        with corner.binder():
            corner.wait_bound(["web"])
            second = corner.wait_for_end("web", "Succeeded")
            wait_until(lambda: witness.has_seen(corner.api.pods()), "that was seen")
    (other,) = set(corner.nodes) - {first["spec"]["selectedNode"]}
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert node_name(corner.api.pod("web")) == second["spec"]["selectedNode"] == other
    assert witness.faults() == []
    corner.check_invariants()


@pytest.mark.parametrize("sessions", [False, True], ids=["pods", "sessions"])
def test_no_device_stays_on_a_removed_node(corner: BinderHarness, sessions: bool) -> None:
    """The binder has written the claim and died; who comes after finds neither a request nor the node."""
    kind = f"gpu-{corner.label[-40:]}"
    (here, device_class), (there, _) = (devices(corner, node, kind) for node in corner.nodes)
    for each in (here, there):
        each["metadata"]["name"] = each["spec"]["nodeName"]
    corner.group("ring", 1)
    pod = corner.member("ring", 0, resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    if not sessions:
        del pod["spec"]["schedulerName"]
    engine = corner.run_batch_with_requests if sessions else corner.run_scheduler_with_requests
    corner.api.create(here, device_class, device_claim("gpu", kind), pod)
    with engine():
        wait_until(lambda: bool(corner.find("BindRequest", "ring-w-0")), "the request is made")
        corner.run_until_crash("prepared")
    first = corner.find("BindRequest", "ring-w-0")
    assert corner.api.get("ResourceClaim", "gpu")["status"]["reservedFor"]
    corner.api.create(there)
    corner.api.delete("Node", corner.nodes[0])
    corner.api.delete("ResourceSlice", here["metadata"]["name"])
    with engine():
        wait_until(lambda: corner.find("BindRequest", "ring-w-0") != first, "the request to that node is gone")
    with engine(), corner.binder():
        corner.wait_bound(["ring-w-0"])
        corner.wait_for_end("ring-w-0", "Succeeded")
    assert node_name(corner.api.pod("ring-w-0")) == corner.nodes[1]
    corner.check_invariants()


def test_a_pod_made_anew_is_left_alone(corner: BinderHarness) -> None:
    pod = corner.pod_with_request("web", corner.nodes[0])
    corner.api.delete_all("BindRequest", ["web"])
    corner.api.delete("Pod", "web", now=True)
    wait_until(lambda: corner.find("Pod", "web") == {}, "the pod is gone")
    corner.api.create(corner.pod("web", schedulerName="nobody"))
    corner.api.create(corner.request(pod, corner.nodes[0], owned=False))
    with corner.binder(plugins(corner)):
        assert corner.wait_for_end("web", "Failed")["status"]["reason"] == "the pod is gone; another pod has its name"
    assert node_name(corner.api.pod("web")) == ""


def test_a_node_removed_meanwhile_fails_it(corner: BinderHarness) -> None:
    corner.pod_with_request("web", corner.nodes[0], backoffLimit=1)
    corner.run_until_crash("taken")
    corner.api.delete("Node", corner.nodes[0])
    with corner.binder():
        assert "is not there" in corner.wait_for_end("web", "Failed")["status"]["reason"]
    assert node_name(corner.api.pod("web")) == ""


def test_a_half_requested_gang_is_completed(corner: BinderHarness) -> None:
    """Half of the requests are there as a scheduler left them; the other half is made by the one that comes after."""
    corner.group("ring", 4)
    pods = corner.api.create(*(corner.member("ring", number) for number in range(4)))
    for pod, node in zip(pods[:2], corner.nodes, strict=True):
        corner.api.create(corner.request(pod, node))
    with corner.run_batch_with_requests():
        wait_until(lambda: len(corner.api.list("BindRequest")) == 4, "the rest of the gang has requests")
        first = {each["spec"]["podName"]: each["spec"]["selectedNode"] for each in corner.api.list("BindRequest")}
        with corner.binder():
            corner.wait_bound([pod["metadata"]["name"] for pod in pods])
    assert [first["ring-w-0"], first["ring-w-1"]] == corner.nodes
    assert {name: node_name(pod) for name, pod in corner.api.pods().items()} == first
    corner.check_invariants()


def test_live_requests_count_after_a_restart(corner: BinderHarness) -> None:
    with corner.run_scheduler_with_requests() as scheduler:
        corner.api.create(corner.pod("big", cpu="4"))
        wait_until(lambda: bool(corner.find("BindRequest", "big")), "the request is made")
        scheduler.send_signal(signal.SIGKILL)
        scheduler.wait(60)
    taken = corner.find("BindRequest", "big")["spec"]["selectedNode"]
    (free,) = set(corner.nodes) - {taken}
    with corner.run_scheduler_with_requests():
        corner.api.create(corner.pod("other", cpu="4"))
        wait_until(lambda: bool(corner.find("BindRequest", "other")), "the other pod has a request")
        assert corner.find("BindRequest", "other")["spec"]["selectedNode"] == free
        with corner.binder():
            corner.wait_bound(["big", "other"])
    corner.check_invariants()


def test_a_pod_given_up_goes_elsewhere(corner: BinderHarness) -> None:
    (corner.folder / "plugins" / "refusing.py").write_text(REFUSING.replace("BAD", corner.nodes[0]))
    with corner.run_scheduler_with_requests(), corner.binder(plugins(corner)):
        corner.api.create(*(corner.pod(f"web-{number}") for number in range(4)))
        corner.wait_bound()
    assert {node_name(pod) for pod in corner.api.pods().values()} == {corner.nodes[1]}
    corner.check_invariants()


# devices that are shared


@pytest.mark.parametrize("step", ["reserved", "labelled"])
def test_a_reservation_is_found_again(corner: BinderHarness, group: str, step: str) -> None:
    """A reservation that was made for a request which is still alive is nobody's orphan."""
    corner.sharing("web", group)
    with crash_at(step), corner.binder() as process:
        corner.report_device(group)
        assert process.wait(60) == -signal.SIGKILL, corner.binder_log()
    before = [pod["metadata"]["uid"] for pod in corner.reservations(group)]
    with corner.binder():
        corner.wait_for_end("web", "Succeeded")
        assert [pod["metadata"]["uid"] for pod in corner.reservations(group)] == before
        pod = corner.api.pod("web")
        assert pod["metadata"]["labels"]["runai-gpu-group"] == group
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
        # When its only user is gone the device is free again.
        corner.api.delete("Pod", "web", now=True)
        corner.api.delete_all("BindRequest", ["web"])
        wait_until(lambda: not corner.reservations(group), "the reservation goes")
    assert corner.reservations(group) == []


def test_requests_of_others_are_left_alone(corner: BinderHarness) -> None:
    corner.pod_with_request("theirs", corner.nodes[0], labels={})
    corner.pod_with_request("ours", corner.nodes[0])
    with corner.binder():
        corner.wait_for_end("ours", "Succeeded")
    assert corner.phase_of("theirs") == ""
    assert node_name(corner.api.pod("theirs")) == ""
    with corner.binder("--all"):
        corner.wait_for_end("theirs", "Succeeded")
    assert node_name(corner.api.pod("theirs")) == corner.nodes[0]


def test_the_next_holder_of_the_lease_takes_over(corner: BinderHarness) -> None:
    elect = ("--leader-elect", f"--leader-elect-resource-namespace={corner.namespace}")
    with corner.binder(*elect) as first:
        corner.pod_with_request("first", corner.nodes[0])
        corner.wait_for_end("first", "Succeeded")
        with corner.binder(*elect):
            first.kill()
            first.wait(60)
            corner.pod_with_request("second", corner.nodes[1])
            corner.wait_for_end("second", "Succeeded")
    assert corner.requested_and_bound_nodes(["first", "second"]) == [(node, node) for node in corner.nodes]
    corner.check_invariants()
