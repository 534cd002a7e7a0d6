"""Binders and schedulers are killed again and again at random crash points: in the end every pod is bound once.

Plain pods, pods that share GPUs, pods with device claims and pods with unbound volume claims; some are always refused
on a node, some fail the first time. A process kills itself at a random crash point; meanwhile the other processes
continue, and so does its successor.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.bind_watcher import BindWatcher
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import crash_at, node_name, wait_until
from support.e2e.volumes_and_devices import claim, device_claim, devices, volume, wait_for_first_consumer_class
from support.e2e.workload_cluster import controllers

FEW, MANY = 3, 200
PODS_A_KILL = 3
ROUNDS_BETWEEN_CALMS = 10
FEWEST_STEPS = 3
"""Counts of a binder for each request: attempts, failures, rollbacks."""
KINDS = ("plain", "shared", "claim", "volume")
MOODS = ("calm", "calm", "calm", "refused", "stumbling")
CARETAKERS = "--controllers=garbage-collector-controller,resourceclaim-controller"
"""Controllers that delete the requests of deleted pods and unreserve their claims, as on every cluster."""
VICTIMS = (("binder",), ("scheduler",), ("binder", "scheduler"))

PROFILES = """
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: GpuSharing}, {name: Marking}, {name: Correcting}, {name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
LEFT_TO_THE_BINDER = f"""{PROFILES}    preBind:
      disabled: [{{name: DynamicResources}}, {{name: VolumeBinding}}]
"""

MARKING = '''
class Marking:
    name = "Marking"

    def mutate_bind_request(self, cycle, node_name):
        return {"marking.kai.scheduler/node": node_name, "marking.kai.scheduler/pod": "overwritten"}


class Correcting:
    """Runs later, so its value is used."""

    name = "Correcting"

    def mutate_bind_request(self, cycle, node_name):
        return {"marking.kai.scheduler/pod": cycle.pod.name}
'''

MOODY = '''
import zlib

from bayplan.binder import RejectBind


class Moody:
    """Rejects one node for pods that are to be refused, and fails once for some other pods."""

    name = "moody"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        mood = pod.metadata.annotations.get("example.com/mood")
        if mood == "refused" and node.name.endswith(f"-{zlib.crc32(pod.name.encode()) % 4}"):
            raise RejectBind("not here")
        if mood == "stumbling" and not bind_request.status.failed_attempts:
            raise RuntimeError("not yet")
'''


def folded(request: Tree) -> Tree:
    """The annotations of both plugins together."""
    spec = request["spec"]
    return {"marking.kai.scheduler/node": spec["selectedNode"], "marking.kai.scheduler/pod": spec["podName"]}


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    mine.expected_annotations = folded
    mine.ensure_reservations()
    for folder, text in (("marking", MARKING), ("moody", MOODY)):
        (tmp_path / folder).mkdir(mode=0o755)
        (tmp_path / folder / f"{folder}.py").write_text(text)
    room = {"nvidia.com/gpu": "16"}
    mine.add_nodes(4, cpu="64", labels={"nvidia.com/gpu.memory": "16000"}, room=room)
    for number, node in enumerate(mine.nodes):
        slice_, kind = devices(mine, node, device_class(mine), count=32)
        slice_["metadata"]["name"] += f"-{number}"
        mine.api.create(*((slice_, kind) if number == 0 else (slice_,)))
    wait_for_first_consumer_class(mine, "local", "kubernetes.io/no-provisioner")
    only = ("--controllers", "persistentvolume-binder-controller")
    with controllers(tmp_path, cluster.kubeconfig(), *only):
        yield mine
    mine.api.delete_all("ResourceSlice", [f"{mine.label[:40]}-slice-{number}" for number in range(4)])
    mine.api.delete_all("DeviceClass", [device_class(mine)])
    mine.close()


def device_class(harness: BinderHarness) -> str:
    return f"{harness.label[:40]}-gpu"


def storage_class(harness: BinderHarness) -> str:
    return f"{harness.label[:40]}-local"


@dataclass
class Player:
    """A process that is killed, and its successor."""

    start: Callable[[], Any]
    _life: ExitStack = field(default_factory=ExitStack)
    process: Popen[bytes] | None = None

    def lives(self, step: str = "") -> None:
        """Start another one; with a step, one that kills itself at this crash point."""
        self.ends()
        with ExitStack() as arming:
            if step:
                arming.enter_context(crash_at(step))
            self.process = self._life.enter_context(self.start())

    def stays(self) -> None:
        """The running process, or a new one."""
        if self.process is None or self.process.poll() is not None:
            self.lives()

    def dies(self) -> None:
        """Wait until it is ready."""
        assert self.process is not None
        assert self.process.wait(240) == -signal.SIGKILL

    def ends(self) -> None:
        """Kill it now, wherever it is."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self._life.close()
            self.process = None


class Rounds:
    """Create pods, kill processes and delete pods, in random order."""

    def __init__(self, harness: BinderHarness, bind_watcher: BindWatcher, seed: int) -> None:
        self.harness, self.bind_watcher, self.chance = harness, bind_watcher, random.Random(seed)
        flags = (f"--plugins-dir={harness.folder / 'marking'}",)
        self.players = {
            "scheduler": Player(lambda: harness.run_scheduler(*flags, config=short_backoff_config(self.profiles()))),
            "binder": Player(lambda: harness.binder(f"--plugins-dir={harness.folder / 'moody'}")),
        }
        self.made = self.bound = 0
        self.killed: list[str] = []
        self._kinds: list[str] = []

    def profiles(self) -> str:
        """Claims and volumes are written by the scheduler before the request, or by the binder after it."""
        return self.chance.choice((PROFILES, LEFT_TO_THE_BINDER))

    def play(self, kills: int) -> None:
        with ExitStack() as stack:
            for player in self.players.values():
                stack.callback(player.ends)
            for turn in range(kills):
                self.turn(turn)
                if (turn + 1) % ROUNDS_BETWEEN_CALMS == 0 or turn + 1 == kills:
                    self.calm()

    def turn(self, turn: int) -> None:
        """Create some pods, maybe delete one, and kill a process."""
        victims = self.chance.choice(VICTIMS)
        requests = self.chance.randint(1, PODS_A_KILL)
        steps = self.chance.randint(1, FEWEST_STEPS * requests)
        for name, step in (("scheduler", f"requested:{requests}"), ("binder", f"any:{steps}")):
            player = self.players[name]
            player.lives(step) if name in victims else player.stays()
        self.come(turn)
        if self.chance.random() < 0.3:
            self.go([self.chance.choice(sorted(set(self.harness.api.pods()) - set(self.latest(turn))) or [""])])
        for name in victims:
            self.players[name].dies()
            self.killed.append(name)

    def latest(self, turn: int) -> list[str]:
        return [f"pod-{turn}-{number}" for number in range(PODS_A_KILL)]

    def come(self, turn: int) -> None:
        for name in self.latest(turn):
            kind, mood = self.kind(), self.chance.choice(MOODS)
            pod = self.harness.pod(name, cpu="10m")
            pod["metadata"]["annotations"] = {"example.com/mood": mood}
            if kind == "shared":
                shared = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": f"{name}-gpu"}
                pod["metadata"]["annotations"].update(shared)
            elif kind == "claim":
                self.harness.api.create(device_claim(name, device_class(self.harness)))
                pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
                pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
            elif kind == "volume":
                self.store(name)
                pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
                if mood == "refused":  # on the node of the volume every attempt would fail
                    pod["metadata"]["annotations"]["example.com/mood"] = "stumbling"
            self.harness.api.create(pod)
            self.made += 1

    def kind(self) -> str:
        """Each kind equally often, even in few rounds; their order is random."""
        self._kinds = self._kinds or self.chance.sample(KINDS, len(KINDS))
        return self._kinds.pop()

    def store(self, name: str) -> None:
        """A claim, and a volume on some node; the scheduler or the binder chooses the volume of a claim."""
        kind, node = storage_class(self.harness), self.chance.choice(self.harness.nodes)
        self.harness.api.create(volume(self.harness, name, node, kind), claim(name, kind))

    def go(self, names: list[str]) -> None:
        """Delete pods and nothing else: the binder or the controllers must release their objects."""
        for name in filter(None, names):
            self.harness.api.delete_all("Pod", [name])
            self.made -= 1

    def calm(self) -> None:
        """Without kills for a while, every pod is bound and nothing is left over; then most pods are deleted."""
        harness = self.harness
        for player in self.players.values():
            player.lives()
        harness.wait_bound()
        for name in harness.api.pods():
            harness.wait_for_end(name, "Succeeded")
        wait_until(lambda: harness.faults() == [], "all is in order", why=lambda: "\n".join(harness.faults()))
        pods = harness.api.pods()
        wait_until(lambda: self.bind_watcher.has_seen(pods), "the bind_watcher has seen it all")
        assert self.bind_watcher.faults() == []
        assert self.bind_watcher.tried(), "no attempt was recorded"
        assert len(pods) + self.bound == self.made
        assert all(node_name(pod) in harness.nodes for pod in pods.values())
        going = [name for name in pods if self.chance.random() < 0.8]
        self.go(going)
        self.made += len(going)
        self.bound += len(going)
        wait_until(lambda: harness.faults() == [], "nothing is left of those", why=lambda: "\n".join(harness.faults()))


def kill_again_and_again(harness: BinderHarness, kills: int, seed: int) -> Rounds:
    with (
        harness.watch_binds(harness.folder / "moody") as bind_watcher,
        controllers(harness.folder, harness.cluster.kubeconfig(), CARETAKERS),
    ):
        rounds = Rounds(harness, bind_watcher, seed)
        try:
            rounds.play(kills)
        except BaseException as fault:
            fault.add_note(f"seed {seed}, {len(rounds.killed)} kills so far: {' '.join(rounds.killed[-20:])}")
            raise
    assert harness.faults() == []
    return rounds


def test_a_few_kills(harness: BinderHarness) -> None:
    rounds = kill_again_and_again(harness, FEW, seed=7)
    assert rounds.bound > 0


@pytest.mark.soak
def test_many_kills(harness: BinderHarness, request: pytest.FixtureRequest) -> None:
    kills = request.config.getoption("--kills") or MANY
    rounds = kill_again_and_again(harness, kills, seed=11)
    assert {*rounds.killed} == {"binder", "scheduler"}
    assert len(rounds.killed) >= kills
    assert rounds.bind_watcher.reserved, "no device was ever reserved"
