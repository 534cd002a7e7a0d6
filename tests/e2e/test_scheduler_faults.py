"""Faults of the API server, the network and the process: every pod is bound once or has a reason, no node is
overcommitted.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.telemetry.watchdog import EXIT_LOOP_BLOCKED
from cluster.run import Cluster
from support.e2e.scheduler_harness import SchedulerHarness, plugin_folder, short_backoff_config
from support.e2e.scheduler_process import condition, node_name, wait_until
from support.fakes.fault_proxy import ProxiedRequest, ProxyFault, refusal, run_fault_proxy
from support.harness.deadlines import DEADLINE_S

SHIFTED = Path(__file__).parents[1] / "support" / "fakes" / "shifted_clock.py"


def is_binding(ask: ProxiedRequest) -> bool:
    return ask.is_binding


def is_watch(ask: ProxiedRequest) -> bool:
    return ask.is_watch


def names(
    harness: SchedulerHarness, prefix: str, count: int, cpu: str = "100m", asks: dict[str, str] | None = None
) -> list[str]:
    """Create pods; return their names."""
    made = [f"{prefix}-{number}" for number in range(count)]
    harness.api.create(*(harness.pod(name, cpu=cpu, asks=asks) for name in made))
    return made


def test_the_api_server_stops_and_starts(cluster: Cluster, harness: SchedulerHarness) -> None:
    harness.add_nodes(4)
    with harness.run_scheduler() as process:
        names(harness, "early", 4)
        harness.wait_bound()
        names(harness, "middle", 40)
        cluster.end("kube-apiserver", kill=True)  # some are bound, some in their binding cycle, some pending
        cluster.start_api_server()
        names(harness, "late", 20)
        assert len(harness.check_settled(process)) == 64


def test_history_is_compacted_while_no_watch_is_open(
    cluster: Cluster, harness: SchedulerHarness, tmp_path: Path
) -> None:
    first, *_ = harness.add_nodes(4)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        names(harness, "early", 8, cpu="1")
        harness.wait_bound()
        blind = proxy.add(ProxyFault(lambda _: True, refuse=refusal(503, "ServiceUnavailable")))
        proxy.cut(is_watch)
        harness.api.delete("Pod", "early-0", "early-1")
        harness.api.delete("Node", first)
        names(harness, "late", 4, cpu="1")
        cluster.compact()
        cluster.end("kube-apiserver", kill=True)
        cluster.start_api_server()
        proxy.remove(blind)
        harness.check_settled(process)
        assert "too old" in harness.log()


def test_watches_are_cut_again_and_again(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path) -> None:
    harness.add_nodes(5)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        names(harness, "early", 2)
        harness.wait_bound()
        cut = 0
        for turn in range(6):
            names(harness, f"turn-{turn}", 15)
            cut += proxy.cut(is_watch)
            harness.api.delete("Pod", f"turn-{turn}-0")
        assert cut >= 6
        harness.check_settled(process)


SILENT_S = 30.0
"""Time within which a silent watch must be noticed."""

ALLOWANCE_S = 10.0
"""Additional time for the scheduling, on a shared machine."""


@pytest.mark.parametrize(
    "hits",
    [
        pytest.param(lambda ask: ask is not None and ask.is_watch, id="watches"),
        pytest.param(lambda _: True, id="all-connections"),
    ],
)
def test_connections_are_blackholed(
    cluster: Cluster, harness: SchedulerHarness, tmp_path: Path, hits: Callable[[ProxiedRequest | None], bool]
) -> None:
    """They stay open, the proxy acknowledges all data, and delivers nothing. New connections work."""
    harness.add_nodes(3)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        names(harness, "early", 3)
        harness.wait_bound()
        for turn in range(2):
            assert proxy.blackhole(hits) >= 5
            assert proxy.blackholed_watches() >= 5
            began_s = time.monotonic()
            harness.wait_bound(names(harness, f"late-{turn}", 3), within_s=SILENT_S + ALLOWANCE_S)
            wait_until(lambda: not proxy.blackholed_watches(), "every dead watch is given up", within_s=ALLOWANCE_S)
            assert time.monotonic() - began_s <= SILENT_S + ALLOWANCE_S
        assert "relisting" not in harness.log()
        harness.check_settled(process)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(refusal(409, "Conflict", "not now"), "not now", id="409"),
        pytest.param(refusal(429, "TooManyRequests", "slow down", Retry_After="1"), "", id="429-later"),
        pytest.param(refusal(429, "TooManyRequests", "slow down"), "slow down", id="429"),
        pytest.param(refusal(500, "InternalError", "oops"), "", id="500"),
    ],
)
def test_bindings_are_refused(
    cluster: Cluster, harness: SchedulerHarness, tmp_path: Path, answer: bytes, text: str
) -> None:
    """A refused binding fails the attempt. One with an unknown outcome after a 5xx is sent again."""
    harness.add_nodes(2)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        refused = proxy.add(ProxyFault(is_binding, times=5, refuse=answer))
        names(harness, "pod", 10)
        harness.check_settled(process)
        assert len(refused.seen) == 5
        notes = [each["note"] for each in harness.api.list("Event") if each["reason"] == "FailedScheduling"]
        assert set(notes) == ({f'running Bind plugin "DefaultBinder": {text}'} if text else set())


def test_requests_hang(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path) -> None:
    """Some requests do not reach the server, some responses are lost; other pods are not delayed, and all pods get
    nodes.
    """
    harness.add_nodes(2)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        before = proxy.add(ProxyFault(is_binding, times=3, hold=True))
        hung = names(harness, "hung", 3)
        wait_until(lambda: len(before.seen) == 3, "three bindings hang")
        after = proxy.add(ProxyFault(is_binding, times=3, hold=True, after=True))
        mute = names(harness, "mute", 3)
        wait_until(lambda: len(after.seen) == 3, "three answers hang")
        lost = proxy.add(ProxyFault(is_binding, times=3, drop_answer=True))
        cut = names(harness, "cut", 3)
        others = names(harness, "other", 5)
        harness.wait_bound([*mute, *cut, *others])
        assert len(lost.seen) == 3
        assert not any(node_name(harness.api.pod(name)) for name in hung)
        proxy.cut(is_binding)
        harness.check_settled(process)


def test_a_pod_is_deleted_between_decision_and_binding(
    cluster: Cluster, harness: SchedulerHarness, tmp_path: Path
) -> None:
    harness.add_nodes(1, cpu="1")
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        held = proxy.add(ProxyFault(is_binding, times=1, hold=True))
        names(harness, "first", 1, cpu="1")
        wait_until(lambda: len(held.seen) == 1, "a binding is on its way")
        names(harness, "second", 1, cpu="1")
        wait_until(lambda: bool(condition(harness.api.pod("second-0"))), "the second pod finds no room")
        harness.api.delete("Pod", "first-0")
        harness.wait_bound(["second-0"])
        proxy.remove(held)
        assert harness.check_settled(process) == {"second-0": harness.nodes[0]}


def test_a_node_is_deleted_during_bindings_to_it(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path) -> None:
    (first,) = harness.add_nodes(1)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()) as process:
        held = proxy.add(ProxyFault(is_binding, hold=True))
        names(harness, "pod", 10)
        wait_until(lambda: len(held.seen) == 10, "ten bindings are on their way")
        harness.api.delete("Node", first)
        (second,) = harness.add_nodes(1)
        wait_until(
            lambda: first not in harness.dump_comparison(process)["nodes"], "the process knows that the node is gone"
        )
        proxy.remove(held)
        settled = harness.check_settled(process)
        assert len(settled) == 10
        assert set(settled.values()) <= {first, second}


def test_a_process_is_killed_during_bindings(harness: SchedulerHarness) -> None:
    room = {"memory": "34Gi", "ephemeral-storage": "68Gi", "example.com/card": "34"}
    asks = {"memory": "1Gi", "ephemeral-storage": "2Gi", "example.com/card": "1"}
    # 34 a node: twenty to spare, so a scheduler that forgets a binding soon overcommits one
    harness.add_nodes(30, room=room)
    made = names(harness, "pod", 1000, asks=asks)
    with harness.run_scheduler() as first:
        wait_until(lambda: sum(map(bool, map(node_name, harness.api.pods().values()))) > 30, "some are bound")
        first.kill()
        first.wait()
    left = [name for name, each in harness.api.pods().items() if not node_name(each)]
    assert left, "it was killed too late to show anything"
    with harness.run_scheduler() as second:
        harness.check_settled(second)
    assert len(harness.api.pods()) == len(made)


HOLDS = """
from bayplan.framework import PermitWait

class Holds:
    name = "Holds"
    events_to_register = ()

    def permit(self, cycle, node_name):
        return PermitWait(600) if cycle.pod.labels.get("held") else None
"""


def test_a_process_is_terminated_during_bindings(cluster: Cluster, harness: SchedulerHarness, tmp_path: Path) -> None:
    """Requests in flight complete, pods at Permit are rejected, nothing is started, and the lease is released."""
    (only,) = harness.add_nodes(1)
    settings = own_settings(tmp_path, f"stopSeconds: {DEADLINE_S:.0f}")
    flags = ("--plugins-dir", str(plugin_folder(tmp_path, "holds", HOLDS)), "--settings", str(settings))
    config = elected(harness, "profiles: [{plugins: {multiPoint: {enabled: [{name: Holds}]}}}]")
    with (
        run_fault_proxy(cluster, tmp_path) as proxy,
        harness.run_scheduler(*flags, config=config, kubeconfig=proxy.kubeconfig(), may_end_with=0) as process,
    ):
        harness.api.create(harness.pod("held", labels={"held": "yes"}))
        wait_until(lambda: harness.api.pod("held")["status"].get("nominatedNodeName") == only, "a pod waits at Permit")
        on_the_wire = proxy.add(ProxyFault(is_binding, hold=True))
        bound = names(harness, "pod", 3)
        wait_until(lambda: len(on_the_wire.seen) == 3, "three bindings are on their way")
        process.send_signal(signal.SIGTERM)
        undone = "waiting on permit for pod: the scheduler stops"
        wait_until(
            lambda: condition(harness.api.pod("held")).get("message") == undone, "the pod at Permit has the reason"
        )
        harness.api.create(harness.pod("late"))
        assert process.poll() is None, "it waits for what is on the wire"
        assert lease(harness)["holderIdentity"], "and leads until then"
        proxy.remove(on_the_wire)
        assert process.wait(DEADLINE_S) == 0, harness.log()[-4000:]
    assert not lease(harness).get("holderIdentity")
    assert {name: node_name(each) for name, each in harness.api.pods().items()} == {
        **dict.fromkeys(bound, only),
        "held": "",
        "late": "",
    }
    with_event = {each["regarding"]["name"] for each in harness.api.list("Event") if each["reason"] == "Scheduled"}
    assert with_event == set(bound), "what was said is stored before it ends"
    with harness.run_scheduler() as second:
        assert harness.check_settled(second) == dict.fromkeys([*bound, "held", "late"], only)


def own_settings(folder: Path, setting: str) -> Path:
    """A plugin folder with one plugin of the test."""
    path = folder / "settings.yaml"
    path.write_text(f"apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n{setting}\n")
    return path


STUCK = """
import time

class Stuck:
    name = "Stuck"
    events_to_register = ()

    def filter(self, cycle, node):
        while cycle.pod.labels.get("stuck"):
            time.sleep(0.1)
"""


def test_a_plugin_that_never_returns_is_named_and_the_process_ends(harness: SchedulerHarness, tmp_path: Path) -> None:
    """The process exits, so that a restarted process or another leader continues."""
    harness.add_nodes(2)
    settings = own_settings(tmp_path, "watchdogSeconds: 10")
    flags = ("--plugins-dir", str(plugin_folder(tmp_path, "stuck", STUCK)), "--settings", str(settings))
    config = short_backoff_config("profiles: [{plugins: {multiPoint: {enabled: [{name: Stuck}]}}}]")
    with harness.run_scheduler(*flags, config=config, may_end_with=EXIT_LOOP_BLOCKED) as process:
        early = names(harness, "early", 3)
        harness.wait_bound()
        harness.api.create(harness.pod("stuck", labels={"stuck": "yes"}))
        assert process.wait(DEADLINE_S) == EXIT_LOOP_BLOCKED, harness.log()[-4000:]
    assert "plugin Stuck at filter has blocked the event loop for 10 s" in harness.log()
    late = names(harness, "late", 3)
    with harness.run_scheduler() as process:
        assert harness.check_settled(process).keys() == {*early, "stuck", *late}


def elected(harness: SchedulerHarness, profiles: str = "") -> str:
    """A configuration with a lease for the test, longer than a stall of the machine."""
    unhurried = f"leaseDuration: {DEADLINE_S:.0f}s, renewDeadline: {DEADLINE_S / 2:.0f}s"
    return short_backoff_config(profiles).replace(
        "leaderElect: false", f"resourceNamespace: {harness.namespace}, {unhurried}"
    )


@pytest.mark.parametrize("hours", [26, -26])
def test_the_wall_clock_jumps(harness: SchedulerHarness, tmp_path: Path, hours: int) -> None:
    """No wait depends on the wall clock: neither the lease, nor backoff, nor the order of pods."""
    shift = tmp_path / "shift"
    shift.write_text("0")
    harness.add_nodes(2, cpu="2")
    with harness.run_scheduler(config=elected(harness), program=(str(SHIFTED), str(shift))) as process:
        names(harness, "early", 4)
        names(harness, "large", 1, cpu="3")
        wait_until(lambda: bool(condition(harness.api.pod("large-0"))), "the large pod finds no room")
        holder = lease(harness)["holderIdentity"]
        shift.write_text(str(hours * 3600))
        names(harness, "late", 10)
        wait_until(lambda: abs(renewed(harness) - datetime.now(UTC)) > timedelta(hours=25), "the lease is renewed")
        harness.check_settled(process, waiting=["large-0"])
        harness.add_nodes(1)
        harness.check_settled(process)
        assert lease(harness)["holderIdentity"] == holder
        assert lease(harness)["leaseTransitions"] == 0


def lease(harness: SchedulerHarness) -> dict[str, Any]:
    found: dict[str, Any] = harness.api.get("Lease", "kube-scheduler")["spec"]
    return found


def renewed(harness: SchedulerHarness) -> datetime:
    return datetime.fromisoformat(lease(harness)["renewTime"])


def test_a_pod_with_a_huge_spec_does_not_delay_other_pods(harness: SchedulerHarness) -> None:
    harness.add_nodes(50, labels={"zone": "a"})
    term = {"topologyKey": "zone"}
    terms = [{**term, "labelSelector": {"matchLabels": {"app": f"app-{number}"}}} for number in range(1000)]
    values = [f"value-{number}" for number in range(10_000)]
    wanted = {"matchExpressions": [{"key": "never", "operator": "In", "values": values}]}
    affinity = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}},
    }
    with harness.run_scheduler() as process:
        names(harness, "warm", 5)
        harness.wait_bound()
        waits = []
        for number in range(5):
            used_s = processor_s(process.pid)
            harness.api.create(harness.pod(f"monster-{number}", affinity=affinity))
            began_s = time.monotonic()
            others = [harness.pod(f"small-{number}-{each}", labels={"app": f"app-{each}"}) for each in range(4)]
            harness.api.create(*others)
            harness.wait_bound(each["metadata"]["name"] for each in others)
            # One loop decides about all pods, so no pod waits longer than that loop works, in processor time, from the
            # creation of the large pod until the other pods have nodes. That includes their own share. On a busy
            # machine more wall-clock time may pass, for other reasons.
            waits.append(min(time.monotonic() - began_s, processor_s(process.pid) - used_s))
        assert max(waits) < 1.0, waits
        harness.check_settled(process, waiting=[f"monster-{number}" for number in range(5)])


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
