"""What a scheduler is for, on a real API server: plugins, gates, hints, preemption, volumes, devices, resize, many."""

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
    """A folder with the plugin, and what it wrote down."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "points.log"
        self.log.touch()
        self.folder = plugin_folder(folder, "spy", SPY.replace("LOG", str(self.log)))

    def points(self, pod: str) -> list[str]:
        lines = [each.split() for each in self.log.read_text().splitlines()]
        return [point for name, point in lines if name == pod]

    def attempts(self, pod: str) -> int:
        return self.points(pod).count("pre_filter")


def test_a_plugin_of_ones_own_at_every_point_in_order(corner: SchedulerHarness, tmp_path: Path) -> None:
    corner.add_nodes(2)
    spied = Spied(tmp_path)
    with corner.run_scheduler("--plugins-dir", str(spied.folder), config=short_backoff_config(SPIED)) as process:
        corner.api.create(corner.pod("held", labels={"held": "yes"}))
        wait_until(lambda: spied.points("held")[-1:] == ["preflight"], "a pod waits at Permit")
        corner.api.create(corner.pod("large", cpu="100"))
        wait_until(lambda: bool(condition(corner.api.pod("large"))), "a pod fits nowhere")
        corner.api.create(corner.pod("small"))
        corner.check_settled(process, waiting=["large"])
    cycle = "pre_enqueue pre_filter filter pre_score score normalize reserve permit preflight pre_bind bind post_bind"
    assert spied.points("small") == cycle.split()
    assert spied.points("held") == cycle.split()
    # A filter of ours asks last, and nobody is left by then.
    assert spied.points("large") == ["pre_enqueue", "pre_filter", "post_filter"]
    assert "spied" in condition(corner.api.pod("large"))["message"]


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


def test_a_plugin_that_breaks_is_named_on_the_pod_wherever_it_does(corner: SchedulerHarness, tmp_path: Path) -> None:
    """Others are placed meanwhile, and so is the pod when it gives no more cause. A gate that breaks is told once."""
    names = {point: point.replace("_", "-") for point in BREAKABLE.split()}
    corner.add_nodes(2)
    folder = plugin_folder(tmp_path, "breaks", BREAKS)
    with corner.run_scheduler("--plugins-dir", str(folder), config=short_backoff_config(BREAKING)) as process:
        corner.api.create(*(corner.pod(name, labels={"breaks": point}) for point, name in names.items()))
        corner.api.create(corner.pod("other"))
        corner.wait_bound(["other"])
        for point, name in names.items():
            wait_until(lambda name=name: bool(condition(corner.api.pod(name))), f"{point} is told")  # type: ignore[misc]
            told = condition(corner.api.pod(name))
            assert told["reason"] == "SchedulerError", told
            assert "Breaks" in told["message"], told
            assert f"RuntimeError: broken at {point}" in told["message"], told
            wait_until(lambda name=name: bool(failures(corner, name)), f"an event says that {point} broke")  # type: ignore[misc]
        corner.api.patch("Pod", names["pre_enqueue"], {"metadata": {"labels": {"again": "yes"}}})
        for name in names.values():
            if name != names["pre_enqueue"]:
                corner.api.patch("Pod", name, {"metadata": {"labels": {"breaks": None}}})
        corner.check_settled(process, waiting=[names["pre_enqueue"]])
        (once,) = failures(corner, names["pre_enqueue"])
        assert not once.get("series"), once
        assert once["note"] == condition(corner.api.pod(names["pre_enqueue"]))["message"]
        corner.api.patch("Pod", names["pre_enqueue"], {"metadata": {"labels": {"breaks": None}}})
        corner.check_settled(process)


def failures(corner: SchedulerHarness, pod: str) -> list[Tree]:
    """The events that tell a pod why it has no node."""
    found = [each for each in corner.api.list("Event") if each["reason"] == "FailedScheduling"]
    return [each for each in found if each["regarding"]["name"] == pod]


def test_gated_pods_wait_until_the_last_gate_goes(corner: SchedulerHarness) -> None:
    corner.add_nodes(1)
    with corner.run_scheduler() as process:
        corner.api.create(corner.pod("gated", schedulingGates=[{"name": "a.example/one"}, {"name": "a.example/two"}]))
        corner.api.create(corner.pod("open"))
        corner.wait_bound(["open"])
        corner.api.patch("Pod", "gated", {"spec": {"schedulingGates": [{"name": "a.example/two"}]}})
        corner.api.create(corner.pod("later"))
        corner.wait_bound(["later"])
        told = condition(corner.api.pod("gated"))
        assert told["reason"] == "SchedulingGated"
        assert told["message"] == "Scheduling is blocked due to non-empty scheduling gates"
        corner.api.patch("Pod", "gated", {"spec": {"schedulingGates": None}})
        corner.check_settled(process)


def test_a_parked_pod_wakes_for_what_cures_it_and_for_nothing_else(corner: SchedulerHarness, tmp_path: Path) -> None:
    first, second = corner.add_nodes(2)
    spied = Spied(tmp_path)
    config = short_backoff_config("profiles: [{plugins: {preFilter: {enabled: [{name: Spy}]}}}]")
    with corner.run_scheduler("--plugins-dir", str(spied.folder), config=config) as process:
        corner.api.create(corner.pod("fast-disk", nodeSelector={"disk": "fast"}), corner.pod("large", cpu="5"))
        corner.api.create(corner.pod("filler", cpu="1"))
        corner.wait_bound(["filler"])
        wait_until(
            lambda: all(condition(corner.api.pod(name)) for name in ("fast-disk", "large")), "two pods are parked"
        )
        # A node becomes larger, and not large enough; another gets a label, and not the right one.
        corner.api.patch("Node", second, {"status": {"allocatable": {"cpu": "4500m"}}}, sub="status")
        corner.api.patch("Node", first, {"metadata": {"labels": {"disk": "slow"}}})
        corner.api.create(corner.pod("marker"))
        corner.wait_bound(["marker"])
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (1, 1)
        # A pod goes: of interest to who lacks room, whatever it left, and to nobody else.
        corner.api.delete("Pod", "filler")
        wait_until(lambda: spied.attempts("large") == 2, "the pod that lacks room is tried again")
        assert spied.attempts("fast-disk") == 1
        corner.api.patch("Node", first, {"metadata": {"labels": {"disk": "fast"}}})
        corner.wait_bound(["fast-disk"])
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (2, 2)
        corner.api.patch("Node", second, {"status": {"allocatable": {"cpu": "8"}}}, sub="status")
        corner.check_settled(process)
        assert (spied.attempts("fast-disk"), spied.attempts("large")) == (2, 3)


def test_preemption_spares_what_a_budget_protects(corner: SchedulerHarness) -> None:
    corner.add_nodes(2, cpu="2")
    high = corner.priority("high", 1000)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    corner.api.create(budget)
    with corner.run_scheduler() as process:
        corner.api.create(
            corner.pod("guarded", cpu="2", labels={"app": "guarded"}), corner.pod("plain", cpu="2", labels={"app": "x"})
        )
        corner.wait_bound()
        free = node_name(corner.api.pod("plain"))
        corner.api.create(corner.pod("strong", cpu="2", priorityClassName=high))
        wait_until(lambda: "plain" not in corner.api.pods(), "the unprotected pod is gone")
        corner.check_settled(process)
        assert node_name(corner.api.pod("strong")) == free
        told = [each for each in corner.api.list("Event") if each["reason"] == "Preempted"]
        (note,) = [each["note"] for each in told]
        assert note == f"Preempted by pod {corner.api.pod('strong')['metadata']['uid']} on node {free}"


def nominated(corner: SchedulerHarness, name: str) -> str:
    return str(corner.api.pod(name)["status"].get("nominatedNodeName", ""))


def test_a_nomination_is_kept_until_somebody_stronger_takes_it(corner: SchedulerHarness) -> None:
    (only,) = corner.add_nodes(1, cpu="2")
    high, higher = corner.priority("high", 1000), corner.priority("higher", 2000)
    with corner.run_scheduler() as process:
        corner.api.create(corner.pod("weak", cpu="2", terminationGracePeriodSeconds=3600))
        corner.wait_bound()
        corner.api.create(corner.pod("strong", cpu="2", priorityClassName=high))
        wait_until(lambda: nominated(corner, "strong") == only, "the room is kept for the strong pod")
        wait_until(lambda: "deletionTimestamp" in corner.api.pod("weak")["metadata"], "the weak pod is told to go")
        assert condition(corner.api.pod("weak"), "DisruptionTarget")["reason"] == "PreemptionByScheduler"
        corner.api.create(corner.pod("other", cpu="1"))  # the room of who is nominated is not for it
        wait_until(lambda: bool(condition(corner.api.pod("other"))), "the other pod is told why it waits")
        assert nominated(corner, "strong") == only
        corner.api.create(corner.pod("strongest", cpu="2", priorityClassName=higher))
        wait_until(lambda: bool(condition(corner.api.pod("strongest"))), "the strongest pod is told why it waits")
        corner.api.delete("Pod", "weak", now=True)
        corner.wait_bound(["strongest"])
        wait_until(lambda: nominated(corner, "strong") == "", "the strong pod is no longer nominated")
        corner.check_settled(process, waiting=["strong", "other"])
        assert "nominatedNodeName" not in corner.api.pod("strongest")["status"]


# volumes: the test plays the volume controller


def test_a_volume_that_exists_waits_for_its_first_pod(corner: SchedulerHarness) -> None:
    _, second, _ = corner.add_nodes(3)
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    made = volume(corner, "v", second, kind)
    name = made["metadata"]["name"]
    corner.api.create(made, claim("data", kind))
    corner.api.patch("PersistentVolume", name, {"status": {"phase": "Available"}}, sub="status")
    with corner.run_scheduler() as process:
        corner.api.create(pod_with_claim(corner, "user", "data"))
        wait_until(lambda: "claimRef" in corner.api.get("PersistentVolume", name)["spec"], "the volume is promised")
        promised = corner.api.get("PersistentVolume", name)
        assert promised["spec"]["claimRef"]["name"] == "data"
        assert promised["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"
        assert nominated(corner, "user") == second
        assert not node_name(corner.api.pod("user"))
        corner.api.create(corner.pod("other"))
        corner.wait_bound(["other"])  # who waits for a volume keeps nobody else waiting
        bind_claim(corner, "data", name)
        corner.check_settled(process)
        assert node_name(corner.api.pod("user")) == second
    corner.api.delete("PersistentVolume", name)


def test_a_volume_is_provisioned_where_its_first_pod_goes(corner: SchedulerHarness) -> None:
    corner.add_nodes(2)
    kind = wait_for_first_consumer_class(corner, "made", "example.com/maker")
    wanted = claim("data", kind)
    wanted["metadata"]["annotations"] = {"example.com/note": "x"}
    corner.api.create(wanted)
    selected = "volume.kubernetes.io/selected-node"
    with corner.run_scheduler() as process:
        corner.api.create(pod_with_claim(corner, "user", "data"))

        def chosen() -> str:
            found = corner.api.get("PersistentVolumeClaim", "data")["metadata"].get("annotations", {})
            return str(found.get(selected, ""))

        wait_until(lambda: bool(chosen()), "the claim names a node")
        first = chosen()
        # The provisioner cannot: it takes the annotation off, and the pod is tried again.
        corner.api.patch("PersistentVolumeClaim", "data", {"metadata": {"annotations": {selected: None}}})
        wait_until(
            lambda: "provisioning failed" in condition(corner.api.pod("user")).get("message", ""), "it is told why"
        )
        wait_until(lambda: bool(chosen()), "the claim names a node again")
        made = volume(corner, "made", chosen(), kind)
        uid = corner.api.get("PersistentVolumeClaim", "data")["metadata"]["uid"]
        reference = {"kind": "PersistentVolumeClaim", "namespace": corner.namespace, "name": "data", "uid": uid}
        made["spec"]["claimRef"] = reference
        corner.api.create(made)
        bind_claim(corner, "data", made["metadata"]["name"])
        corner.check_settled(process)
        assert first in corner.nodes
        assert node_name(corner.api.pod("user")) == chosen()
    corner.api.delete("PersistentVolume", made["metadata"]["name"])


# devices


def test_devices_are_allocated_and_reserved(corner: SchedulerHarness) -> None:
    _, second = corner.add_nodes(2)
    kind = f"{corner.label[:40]}-gpu"
    slice_, device_class = devices(corner, second, kind)
    corner.api.create(slice_, device_class, device_claim("mine", kind), device_claim("yours", kind))

    def user(name: str) -> Tree:
        found = corner.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
        found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        return found

    with corner.run_scheduler() as process:
        corner.api.create(user("mine"))
        corner.wait_bound(["mine"])
        assert node_name(corner.api.pod("mine")) == second
        status = corner.api.get("ResourceClaim", "mine")["status"]
        (result,) = status["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", second, "gpu-0")
        assert [each["name"] for each in status["reservedFor"]] == ["mine"]
        kept = corner.api.get("ResourceClaim", "mine")["metadata"]["finalizers"]
        assert kept == ["resource.kubernetes.io/delete-protection"]
        corner.api.create(user("yours"))
        told = "cannot allocate all claims"
        wait_until(lambda: told in condition(corner.api.pod("yours")).get("message", ""), "there is no second device")
        # The driver publishes one more device.
        slice_["spec"]["devices"].append({"name": "gpu-1"})
        more: dict[str, Any] = {"spec": {"devices": slice_["spec"]["devices"], "pool": {"generation": 2}}}
        corner.api.patch("ResourceSlice", slice_["metadata"]["name"], more)
        corner.check_settled(process)
        (result,) = corner.api.get("ResourceClaim", "yours")["status"]["allocation"]["devices"]["results"]
        assert result["device"] == "gpu-1"
    corner.api.delete("ResourceSlice", slice_["metadata"]["name"])
    corner.api.delete("DeviceClass", kind)


def test_a_pod_that_shrinks_in_place_makes_room(corner: SchedulerHarness) -> None:
    corner.add_nodes(1, cpu="4")
    with corner.run_scheduler() as process:
        corner.api.create(corner.pod("wide", cpu="3"))
        corner.wait_bound()
        corner.api.create(corner.pod("next", cpu="2"))
        wait_until(lambda: bool(condition(corner.api.pod("next"))), "there is no room")
        smaller = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
        corner.api.patch("Pod", "wide", smaller, sub="resize", strategic=True)
        assert corner.check_settled(process) == dict.fromkeys(("wide", "next"), corner.nodes[0])


# many


VOLUMES = 16
HAVE_DEVICES = range(0, 10_000, 320)
"""Which pods use a device: each has a claim of its own, and writes it."""


def mixed(corner: SchedulerHarness, number: int, strong: str) -> Tree:
    """Pods of many kinds, all of which fit. `strong`: the name of a class of pods that matter more."""
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
    return corner.pod(name, cpu="10m", labels=labels, **spec)


def test_many_pods_of_many_kinds_and_nothing_is_left_over(corner: SchedulerHarness) -> None:
    count = 2_000 if isinstance(corner.cluster, Embedded) else 10_000
    nodes = count // 25
    for zone in range(3):
        corner.add_nodes(nodes // 4, labels={"zone": f"zone-{zone}"})
    dedicated = corner.add_nodes(nodes // 4, labels={"zone": "zone-0", "dedicated": "yes"})
    for name in dedicated:
        corner.api.patch("Node", name, {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    kind = wait_for_first_consumer_class(corner, "local", "kubernetes.io/no-provisioner")
    for number, target in enumerate(corner.nodes[:VOLUMES]):
        bound = volume(corner, f"v{number}", target, kind)
        corner.api.create(bound, claim(f"data-{number}", kind))
        bind_claim(corner, f"data-{number}", bound["metadata"]["name"])
    accelerated = f"{corner.label[:40]}-gpu"
    with_devices = [number for number in HAVE_DEVICES if number < count]
    slice_, device_class = devices(corner, corner.nodes[VOLUMES], accelerated, count=len(with_devices))
    claims = [device_claim(f"device-{number}", accelerated) for number in with_devices]
    corner.api.create(slice_, device_class, *claims)
    strong = corner.priority("strong", 1000)
    with corner.run_scheduler() as process:
        made = corner.api.create(*(mixed(corner, number, strong) for number in range(count)))
        gated = [each["metadata"]["name"] for each in made if each["spec"].get("schedulingGates")]
        corner.wait_bound({each["metadata"]["name"] for each in made} - set(gated), within_s=DEADLINE_S + count / 50)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: corner.api.patch("Pod", name, {"spec": {"schedulingGates": None}}), gated))
        began_s = time.monotonic()
        corner.check_settled(process)
        assert time.monotonic() - began_s < 60 + count / 50
        assert corner.dump_comparison(process)["queued"] == {}
        pods = corner.api.pods()
        for number in with_devices:
            (user,) = corner.api.get("ResourceClaim", f"device-{number}")["status"]["reservedFor"]
            assert (user["name"], node_name(pods[user["name"]])) == (f"pod-{number}", corner.nodes[VOLUMES])
        with_data = [number for number in range(0, count, 24) if number not in HAVE_DEVICES]
        for number in with_data:
            assert node_name(pods[f"pod-{number}"]) == corner.nodes[number // 24 % VOLUMES]
    corner.api.delete("ResourceSlice", slice_["metadata"]["name"])
    corner.api.delete("DeviceClass", accelerated)
    for number in range(VOLUMES):
        corner.api.delete("PersistentVolume", f"{corner.label}-v{number}")
