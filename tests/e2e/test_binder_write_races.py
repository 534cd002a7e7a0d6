"""Engines that die between two writes, and writers that meet: the rows of the crash table that are not the binder's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.binder_harness import BY_BINDER, SETTINGS, BinderHarness, is_stopped
from support.e2e.scheduler_harness import SHORT_BACKOFF_CONFIG, short_backoff_config
from support.e2e.scheduler_process import crash_at, node_name, wait_until
from support.fakes.fault_proxy import ProxyFault, refusal, run_fault_proxy

STOPPING = '''
import os, signal


class Stopping:
    """Stops its process between the decision and the write."""

    name = "Stopping"

    def mutate_bind_request(self, cycle, node_name):
        os.kill(os.getpid(), signal.SIGSTOP)
'''
STOPPED = BY_BINDER.replace("[{name: BindRequestBinder}]", "[{name: Stopping}, {name: BindRequestBinder}]")

REPLACING = '''
from bayplan.client import resource_of
from bayplan.objects.kai.bind_request import BindRequest, manifest
from bayplan.objects.kinds import kind_of


class Replacing:
    """Puts a request to another node in the place of one that was carried out, before its status is written."""

    name = "replacing"

    async def post_bind(self, ctx, pod, node, bind_request, state):
        if "example.com/second" in bind_request.metadata.annotations:
            return
        resource = resource_of(kind_of(BindRequest))
        await ctx.client.delete(resource, name=bind_request.name, namespace=bind_request.namespace)
        again = manifest(bind_request)
        again["metadata"] = {
            "name": bind_request.name,
            "labels": again["metadata"]["labels"],
            "annotations": {"example.com/second": "yes"},
            "ownerReferences": again["metadata"]["ownerReferences"],
        }
        again["spec"]["selectedNode"] = "ELSEWHERE"
        await ctx.client.create(resource, again, namespace=bind_request.namespace)
'''

DELETING = '''
from bayplan.binder.informer_cache import READ_AGAIN_AFTER_S
from bayplan.client import resource_of
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.kinds import kind_of


class Deleting:
    """Deletes the request that is being carried out, as an engine may, the first time."""

    name = "deleting"
    done = False

    async def A_POINT(self, ctx, pod, node, bind_request, state):
        if not Deleting.done:
            Deleting.done = True
            resource = resource_of(kind_of(BindRequest))
            await ctx.client.delete(resource, name=bind_request.name, namespace=bind_request.namespace)
            await ctx.clock.sleep(READ_AGAIN_AFTER_S)  # so long that nobody may rely on what the watch has told
'''


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    (tmp_path / "plugins").mkdir(mode=0o755)
    yield mine
    mine.close()


def plugin(corner: BinderHarness, text: str) -> str:
    folder = corner.folder / "plugins"
    (folder / "racing.py").write_text(text)
    return f"--plugins-dir={folder}"


def stopping(corner: BinderHarness) -> tuple[str, str]:
    return plugin(corner, STOPPING), corner.long_timeout_settings


def scheduled(corner: BinderHarness) -> list[str]:
    return [each["note"] for each in corner.api.list("Event") if each["reason"] == "Scheduled"]


def requests(corner: BinderHarness) -> dict[str, Tree]:
    return {each["spec"]["podName"]: each for each in corner.api.list("BindRequest")}


def killed(process: Popen[bytes], corner: BinderHarness) -> None:
    assert process.wait(60) == -signal.SIGKILL, corner.log()


def test_a_scheduler_dies_after_two_of_four_requests_of_a_gang(corner: BinderHarness) -> None:
    """What was requested counts; the next one asks for the rest, and nobody is asked for twice."""
    corner.add_nodes(2)
    names = corner.gang("ring", 4)
    one_by_one = f"{SETTINGS}writesAtOnce: 1\n"
    with crash_at("requested:2"), corner.run_batch_with_requests(settings=one_by_one) as dying:
        killed(dying, corner)
    first = requests(corner)
    assert len(first) == 2
    with corner.run_batch_with_requests(), corner.binder():
        corner.wait_bound(names)
        for name in names:
            corner.wait_for_end(name, "Succeeded")
    found = requests(corner)
    assert set(found) == set(names)
    for name, request in first.items():
        assert found[name]["metadata"]["uid"] == request["metadata"]["uid"]
        assert node_name(corner.api.pod(name)) == request["spec"]["selectedNode"]
    corner.check_invariants()


def test_a_scheduler_dies_after_evictions_before_the_request(corner: BinderHarness) -> None:
    """The victims are gone and the pod waits: the next scheduler places it, and evicts nobody else."""
    (node,) = corner.add_nodes(1, cpu="4")
    high = corner.priority("high", 1000)
    weak = [f"weak-{number}" for number in range(4)]
    with corner.run_scheduler_with_requests(), corner.binder():
        corner.api.create(*(corner.pod(name, cpu="1") for name in weak))
        corner.wait_bound()
    for name in weak:  # who is evicted stays until the scheduler is dead, or it might place the pod before
        corner.api.patch("Pod", name, {"metadata": {"finalizers": ["example.com/stays"]}})
    corner.api.create(corner.pod("strong", cpu="2", priorityClassName=high))
    with crash_at("evicted"), corner.run_scheduler_with_requests() as dying:
        killed(dying, corner)
    for name in weak:
        corner.api.patch("Pod", name, {"metadata": {"finalizers": None}})
    wait_until(lambda: len(corner.api.pods()) == 3, "the victims are gone", why=lambda: str(list(corner.api.pods())))
    assert "strong" not in requests(corner)
    assert node_name(corner.api.pod("strong")) == ""
    with corner.run_scheduler_with_requests() as scheduler, corner.binder():
        corner.check_settled(scheduler)
    assert node_name(corner.api.pod("strong")) == node
    assert len(corner.api.pods()) == 3
    corner.check_invariants()


def test_sessions_die_after_evictions_before_the_requests(corner: BinderHarness) -> None:
    """The same of the batch engine: what was made free is taken by the gang for which it was."""
    (node,) = corner.add_nodes(1, cpu="4")
    high = corner.priority("high", 1000)
    with corner.run_batch_with_requests(), corner.binder():
        weak = corner.gang("weak", 4, minimum=1)
        corner.wait_bound(weak)
    corner.start(*weak)
    strong = corner.gang("strong", 2, group={"priorityClassName": high}, priorityClassName=high)
    with crash_at("evicted"), corner.run_batch_with_requests() as dying:
        killed(dying, corner)
    for (
        name,
        pod,
    ) in corner.api.pods().items():  # what a kubelet does: a server whose client is killed leaves it at that
        if pod["metadata"].get("deletionTimestamp"):
            corner.api.delete_all("Pod", [name])
    assert not any(name in requests(corner) for name in strong)
    with corner.run_batch_with_requests(), corner.binder():
        corner.wait_bound(strong)
    assert corner.nodes_of(strong) == [node, node]
    assert [name for name in weak if name in corner.api.pods()] != []
    corner.check_invariants()


def elected(corner: BinderHarness, profiles: str) -> str:
    lease = (
        "leaderElection: {leaderElect: true, leaseDuration: 9s, renewDeadline: 6s, retryPeriod: 500ms, "
        f"resourceNamespace: {corner.namespace}, resourceName: racing}}"
    )
    return SHORT_BACKOFF_CONFIG.replace("leaderElection: {leaderElect: false}", lease).replace("PROFILES", profiles)


def test_a_new_leader_decides_while_the_old_one_commits(corner: BinderHarness) -> None:
    """The old one stands still between its decision and its write. When it goes on it may not write any more."""
    corner.add_nodes(1)
    corner.api.create(corner.pod("web"))
    with corner.run_scheduler(*stopping(corner), config=elected(corner, STOPPED), may_end_with=1) as old:
        wait_until(lambda: is_stopped(old), "the old leader stands between decision and write", why=corner.log)
        assert requests(corner) == {}
        with corner.run_scheduler(config=elected(corner, BY_BINDER)), corner.binder():
            corner.wait_bound(["web"])
            corner.wait_for_end("web", "Succeeded")
            corner.api.delete_all("BindRequest", ["web"])  # or what the old one writes would only be refused
            old.send_signal(signal.SIGCONT)
            assert old.wait(60) == 1
    assert requests(corner) == {}
    corner.check_invariants()


def test_two_schedulers_ask_for_the_same_pod(corner: BinderHarness) -> None:
    """Nobody elects: the second to write finds the request of the first, and takes it for its own."""
    corner.add_nodes(1)
    corner.api.create(corner.pod("web"))
    with corner.run_scheduler(*stopping(corner), config=short_backoff_config(STOPPED)) as late:
        wait_until(lambda: is_stopped(late), "one stands between decision and write", why=corner.log)
        with corner.run_scheduler_with_requests():
            wait_until(lambda: "web" in requests(corner), "the other has written")
            written = requests(corner)["web"]["metadata"]["uid"]
            late.send_signal(signal.SIGCONT)
            with corner.binder():
                corner.wait_bound(["web"])
                wait_until(lambda: len(scheduled(corner)) == 2, "both know that the pod has its node")
    assert set(scheduled(corner)) == {f"Successfully assigned {corner.namespace}/web to {corner.nodes[0]}"}
    assert [each["metadata"]["uid"] for each in requests(corner).values()] == [written]
    corner.check_invariants()


def test_a_conflict_of_the_status_is_tried_again(cluster: Cluster, corner: BinderHarness, tmp_path: Path) -> None:
    corner.add_nodes(1)
    with run_fault_proxy(cluster, tmp_path) as proxy:
        conflict = refusal(409, "Conflict", "the object has been modified")
        fault = proxy.add(
            ProxyFault(
                lambda ask: ask.method == "PATCH" and "/bindrequests/web/status" in ask.path, times=2, refuse=conflict
            )
        )
        with corner.binder(f"--kubeconfig={proxy.kubeconfig()}"):
            wait_until(
                lambda: "the binder is running" in corner.binder_log(), "the binder is running", why=corner.binder_log
            )
            corner.pod_with_request("web", corner.nodes[0])
            request = corner.wait_for_end("web", "Succeeded")
    assert len(fault.seen) == 2
    assert request["status"].get("failedAttempts", 0) == 0
    corner.check_invariants()


def test_a_request_replaced_under_the_binder_gets_a_status_of_its_own(corner: BinderHarness) -> None:
    """The status of the first is refused, by its uid, for the second, which asks for what cannot be any more."""
    here, elsewhere = corner.add_nodes(2)
    corner.pod_with_request("web", here)

    def is_second() -> bool:
        metadata = corner.find("BindRequest", "web").get("metadata", {})
        return "example.com/second" in metadata.get("annotations", {})

    with corner.binder(plugin(corner, REPLACING.replace("ELSEWHERE", elsewhere))):
        wait_until(lambda: is_second() and corner.phase_of("web") != "", "the second has a status")
    request = corner.find("BindRequest", "web")
    assert request["status"]["phase"] == "Failed"
    assert request["status"]["reason"] == f'the pod is bound elsewhere: to node "{here}"'
    assert node_name(corner.api.pod("web")) == here
    corner.expected_annotations = lambda request: {"example.com/second": "yes"}  # noqa: ARG005
    corner.check_invariants()


def test_a_uid_that_is_only_sent_with_a_status_keeps_it_from_nobody(corner: BinderHarness) -> None:
    """Why the binder tests it: so do servers treat a custom kind, and ours is to be no better."""
    corner.add_nodes(1)
    corner.pod_with_request("web", corner.nodes[0])
    told = {"metadata": {"uid": "of-another"}, "status": {"phase": "Pending"}}
    corner.api.patch("BindRequest", "web", told, sub="status")
    assert corner.phase_of("web") == "Pending"


def test_a_request_deleted_while_its_pod_is_prepared_is_not_carried_out(corner: BinderHarness) -> None:
    """The scheduler misses it, places the pod anew, and what binds the pod is the second request."""
    corner.add_nodes(2)
    with (
        corner.run_scheduler_with_requests() as scheduler,
        corner.binder(plugin(corner, DELETING.replace("A_POINT", "pre_bind"))),
    ):
        corner.api.create(corner.pod("web"))
        corner.wait_bound(["web"])  # that a request is missed takes up to half a minute
        corner.check_settled(scheduler)
        assert set(requests(corner)) == {"web"}, corner.binder_log()
        corner.wait_for_end("web", "Succeeded")
    corner.check_invariants()


def test_a_request_deleted_once_its_pod_is_bound_is_not_made_anew(corner: BinderHarness) -> None:
    corner.add_nodes(2)
    with (
        corner.run_scheduler_with_requests() as scheduler,
        corner.binder(plugin(corner, DELETING.replace("A_POINT", "post_bind"))),
    ):
        corner.api.create(corner.pod("web"))
        wait_until(lambda: any("is bound to node" in each for each in corner.event_notes("web")), "all of it is done")
        corner.check_settled(scheduler)
    assert requests(corner) == {}
    assert node_name(corner.api.pod("web")) in corner.nodes
    corner.check_invariants()


def test_requests_that_no_binder_takes_up_are_complained_about_and_then_made_anew(corner: BinderHarness) -> None:
    assert ADVICE in " ".join(forgotten(corner))


def test_a_forgotten_request_is_made_anew_though_somebody_has_edited_it(corner: BinderHarness) -> None:
    assert ADVICE in " ".join(forgotten(corner, edited=True))


ADVICE = "see whether `bayplan binder` runs, and what it waits for"


def forgotten(corner: BinderHarness, *, edited: bool = False) -> list[str]:
    """What a pod is told whose request nobody takes up, until there is another one in its place, and a binder."""
    corner.add_nodes(1)
    settings = corner.folder / "stale.yaml"
    settings.write_text(f"{SETTINGS}staleRequestSeconds: 1\n".replace("bindRequests: true\n", ""))
    with corner.run_scheduler_with_requests(f"--settings={settings}"):
        corner.api.create(corner.pod("web"))
        wait_until(lambda: "web" in requests(corner), "the request is made")
        first = requests(corner)["web"]["metadata"]["uid"]
        if edited:
            corner.api.patch("BindRequest", "web", {"metadata": {"annotations": {"example.com/seen": "yes"}}})
        wait_until(
            lambda: any("no binder has updated" in each for each in corner.event_notes("web")), "somebody complains"
        )
        wait_until(
            lambda: requests(corner).get("web", {}).get("metadata", {}).get("uid", first) != first,
            "another request is made in the place of the forgotten one",
        )
        with corner.binder():
            corner.wait_bound(["web"])
    corner.check_invariants()
    return corner.event_notes("web")


@pytest.mark.parametrize("engine", ["pods", "gangs"])
def test_failed_requests_without_pods_go(corner: BinderHarness, engine: str) -> None:
    """Nobody owns them whom anything could collect, and no engine waits for such a pod."""
    (node,) = corner.add_nodes(1)
    never = {"metadata": {"name": "never", "uid": "00000000-0000-0000-0000-000000000000"}}
    corner.api.create(corner.request(never, node, owned=False))
    corner.pod_with_request("earlier", node, owned=False, podUID="00000000-0000-0000-0000-000000000001")
    corner.api.create(corner.request(never | {"metadata": {"name": "there", "uid": ""}}, node, owned=False, podUID=""))
    corner.api.create(corner.pod("there", schedulerName="nobody", nodeName=node))
    with corner.binder():
        reasons = {name: corner.wait_for_end(name, "Failed")["status"]["reason"] for name in ("never", "earlier")}
    assert reasons == {"never": "the pod is gone", "earlier": "the pod is gone; another pod has its name"}
    corner.api.patch("BindRequest", "there", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
    settings = corner.folder / "stale.yaml"
    settings.write_text(f"{SETTINGS}staleRequestSeconds: 1\n")
    by_requests = corner.run_scheduler_with_requests if engine == "pods" else corner.run_batch_with_requests
    given = {"settings": settings.read_text()} if engine == "gangs" else {}
    flags = [f"--settings={settings}"] if engine == "pods" else []
    with by_requests(*flags, **given):
        wait_until(lambda: set(requests(corner)) == {"there"}, "requests without a pod go")
        corner.api.delete("Pod", "there")
        wait_until(lambda: not requests(corner), "so does the one whose pod has gone")
