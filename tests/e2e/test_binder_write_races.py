"""Engines that are killed between two writes, and concurrent writers: the crash points of the engines."""

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
            await ctx.clock.sleep(READ_AGAIN_AFTER_S)  # afterwards the binder must not use its cache
'''


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    (tmp_path / "plugins").mkdir(mode=0o755)
    yield mine
    mine.close()


def plugin(harness: BinderHarness, text: str) -> str:
    folder = harness.folder / "plugins"
    (folder / "racing.py").write_text(text)
    return f"--plugins-dir={folder}"


def stopping(harness: BinderHarness) -> tuple[str, str]:
    return plugin(harness, STOPPING), harness.long_timeout_settings


def scheduled(harness: BinderHarness) -> list[str]:
    return [each["note"] for each in harness.api.list("Event") if each["reason"] == "Scheduled"]


def requests(harness: BinderHarness) -> dict[str, Tree]:
    return {each["spec"]["podName"]: each for each in harness.api.list("BindRequest")}


def killed(process: Popen[bytes], harness: BinderHarness) -> None:
    assert process.wait(60) == -signal.SIGKILL, harness.log()


def test_a_scheduler_dies_after_two_of_four_requests_of_a_gang(harness: BinderHarness) -> None:
    """Existing requests count; the next scheduler creates the missing ones, and none twice."""
    harness.add_nodes(2)
    names = harness.gang("ring", 4)
    one_by_one = f"{SETTINGS}writesAtOnce: 1\n"
    with crash_at("requested:2"), harness.run_batch_with_requests(settings=one_by_one) as dying:
        killed(dying, harness)
    first = requests(harness)
    assert len(first) == 2
    with harness.run_batch_with_requests(), harness.binder():
        harness.wait_bound(names)
        for name in names:
            harness.wait_for_end(name, "Succeeded")
    found = requests(harness)
    assert set(found) == set(names)
    for name, request in first.items():
        assert found[name]["metadata"]["uid"] == request["metadata"]["uid"]
        assert node_name(harness.api.pod(name)) == request["spec"]["selectedNode"]
    harness.check_invariants()


def test_a_scheduler_dies_after_evictions_before_the_request(harness: BinderHarness) -> None:
    """The victims are deleted and the pod is pending: the next scheduler places it, without further evictions."""
    (node,) = harness.add_nodes(1, cpu="4")
    high = harness.priority("high", 1000)
    weak = [f"weak-{number}" for number in range(4)]
    with harness.run_scheduler_with_requests(), harness.binder():
        harness.api.create(*(harness.pod(name, cpu="1") for name in weak))
        harness.wait_bound()
    for name in weak:  # victims stay until the scheduler is dead, or it might place the pod before
        harness.api.patch("Pod", name, {"metadata": {"finalizers": ["example.com/stays"]}})
    harness.api.create(harness.pod("strong", cpu="2", priorityClassName=high))
    with crash_at("evicted"), harness.run_scheduler_with_requests() as dying:
        killed(dying, harness)
    for name in weak:
        harness.api.patch("Pod", name, {"metadata": {"finalizers": None}})
    wait_until(lambda: len(harness.api.pods()) == 3, "the victims are gone", why=lambda: str(list(harness.api.pods())))
    assert "strong" not in requests(harness)
    assert node_name(harness.api.pod("strong")) == ""
    with harness.run_scheduler_with_requests() as scheduler, harness.binder():
        harness.check_settled(scheduler)
    assert node_name(harness.api.pod("strong")) == node
    assert len(harness.api.pods()) == 3
    harness.check_invariants()


def test_sessions_die_after_evictions_before_the_requests(harness: BinderHarness) -> None:
    """The same for the batch engine: the freed room goes to the gang for which it was freed."""
    (node,) = harness.add_nodes(1, cpu="4")
    high = harness.priority("high", 1000)
    with harness.run_batch_with_requests(), harness.binder():
        weak = harness.gang("weak", 4, minimum=1)
        harness.wait_bound(weak)
    harness.start(*weak)
    strong = harness.gang("strong", 2, group={"priorityClassName": high}, priorityClassName=high)
    with crash_at("evicted"), harness.run_batch_with_requests() as dying:
        killed(dying, harness)
    for name, pod in harness.api.pods().items():  # the kubelet's part, which the killed fake kubelet leaves undone
        if pod["metadata"].get("deletionTimestamp"):
            harness.api.delete_all("Pod", [name])
    assert not any(name in requests(harness) for name in strong)
    with harness.run_batch_with_requests(), harness.binder():
        harness.wait_bound(strong)
    assert harness.nodes_of(strong) == [node, node]
    assert [name for name in weak if name in harness.api.pods()] != []
    harness.check_invariants()


def elected(harness: BinderHarness, profiles: str) -> str:
    lease = (
        "leaderElection: {leaderElect: true, leaseDuration: 9s, renewDeadline: 6s, retryPeriod: 500ms, "
        f"resourceNamespace: {harness.namespace}, resourceName: racing}}"
    )
    return SHORT_BACKOFF_CONFIG.replace("leaderElection: {leaderElect: false}", lease).replace("PROFILES", profiles)


def test_a_new_leader_decides_while_the_old_one_writes(harness: BinderHarness) -> None:
    """The old leader is stopped between its decision and its write. When it resumes it must not write any more."""
    harness.add_nodes(1)
    harness.api.create(harness.pod("web"))
    with harness.run_scheduler(*stopping(harness), config=elected(harness, STOPPED), may_end_with=1) as old:
        wait_until(lambda: is_stopped(old), "the old leader stands between decision and write", why=harness.log)
        assert requests(harness) == {}
        with harness.run_scheduler(config=elected(harness, BY_BINDER)), harness.binder():
            harness.wait_bound(["web"])
            harness.wait_for_end("web", "Succeeded")
            harness.api.delete_all("BindRequest", ["web"])  # or the old one's write would only be a conflict
            old.send_signal(signal.SIGCONT)
            assert old.wait(60) == 1
    assert requests(harness) == {}
    harness.check_invariants()


def test_two_schedulers_create_a_request_for_the_same_pod(harness: BinderHarness) -> None:
    """Without leader election: the second scheduler finds the request of the first, and adopts it."""
    harness.add_nodes(1)
    harness.api.create(harness.pod("web"))
    with harness.run_scheduler(*stopping(harness), config=short_backoff_config(STOPPED)) as late:
        wait_until(lambda: is_stopped(late), "one stands between decision and write", why=harness.log)
        with harness.run_scheduler_with_requests():
            wait_until(lambda: "web" in requests(harness), "the other has written")
            written = requests(harness)["web"]["metadata"]["uid"]
            late.send_signal(signal.SIGCONT)
            with harness.binder():
                harness.wait_bound(["web"])
                wait_until(lambda: len(scheduled(harness)) == 2, "both know that the pod has its node")
    assert set(scheduled(harness)) == {f"Successfully assigned {harness.namespace}/web to {harness.nodes[0]}"}
    assert [each["metadata"]["uid"] for each in requests(harness).values()] == [written]
    harness.check_invariants()


def test_a_conflict_of_the_status_is_retried(cluster: Cluster, harness: BinderHarness, tmp_path: Path) -> None:
    harness.add_nodes(1)
    with run_fault_proxy(cluster, tmp_path) as proxy:
        conflict = refusal(409, "Conflict", "the object has been modified")
        fault = proxy.add(
            ProxyFault(
                lambda ask: ask.method == "PATCH" and "/bindrequests/web/status" in ask.path, times=2, refuse=conflict
            )
        )
        with harness.binder(f"--kubeconfig={proxy.kubeconfig()}"):
            wait_until(
                lambda: "the binder is running" in harness.binder_log(), "the binder is running", why=harness.binder_log
            )
            harness.pod_with_request("web", harness.nodes[0])
            request = harness.wait_for_end("web", "Succeeded")
    assert len(fault.seen) == 2
    assert request["status"].get("failedAttempts", 0) == 0
    harness.check_invariants()


def test_a_request_replaced_under_the_binder_gets_a_status_of_its_own(harness: BinderHarness) -> None:
    """A status for the first request is refused by its uid for the second, which cannot be satisfied."""
    here, elsewhere = harness.add_nodes(2)
    harness.pod_with_request("web", here)

    def is_second() -> bool:
        metadata = harness.find("BindRequest", "web").get("metadata", {})
        return "example.com/second" in metadata.get("annotations", {})

    with harness.binder(plugin(harness, REPLACING.replace("ELSEWHERE", elsewhere))):
        wait_until(lambda: is_second() and harness.phase_of("web") != "", "the second has a status")
    request = harness.find("BindRequest", "web")
    assert request["status"]["phase"] == "Failed"
    assert request["status"]["reason"] == f'the pod is bound elsewhere: to node "{here}"'
    assert node_name(harness.api.pod("web")) == here
    harness.expected_annotations = lambda request: {"example.com/second": "yes"}  # noqa: ARG005
    harness.check_invariants()


def test_the_server_ignores_the_uid_of_a_status_write(harness: BinderHarness) -> None:
    """The reason why the binder compares it: API servers ignore it for custom resources, and ours does too."""
    harness.add_nodes(1)
    harness.pod_with_request("web", harness.nodes[0])
    stale_write = {"metadata": {"uid": "of-another"}, "status": {"phase": "Pending"}}
    harness.api.patch("BindRequest", "web", stale_write, sub="status")
    assert harness.phase_of("web") == "Pending"


def test_a_request_deleted_while_its_pod_is_prepared_is_not_carried_out(harness: BinderHarness) -> None:
    """The scheduler notices, places the pod again, and the second request binds the pod."""
    harness.add_nodes(2)
    with (
        harness.run_scheduler_with_requests() as scheduler,
        harness.binder(plugin(harness, DELETING.replace("A_POINT", "pre_bind"))),
    ):
        harness.api.create(harness.pod("web"))
        harness.wait_bound(["web"])  # a missing request is noticed after up to half a minute
        harness.check_settled(scheduler)
        assert set(requests(harness)) == {"web"}, harness.binder_log()
        harness.wait_for_end("web", "Succeeded")
    harness.check_invariants()


def test_a_request_deleted_after_the_binding_is_not_recreated(harness: BinderHarness) -> None:
    harness.add_nodes(2)
    with (
        harness.run_scheduler_with_requests() as scheduler,
        harness.binder(plugin(harness, DELETING.replace("A_POINT", "post_bind"))),
    ):
        harness.api.create(harness.pod("web"))
        wait_until(lambda: any("is bound to node" in each for each in harness.event_notes("web")), "all of it is done")
        harness.check_settled(scheduler)
    assert requests(harness) == {}
    assert node_name(harness.api.pod("web")) in harness.nodes
    harness.check_invariants()


def test_requests_without_a_binder_are_reported_and_recreated(harness: BinderHarness) -> None:
    assert ADVICE in " ".join(forgotten(harness))


def test_a_stale_request_is_recreated_although_it_was_edited(harness: BinderHarness) -> None:
    assert ADVICE in " ".join(forgotten(harness, edited=True))


ADVICE = "see whether `bayplan binder` runs, and what it waits for"


def forgotten(harness: BinderHarness, *, edited: bool = False) -> list[str]:
    """The pod's condition for a request that no binder handles, until there is a new request and a binder."""
    harness.add_nodes(1)
    settings = harness.folder / "stale.yaml"
    settings.write_text(f"{SETTINGS}staleRequestSeconds: 1\n".replace("bindRequests: true\n", ""))
    with harness.run_scheduler_with_requests(f"--settings={settings}"):
        harness.api.create(harness.pod("web"))
        wait_until(lambda: "web" in requests(harness), "the request is made")
        first = requests(harness)["web"]["metadata"]["uid"]
        if edited:
            harness.api.patch("BindRequest", "web", {"metadata": {"annotations": {"example.com/seen": "yes"}}})
        wait_until(
            lambda: any("no binder has updated" in each for each in harness.event_notes("web")),
            "the stale request is reported",
        )
        wait_until(
            lambda: requests(harness).get("web", {}).get("metadata", {}).get("uid", first) != first,
            "another request is made in the place of the forgotten one",
        )
        with harness.binder():
            harness.wait_bound(["web"])
    harness.check_invariants()
    return harness.event_notes("web")


@pytest.mark.parametrize("engine", ["pods", "gangs"])
def test_failed_requests_without_pods_are_deleted(harness: BinderHarness, engine: str) -> None:
    """They have no owner, so no controller deletes them, and no engine waits for such a pod."""
    (node,) = harness.add_nodes(1)
    never = {"metadata": {"name": "never", "uid": "00000000-0000-0000-0000-000000000000"}}
    harness.api.create(harness.request(never, node, owned=False))
    harness.pod_with_request("earlier", node, owned=False, podUID="00000000-0000-0000-0000-000000000001")
    harness.api.create(
        harness.request(never | {"metadata": {"name": "there", "uid": ""}}, node, owned=False, podUID="")
    )
    harness.api.create(harness.pod("there", schedulerName="other-scheduler", nodeName=node))
    with harness.binder():
        reasons = {name: harness.wait_for_end(name, "Failed")["status"]["reason"] for name in ("never", "earlier")}
    assert reasons == {"never": "the pod is gone", "earlier": "the pod is gone; another pod has its name"}
    harness.api.patch("BindRequest", "there", {"status": {"phase": "Failed", "failedAttempts": 3}}, sub="status")
    settings = harness.folder / "stale.yaml"
    settings.write_text(f"{SETTINGS}staleRequestSeconds: 1\n")
    by_requests = harness.run_scheduler_with_requests if engine == "pods" else harness.run_batch_with_requests
    given = {"settings": settings.read_text()} if engine == "gangs" else {}
    flags = [f"--settings={settings}"] if engine == "pods" else []
    with by_requests(*flags, **given):
        wait_until(lambda: set(requests(harness)) == {"there"}, "requests without a pod go")
        harness.api.delete("Pod", "there")
        wait_until(lambda: not requests(harness), "so does the one whose pod has gone")
