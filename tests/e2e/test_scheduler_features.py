"""Features of a scheduler on a real API server: plugins, gates, hints, preemption, volumes, devices, resize, load."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.api import Tree
from cluster.embedded import Embedded
from support.e2e.scheduler_harness import SchedulerHarness, plugin_folder, short_backoff_config
from support.e2e.scheduler_process import condition, node_name, wait_until
from support.e2e.volumes_and_devices import (
    bind_claim,
    claim,
    device_claim,
    devices,
    pod_with_claim,
    volume,
    wait_for_first_consumer_class,
)
from support.harness.deadlines import DEADLINE_S

SPY = '''
"""Writes down every point at which it is asked, and for whom."""

from bayplan.framework import SKIP, PreBindPreFlightResult, PermitWait, unschedulable


class Spy:
    name = "Spy"
    events_to_register = ()

    def __init__(self, handle):
        self._handle = handle
        self._asked = {}

    @classmethod
    def factory(cls, args, handle):
        return cls(handle)

    def _note(self, point, pod, once=True):
        if once and self._asked.get(pod.name) == point:
            return
        self._asked[pod.name] = point
        with open("LOG", "a") as log:
            log.write(f"{pod.name} {point}\\n")

    def pre_enqueue(self, pod):
        self._note("pre_enqueue", pod)

    def less(self, first, second):
        return first.timestamp < second.timestamp

    def pre_filter(self, cycle):
        self._note("pre_filter", cycle.pod, once=False)

    def filter(self, cycle, node):
        self._note("filter", cycle.pod)

    def post_filter(self, cycle, diagnosis):
        self._note("post_filter", cycle.pod)
        return unschedulable("spied")

    def pre_score(self, cycle, nodes):
        self._note("pre_score", cycle.pod)

    def score(self, cycle, node):
        self._note("score", cycle.pod)
        return 7

    def normalize(self, cycle, nodes, scores):
        self._note("normalize", cycle.pod)
        return scores

    def reserve(self, cycle, node_name):
        self._note("reserve", cycle.pod)

    def unreserve(self, cycle, node_name):
        self._note("unreserve", cycle.pod)

    def permit(self, cycle, node_name):
        self._note("permit", cycle.pod)
        return PermitWait(60) if cycle.pod.labels.get("held") else None

    def pre_bind_preflight(self, cycle, node_name):
        self._note("preflight", cycle.pod)
        for waiting in self._handle.waiting_pods.all():
            if not cycle.pod.labels.get("held"):
                waiting.allow(self.name)
        return PreBindPreFlightResult()

    async def pre_bind(self, cycle, node_name):
        self._note("pre_bind", cycle.pod)

    async def bind(self, cycle, node_name):
        self._note("bind", cycle.pod)
        return SKIP

    async def post_bind(self, cycle, node_name):
        self._note("post_bind", cycle.pod)
'''

SPIED = """
profiles:
- plugins:
    multiPoint: {enabled: [{name: Spy}]}
    queueSort: {disabled: [{name: "*"}], enabled: [{name: Spy}]}
    bind: {disabled: [{name: "*"}], enabled: [{name: Spy}, {name: DefaultBinder}]}
"""


class Spied:
    """A folder with the plugin, and the file of its recorded calls."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "points.log"
        self.log.touch()
        self.folder = plugin_folder(folder, "spy", SPY.replace("LOG", str(self.log)))

    def points(self, pod: str) -> list[str]:
        lines = [each.split() for each in self.log.read_text().splitlines()]
        return [point for name, point in lines if name == pod]

    def attempts(self, pod: str) -> int:
        return self.points(pod).count("pre_filter")


def test_a_custom_plugin_at_every_extension_point_in_order(harness: SchedulerHarness, tmp_path: Path) -> None:
    harness.add_nodes(2)
    spied = Spied(tmp_path)
    with harness.run_scheduler("--plugins-dir", str(spied.folder), config=short_backoff_config(SPIED)) as process:
        harness.api.create(harness.pod("held", labels={"held": "yes"}))
        wait_until(lambda: spied.points("held")[-1:] == ["preflight"], "a pod waits at Permit")
        harness.api.create(harness.pod("large", cpu="100"))
        wait_until(lambda: bool(condition(harness.api.pod("large"))), "a pod fits nowhere")
        harness.api.create(harness.pod("small"))
        harness.check_settled(process, waiting=["large"])
    cycle = "pre_enqueue pre_filter filter pre_score score normalize reserve permit preflight pre_bind bind post_bind"
    assert spied.points("small") == cycle.split()
    assert spied.points("held") == cycle.split()
    # The plugin's filter runs last, and no node is left by then.
    assert spied.points("large") == ["pre_enqueue", "pre_filter", "post_filter"]
    assert "spied" in condition(harness.api.pod("large"))["message"]


BREAKS = '''
"""Breaks at the point that a pod's label names."""

from bayplan.framework import SKIP, ActionType, ClusterEventWithHint, EventResource, PreBindPreFlightResult


class Breaks:
    name = "Breaks"
    events_to_register = (ClusterEventWithHint(EventResource.POD, ActionType.UPDATE_POD_LABEL),)

    def _at(self, point, pod):
        if pod.labels.get("breaks") == point:
            raise RuntimeError(f"broken at {point}")

    def pre_enqueue(self, pod):
        self._at("pre_enqueue", pod)

    def pre_filter(self, cycle):
        self._at("pre_filter", cycle.pod)

    def filter(self, cycle, node):
        self._at("filter", cycle.pod)

    def pre_score(self, cycle, nodes):
        self._at("pre_score", cycle.pod)

    def score(self, cycle, node):
        self._at("score", cycle.pod)
        return 7

    def normalize(self, cycle, nodes, scores):
        self._at("normalize", cycle.pod)
        return scores

    def reserve(self, cycle, node_name):
        self._at("reserve", cycle.pod)

    def unreserve(self, cycle, node_name):
        pass

    def permit(self, cycle, node_name):
        self._at("permit", cycle.pod)

    def pre_bind_preflight(self, cycle, node_name):
        self._at("pre_bind_preflight", cycle.pod)
        return PreBindPreFlightResult()

    async def pre_bind(self, cycle, node_name):
        self._at("pre_bind", cycle.pod)

    async def bind(self, cycle, node_name):
        self._at("bind", cycle.pod)
        return SKIP
'''
BREAKABLE = "pre_enqueue pre_filter filter pre_score score normalize reserve permit pre_bind_preflight pre_bind bind"
BREAKING = """
profiles:
- plugins:
    multiPoint: {enabled: [{name: Breaks}]}
    bind: {disabled: [{name: "*"}], enabled: [{name: Breaks}, {name: DefaultBinder}]}
"""


def test_a_failing_plugin_is_named_on_the_pod_at_every_extension_point(
    harness: SchedulerHarness, tmp_path: Path
) -> None:
    """Other pods are placed meanwhile, and so is the pod when the plugin stops failing.

    A failing gate is reported once.
    """
    names = {point: point.replace("_", "-") for point in BREAKABLE.split()}
    harness.add_nodes(2)
    folder = plugin_folder(tmp_path, "breaks", BREAKS)
    with harness.run_scheduler("--plugins-dir", str(folder), config=short_backoff_config(BREAKING)) as process:
        harness.api.create(*(harness.pod(name, labels={"breaks": point}) for point, name in names.items()))
        harness.api.create(harness.pod("other"))
        harness.wait_bound(["other"])
        for point, name in names.items():
            wait_until(lambda name=name: bool(condition(harness.api.pod(name))), f"{point} has a condition")  # type: ignore[misc]
            scheduled = condition(harness.api.pod(name))
            assert scheduled["reason"] == "SchedulerError", scheduled
            assert "Breaks" in scheduled["message"], scheduled
            assert f"RuntimeError: broken at {point}" in scheduled["message"], scheduled
            wait_until(lambda name=name: bool(failures(harness, name)), f"an event says that {point} broke")  # type: ignore[misc]
        harness.api.patch("Pod", names["pre_enqueue"], {"metadata": {"labels": {"again": "yes"}}})
        for name in names.values():
            if name != names["pre_enqueue"]:
                harness.api.patch("Pod", name, {"metadata": {"labels": {"breaks": None}}})
        harness.check_settled(process, waiting=[names["pre_enqueue"]])
        (once,) = failures(harness, names["pre_enqueue"])
        assert not once.get("series"), once
        assert once["note"] == condition(harness.api.pod(names["pre_enqueue"]))["message"]
        harness.api.patch("Pod", names["pre_enqueue"], {"metadata": {"labels": {"breaks": None}}})
        harness.check_settled(process)


def failures(harness: SchedulerHarness, pod: str) -> list[Tree]:
    """The FailedScheduling events of a pod."""
    found = [each for each in harness.api.list("Event") if each["reason"] == "FailedScheduling"]
    return [each for each in found if each["regarding"]["name"] == pod]


def test_gated_pods_wait_until_the_last_gate_goes(harness: SchedulerHarness) -> None:
    harness.add_nodes(1)
    with harness.run_scheduler() as process:
        harness.api.create(harness.pod("gated", schedulingGates=[{"name": "a.example/one"}, {"name": "a.example/two"}]))
        harness.api.create(harness.pod("open"))
        harness.wait_bound(["open"])
        harness.api.patch("Pod", "gated", {"spec": {"schedulingGates": [{"name": "a.example/two"}]}})
        harness.api.create(harness.pod("later"))
        harness.wait_bound(["later"])
        scheduled = condition(harness.api.pod("gated"))
        assert scheduled["reason"] == "SchedulingGated"
        assert scheduled["message"] == "Scheduling is blocked due to non-empty scheduling gates"
        harness.api.patch("Pod", "gated", {"spec": {"schedulingGates": None}})
        harness.check_settled(process)


def test_an_unschedulable_pod_is_requeued_only_for_events_that_may_help(
    harness: SchedulerHarness, tmp_path: Path
) -> None:
    first, second = harness.add_nodes(2)
    spied = Spied(tmp_path)
    config = short_backoff_config("profiles: [{plugins: {preFilter: {enabled: [{name: Spy}]}}}]")
    with harness.run_scheduler("--plugins-dir", str(spied.folder), config=config) as process:
        harness.api.create(harness.pod("fast-disk", nodeSelector={"disk": "fast"}), harness.pod("large", cpu="5"))
        harness.api.create(harness.pod("filler", cpu="1"))
        harness.wait_bound(["filler"])
        wait_until(
            lambda: all(condition(harness.api.pod(name)) for name in ("fast-disk", "large")), "two pods are parked"
        )
        # A node grows, but not enough; another gets a label, but not the required one.
        harness.api.patch("Node", second, {"status": {"allocatable": {"cpu": "4500m"}}}, sub="status")
        harness.api.patch("Node", first, {"metadata": {"labels": {"disk": "slow"}}})
        harness.api.create(harness.pod("marker"))
        harness.wait_bound(["marker"])
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (1, 1)
        # A deleted pod requeues only pods that lack room, whatever room it frees.
        harness.api.delete("Pod", "filler")
        wait_until(lambda: spied.attempts("large") == 2, "the pod that lacks room is tried again")
        assert spied.attempts("fast-disk") == 1
        harness.api.patch("Node", first, {"metadata": {"labels": {"disk": "fast"}}})
        harness.wait_bound(["fast-disk"])
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (2, 2)
        harness.api.patch("Node", second, {"status": {"allocatable": {"cpu": "8"}}}, sub="status")
        harness.check_settled(process)
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (2, 3)


def test_preemption_spares_what_a_budget_protects(harness: SchedulerHarness) -> None:
    harness.add_nodes(2, cpu="2")
    high = harness.priority("high", 1000)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    harness.api.create(budget)
    with harness.run_scheduler() as process:
        harness.api.create(
            harness.pod("guarded", cpu="2", labels={"app": "guarded"}),
            harness.pod("plain", cpu="2", labels={"app": "x"}),
        )
        harness.wait_bound()
        free = node_name(harness.api.pod("plain"))
        harness.api.create(harness.pod("strong", cpu="2", priorityClassName=high))
        wait_until(lambda: "plain" not in harness.api.pods(), "the unprotected pod is gone")
        harness.check_settled(process)
        assert node_name(harness.api.pod("strong")) == free
        events = [each for each in harness.api.list("Event") if each["reason"] == "Preempted"]
        (note,) = [each["note"] for each in events]
        assert note == f"Preempted by pod {harness.api.pod('strong')['metadata']['uid']} on node {free}"


def nominated(harness: SchedulerHarness, name: str) -> str:
    return str(harness.api.pod(name)["status"].get("nominatedNodeName", ""))


def test_a_nomination_is_kept_until_a_pod_of_higher_priority_takes_it(harness: SchedulerHarness) -> None:
    (only,) = harness.add_nodes(1, cpu="2")
    high, higher = harness.priority("high", 1000), harness.priority("higher", 2000)
    with harness.run_scheduler() as process:
        harness.api.create(harness.pod("weak", cpu="2", terminationGracePeriodSeconds=3600))
        harness.wait_bound()
        harness.api.create(harness.pod("strong", cpu="2", priorityClassName=high))
        wait_until(lambda: nominated(harness, "strong") == only, "the room is kept for the strong pod")
        wait_until(
            lambda: "deletionTimestamp" in harness.api.pod("weak")["metadata"], "the weak pod has a deletion timestamp"
        )
        assert condition(harness.api.pod("weak"), "DisruptionTarget")["reason"] == "PreemptionByScheduler"
        harness.api.create(harness.pod("other", cpu="1"))  # the room of the nominated pod is not available to it
        wait_until(lambda: bool(condition(harness.api.pod("other"))), "the other pod has a reason")
        assert nominated(harness, "strong") == only
        harness.api.create(harness.pod("strongest", cpu="2", priorityClassName=higher))
        wait_until(lambda: bool(condition(harness.api.pod("strongest"))), "the strongest pod has a reason")
        harness.api.delete("Pod", "weak", now=True)
        harness.wait_bound(["strongest"])
        wait_until(lambda: nominated(harness, "strong") == "", "the strong pod is no longer nominated")
        harness.check_settled(process, waiting=["strong", "other"])
        assert "nominatedNodeName" not in harness.api.pod("strongest")["status"]


# volumes: the test plays the volume controller


def test_a_volume_that_exists_waits_for_its_first_pod(harness: SchedulerHarness) -> None:
    _, second, _ = harness.add_nodes(3)
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    made = volume(harness, "v", second, kind)
    name = made["metadata"]["name"]
    harness.api.create(made, claim("data", kind))
    harness.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with harness.run_scheduler() as process:
        harness.api.create(pod_with_claim(harness, "user", "data"))
        wait_until(lambda: "claimRef" in harness.api.get("PersistentVolume", name)["spec"], "the volume is promised")
        promised = harness.api.get("PersistentVolume", name)
        assert promised["spec"]["claimRef"]["name"] == "data"
        assert promised["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"
        assert nominated(harness, "user") == second
        assert not node_name(harness.api.pod("user"))
        harness.api.create(harness.pod("other"))
        harness.wait_bound(["other"])  # a pod that waits for a volume delays no other pod
        bind_claim(harness, "data", name)
        harness.check_settled(process)
        assert node_name(harness.api.pod("user")) == second
    harness.api.delete("PersistentVolume", name)


def test_a_volume_is_provisioned_where_its_first_pod_goes(harness: SchedulerHarness) -> None:
    harness.add_nodes(2)
    kind = wait_for_first_consumer_class(harness, "made", "example.com/maker")
    wanted = claim("data", kind)
    wanted["metadata"]["annotations"] = {"example.com/note": "x"}
    harness.api.create(wanted)
    selected = "volume.kubernetes.io/selected-node"
    with harness.run_scheduler() as process:
        harness.api.create(pod_with_claim(harness, "user", "data"))

        def chosen() -> str:
            found = harness.api.get("PersistentVolumeClaim", "data")["metadata"].get("annotations", {})
            return str(found.get(selected, ""))

        wait_until(lambda: bool(chosen()), "the claim names a node")
        first = chosen()
        # The provisioner fails: it removes the annotation, and the pod is scheduled again.
        harness.api.patch("PersistentVolumeClaim", "data", {"metadata": {"annotations": {selected: None}}})
        wait_until(
            lambda: "provisioning failed" in condition(harness.api.pod("user")).get("message", ""), "it has a reason"
        )
        wait_until(lambda: bool(chosen()), "the claim names a node again")
        made = volume(harness, "made", chosen(), kind)
        uid = harness.api.get("PersistentVolumeClaim", "data")["metadata"]["uid"]
        reference = {"kind": "PersistentVolumeClaim", "namespace": harness.namespace, "name": "data", "uid": uid}
        made["spec"]["claimRef"] = reference
        harness.api.create(made)
        bind_claim(harness, "data", made["metadata"]["name"])
        harness.check_settled(process)
        assert first in harness.nodes
        assert node_name(harness.api.pod("user")) == chosen()
    harness.api.delete("PersistentVolume", made["metadata"]["name"])


# devices


def test_devices_are_allocated_and_reserved(harness: SchedulerHarness) -> None:
    _, second = harness.add_nodes(2)
    kind = f"{harness.label[:40]}-gpu"
    slice_, device_class = devices(harness, second, kind)
    harness.api.create(slice_, device_class, device_claim("mine", kind), device_claim("yours", kind))

    def user(name: str) -> Tree:
        found = harness.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
        found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        return found

    with harness.run_scheduler() as process:
        harness.api.create(user("mine"))
        harness.wait_bound(["mine"])
        assert node_name(harness.api.pod("mine")) == second
        status = harness.api.get("ResourceClaim", "mine")["status"]
        (result,) = status["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", second, "gpu-0")
        assert [each["name"] for each in status["reservedFor"]] == ["mine"]
        kept = harness.api.get("ResourceClaim", "mine")["metadata"]["finalizers"]
        assert kept == ["resource.kubernetes.io/delete-protection"]
        harness.api.create(user("yours"))
        rejection = "cannot allocate all claims"
        wait_until(
            lambda: rejection in condition(harness.api.pod("yours")).get("message", ""), "there is no second device"
        )
        # The driver publishes one more device.
        slice_["spec"]["devices"].append({"name": "gpu-1"})
        more: dict[str, Any] = {"spec": {"devices": slice_["spec"]["devices"], "pool": {"generation": 2}}}
        harness.api.patch("ResourceSlice", slice_["metadata"]["name"], more)
        harness.check_settled(process)
        (result,) = harness.api.get("ResourceClaim", "yours")["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "gpu-1"
    harness.api.delete("ResourceSlice", slice_["metadata"]["name"])
    harness.api.delete("DeviceClass", kind)


def test_an_in_place_resize_frees_room(harness: SchedulerHarness) -> None:
    harness.add_nodes(1, cpu="4")
    with harness.run_scheduler() as process:
        harness.api.create(harness.pod("wide", cpu="3"))
        harness.wait_bound()
        harness.api.create(harness.pod("next", cpu="2"))
        wait_until(lambda: bool(condition(harness.api.pod("next"))), "there is no room")
        smaller = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
        harness.api.patch("Pod", "wide", smaller, sub="resize", strategic=True)
        assert harness.check_settled(process) == dict.fromkeys(("wide", "next"), harness.nodes[0])


# load


VOLUMES = 16
HAVE_DEVICES = range(0, 10_000, 320)
"""The pods that use a device: each has its own claim, and writes it."""


def mixed(harness: SchedulerHarness, number: int, strong: str) -> Tree:
    """Pods of many kinds, all of which fit. `strong`: a priority class."""
    name, zone = f"pod-{number}", f"zone-{number % 3}"
    labels = {"app": f"app-{number % 40}", "turn": str(number % 7)}
    selector = {"labelSelector": {"matchLabels": {"app": labels["app"]}}}
    spec: dict[str, Any] = {}
    match number % 8:
        case 0 if number in HAVE_DEVICES:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"device-{number}"}]
        case 0 if number % 24 == 0:
            claimed = {"claimName": f"data-{number // 24 % VOLUMES}"}
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claimed}]
        case 0 if number % 16 == 0:
            spec["priorityClassName"] = strong
        case 1:
            spec["nodeSelector"] = {"zone": zone}
        case 2:
            spread = {"maxSkew": 5, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **selector}
            spec["topologySpreadConstraints"] = [spread]
        case 3:
            term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"only": name}}}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        case 4:
            term = {"weight": 10, "podAffinityTerm": {"topologyKey": "zone", **selector}}
            spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
        case 5:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
            spec["nodeSelector"] = {"dedicated": "yes"}
        case 6:
            spec["schedulingGates"] = [{"name": "example.com/later"}]
        case 7:
            spec["topologySpreadConstraints"] = [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", **selector}
            ]
    return harness.pod(name, cpu="10m", labels=labels, **spec)


def test_many_pods_of_many_kinds_are_all_bound(harness: SchedulerHarness) -> None:
    count = 2_000 if isinstance(harness.cluster, Embedded) else 10_000
    nodes = count // 25
    for zone in range(3):
        harness.add_nodes(nodes // 4, labels={"zone": f"zone-{zone}"})
    dedicated = harness.add_nodes(nodes // 4, labels={"zone": "zone-0", "dedicated": "yes"})
    for name in dedicated:
        harness.api.patch("Node", name, {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    kind = wait_for_first_consumer_class(harness, "local", "kubernetes.io/no-provisioner")
    for number, target in enumerate(harness.nodes[:VOLUMES]):
        bound = volume(harness, f"v{number}", target, kind)
        harness.api.create(bound, claim(f"data-{number}", kind))
        bind_claim(harness, f"data-{number}", bound["metadata"]["name"])
    accelerated = f"{harness.label[:40]}-gpu"
    with_devices = [number for number in HAVE_DEVICES if number < count]
    slice_, device_class = devices(harness, harness.nodes[VOLUMES], accelerated, count=len(with_devices))
    claims = [device_claim(f"device-{number}", accelerated) for number in with_devices]
    harness.api.create(slice_, device_class, *claims)
    strong = harness.priority("strong", 1000)
    with harness.run_scheduler() as process:
        made = harness.api.create(*(mixed(harness, number, strong) for number in range(count)))
        gated = [each["metadata"]["name"] for each in made if each["spec"].get("schedulingGates")]
        harness.wait_bound({each["metadata"]["name"] for each in made} - set(gated), within_s=DEADLINE_S + count / 50)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: harness.api.patch("Pod", name, {"spec": {"schedulingGates": None}}), gated))
        began_s = time.monotonic()
        harness.check_settled(process)
        assert time.monotonic() - began_s < 60 + count / 50
        assert harness.dump_comparison(process)["queued"] == {}
        pods = harness.api.pods()
        for number in with_devices:
            (user,) = harness.api.get("ResourceClaim", f"device-{number}")["status"]["reservedFor"]
            assert (user["name"], node_name(pods[user["name"]])) == (f"pod-{number}", harness.nodes[VOLUMES])
        with_data = [number for number in range(0, count, 24) if number not in HAVE_DEVICES]
        for number in with_data:
            assert node_name(pods[f"pod-{number}"]) == harness.nodes[number // 24 % VOLUMES]
    harness.api.delete("ResourceSlice", slice_["metadata"]["name"])
    harness.api.delete("DeviceClass", accelerated)
    for number in range(VOLUMES):
        harness.api.delete("PersistentVolume", f"{harness.label}-v{number}")
