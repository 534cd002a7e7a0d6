"""Are the decisions of a recording made again, and if not, which is the first that differs?

A recording of decisions that were made for it is repeated from its objects. One that was observed in a live cluster is
retraced: pods that have nodes are taken off, and each is decided about again on the cluster as it was then, as far as
that is still there; a cluster that was followed goes through all that happened to it. Of equally good nodes the
recorded one is taken, so that only a real difference is one. After a difference the replay goes on as the recording
did. Costs what deciding costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.batch.model.tasks import Task
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, PodGroupStatus
from bayplan.scheduler.cycle.scheduling_cycle import Decision
from bayplan.sim.offline.offline_cluster import (
    OVER,
    Setup,
    StillCluster,
    same,
    unplaced,
    verdict_of,
    waiting_in,
)
from bayplan.sim.offline.pod_placement import Outcome
from bayplan.sim.recordings.observed_decisions import AT_ONCE
from bayplan.sim.recordings.recording_file import (
    BATCH,
    OBSERVED,
    Change,
    Recording,
    Verdict,
)

MOST_AT_ONCE = 64
"""So many bindings are on their way at the same time, at most: so far a decision may have been made out of order."""
_ENTERED = PodGroupStatus(phase="Inqueue")
_GONE = "the pod was gone already"

Steps = list[Verdict | list[Verdict] | Change]
"""What is still to be retraced: decisions, sessions, changes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that is not made again. `number`: its place among the recorded ones, from 1."""

    number: int
    recorded: Verdict | None
    now: Verdict | None
    because: tuple[str, ...] = ()
    """What speaks for each of the two nodes, a line each."""

    @property
    def pod(self) -> str:
        known = self.recorded or self.now
        assert known is not None
        return known.pod

    def as_data(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "pod": self.pod,
            "recorded": _plain(self.recorded),
            "now": _plain(self.now),
            "because": list(self.because),
        }

    def sentence(self) -> str:
        return f"decision {self.number}, {self.pod}: recorded {told(self.recorded)}; now {told(self.now)}"


@dataclass(slots=True)
class Replay:
    """How a replay went."""

    decisions: list[Verdict] = field(default_factory=list)
    """As they are made now."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def first(self) -> Difference | None:
        return self.differences[0] if self.differences else None

    def as_data(self) -> dict[str, Any]:
        return {
            "decisions": len(self.decisions),
            "different": len(self.differences),
            "first": self.first.as_data() if self.first is not None else None,
            "differences": [difference.as_data() for difference in self.differences],
            "replayed": [_plain(verdict) for verdict in self.decisions],
        }


def told(verdict: Verdict | None) -> str:
    """A decision in words."""
    if verdict is None:
        return "nothing was decided"
    gone = f", after {', '.join(verdict.evicted)} went" if verdict.evicted else ""
    if verdict.node:
        return f"{verdict.node}{gone}"
    waits = f"waits for {verdict.nominated}" if verdict.nominated else "waits"
    return f"{waits}{gone}{f': {verdict.why}' if verdict.why else ''}"


def replay(recording: Recording, setup: Setup | None = None, *, seed: int | None = None) -> Replay:
    """Make the decisions of a recording again; `setup` and `seed`: other ones than the recording has.

    Nothing is bound, so plugins are not asked again what to hand to the binder: a decision that is made again shows
    what was recorded with it.
    """
    setup = setup or Setup.of(recording.header)
    seed = recording.header.seed if seed is None else seed
    if recording.header.decisions == OBSERVED:
        found = _Retracing(recording, setup, seed).run()
    else:
        found = _repeated(recording, setup, seed)
    handed = {(each.pod, each.node): each.annotations for each in recording.verdicts if each.annotations}
    found.decisions = [
        replace(now, annotations=handed[now.pod, now.node]) if (now.pod, now.node) in handed else now
        for now in found.decisions
    ]
    return found


def _repeated(recording: Recording, setup: Setup, seed: int) -> Replay:
    found = Replay()
    with StillCluster(recording.objects, setup, now=recording.header.at, seed=seed) as still:
        still.favourites.update({verdict.pod: verdict.node for verdict in recording.verdicts if verdict.node})
        found.decisions = still.come_to_rest(waiting_in(recording.objects, still)).verdicts
    for number, (recorded, now) in enumerate(zip_longest(recording.verdicts, found.decisions), 1):
        if recorded is None or now is None or recorded.pod != now.pod or not same(recorded, now):
            found.differences.append(Difference(number, recorded, now, _words(recorded, now)))
    return found


def _words(recorded: Verdict | None, now: Verdict | None) -> tuple[str, ...]:
    return tuple(
        f"{when}: {verdict.why}" for when, verdict in (("recorded", recorded), ("now", now)) if verdict and verdict.why
    )


class _Retracing:
    """Follows the observed decisions of a recording, one after another, and what happened between them."""

    def __init__(self, recording: Recording, setup: Setup, seed: int) -> None:
        self._recording = recording
        self._numbers = {id(verdict): number for number, verdict in enumerate(recording.verdicts, 1)}
        is_followed = recording.header.until is not None
        decided = {verdict.pod for verdict in recording.verdicts}
        pods = [item for item in recording.objects if isinstance(item, Pod)]
        taken_off = [pod for pod in pods if (not pod.spec.node_name if is_followed else pod.key in decided)]
        self._pods = {pod.key: unplaced(pod) for pod in taken_off}
        self._placed: set[str] = set()
        self._found = Replay()
        self._groups: dict[str, PodGroup] = {}  # of pods that are still to be decided about
        jobs = {Task(pod).job for pod in self._pods.values()}
        before: list[KubeObject] = []
        for item in recording.objects:
            if isinstance(item, PodGroup) and item.key in jobs:
                self._groups[item.key] = replace(item, status=_ENTERED)
            elif not isinstance(item, Pod) or (item.spec.node_name and item.key not in self._pods):
                before.append(item)
        self._still = StillCluster(before, setup, now=recording.header.at, seed=seed)

    def run(self) -> Replay:
        with self._still:
            left = self._steps()
            while left:
                match left[0]:
                    case Change() as change:
                        self._come_to_change(left, change)
                    case Verdict() as verdict:
                        self._come_to_pod(left, verdict)
                    case session:
                        del left[0]
                        self._retrace_session(session)
        return self._found

    def _steps(self) -> Steps:
        """Decisions and changes; decisions of one session are one step."""
        steps: Steps = []
        known = set(self._pods)
        for each in self._recording.story():
            if isinstance(each, Change):
                known.add(each.item.key)
                steps.append(each)
            elif each.pod not in known:
                self._differs(each, None, ("the recording holds no such pod",))
            elif each.engine != BATCH:
                steps.append(each)
            elif steps and isinstance(last := steps[-1], list) and last[0].session == each.session:
                last.append(each)
            else:
                steps.append([each])
        return steps

    # changes ----------------------------------------------------------------------------------------------------

    def _come_to_change(self, left: Steps, change: Change) -> None:
        """Let it happen; or first the next decision, if it is one that was made before the change was seen."""
        for place, step in enumerate(left):
            if isinstance(step, Change):
                continue
            if isinstance(step, Verdict) and _close(change, step) and self._explains(step):
                del left[place]
                self._retrace_pod(step)
                return
            break
        del left[0]
        self._change(change)

    def _change(self, change: Change) -> None:
        item, cluster = change.item, self._still.cluster
        if isinstance(item, Pod):
            self._change_pod(item, gone=change.gone)
        elif isinstance(item, PodGroup) and not change.gone:
            entered = self._still.batch.cache.catalog.table(PodGroup).get(item.key)
            if entered is None:
                self._groups[item.key] = replace(item, status=_ENTERED)
            else:
                cluster.add([replace(item, status=entered.status)])
        elif not change.gone:
            cluster.add([item])
        elif not isinstance(item, Node) or item.name in self._still.pods.snapshot().nodes.index:
            cluster.remove([item])

    def _change_pod(self, pod: Pod, *, gone: bool) -> None:
        cluster = self._still.cluster
        if gone or pod.status.phase in OVER:
            self._pods.pop(pod.key, None)
            self._placed.discard(pod.key)
            if (known := cluster.pods.get(pod.key)) is not None:
                cluster.remove([known])
        elif pod.spec.node_name:
            cluster.add([pod])
        elif pod.key not in self._placed:
            self._pods[pod.key] = unplaced(pod)

    # the pod engine ---------------------------------------------------------------------------------------------

    def _come_to_pod(self, left: Steps, head: Verdict) -> None:
        """Retrace the next decision; or let a change happen that may explain it and was told a moment too late."""
        place = self._next(left, head)
        if place is None:
            late = next((place for place, step in enumerate(left[:MOST_AT_ONCE]) if isinstance(step, Change)), 0)
            if isinstance(change := left[late], Change) and _close(head, change):
                del left[late]
                self._change(change)
                return
        verdict = left.pop(place or 0)
        assert isinstance(verdict, Verdict), "others than decisions about one pod are no choice"
        self._retrace_pod(verdict)

    def _retrace_pod(self, recorded: Verdict) -> None:
        if recorded.pod not in self._pods:
            self._differs(recorded, None, (_GONE,))
            return
        self._favour([recorded])
        outcome = self._still.place(self._pods[recorded.pod], [])
        now = verdict_of(outcome)
        if outcome.waits_for:  # the others that it waits for come next
            now = Verdict(pod=recorded.pod, node=outcome.node or "")
        self._found.decisions.append(now)
        if not same(recorded, now):
            self._take_back(outcome)
            because = self._because(recorded, now)
            self._differs(recorded, now, because)
            self._enforce(recorded)
        if recorded.node:
            self._placed.add(recorded.pod)

    def _next(self, left: Steps, head: Verdict) -> int | None:
        """Which of the next decisions was made first: the first that explains itself, of those made at about once.

        None: no one does.
        """
        if not head.node:
            return 0
        best: dict[bytes, frozenset[str]] = {}  # pods that are alike are asked about once
        for place, verdict in enumerate(left[:MOST_AT_ONCE]):
            if not isinstance(verdict, Verdict) or not verdict.node or not _close(head, verdict):
                break
            if self._explains(verdict, best):
                return place
        return None

    def _explains(self, verdict: Verdict, best: dict[bytes, frozenset[str]] | None = None) -> bool:
        """Whether the cluster as it is explains a decision. `best`: nodes for pods like those asked about before."""
        pod = self._pods.get(verdict.pod)
        if pod is None or not verdict.node or verdict.pod in self._placed or not self._still.pods.serves(pod):
            return False
        known = {} if best is None else best
        likeness = _likeness(pod)
        if likeness not in known:
            known[likeness] = self._still.best_nodes(pod)
        return verdict.node in known[likeness]

    def _favour(self, verdicts: Iterable[Verdict]) -> None:
        """Of equally good nodes take the recorded ones."""
        self._still.favourites.update({verdict.pod: verdict.node for verdict in verdicts if verdict.node})

    def _take_back(self, outcome: Outcome) -> None:
        if outcome.held is not None:
            self._still.pods.stop_waiting(outcome.pod.uid)
            self._still.pods.take_back(outcome.held)
            self._still.cluster.remove([outcome.pod])

    def _because(self, recorded: Verdict, now: Verdict) -> tuple[str, ...]:
        """What the engine thinks of both nodes."""
        pod = self._pods[recorded.pod]
        if not self._still.pods.serves(pod):
            return ()
        decision = self._still.tried(pod)
        nodes = dict.fromkeys(filter(None, (recorded.node, now.node)))
        return tuple(f"{node}: {_standing(decision, node)}" for node in nodes)

    # sessions ---------------------------------------------------------------------------------------------------

    def _retrace_session(self, step: list[Verdict]) -> None:
        still = self._still
        for verdict in step:
            if verdict.pod not in self._pods:
                self._differs(verdict, None, (_GONE,))
        step = [verdict for verdict in step if verdict.pod in self._pods]
        if not step:
            return
        self._favour(step)
        self._placed.update(verdict.pod for verdict in step if verdict.node)
        pods = [self._pods[verdict.pod] for verdict in step]
        for job in {Task(pod).job: None for pod in pods}:
            if (group := self._groups.pop(job, None)) is not None:
                still.cluster.add([group])
        still.cluster.add(pods)
        outcome = still.session()
        now = {verdict.pod: verdict for verdict in still.session_verdicts(outcome)}
        agree = True
        for recorded in step:
            verdict = now.get(recorded.pod, Verdict(pod=recorded.pod, engine=BATCH, session=still.sessions))
            self._found.decisions.append(verdict)
            if not same(recorded, verdict):
                agree = False
                self._differs(recorded, verdict, (f"now: {verdict.why}",) if verdict.why else ())
        if agree:
            still.cluster.settle(outcome)
            return
        for key in outcome.binds:
            assumed = still.batch.cache.pod(still.cluster.pods[key].uid)
            if assumed is not None and still.batch.cache.is_assumed(assumed.uid):
                still.batch.cache.forget(assumed)
        for recorded in step:
            self._enforce(recorded)

    # both -------------------------------------------------------------------------------------------------------

    def _differs(self, recorded: Verdict, now: Verdict | None, because: tuple[str, ...]) -> None:
        self._found.differences.append(Difference(self._numbers[id(recorded)], recorded, now, because))

    def _enforce(self, recorded: Verdict) -> None:
        """Go on from what was recorded."""
        if recorded.node:
            pod = self._pods[recorded.pod].bound_to(recorded.node)
            self._still.cluster.add([replace(pod, status=replace(pod.status, phase="Running"))])


def _likeness(pod: Pod) -> bytes:
    """What a decision about a pod can depend on, besides its name."""
    meta = pod.metadata
    return msgspec.json.encode((meta.namespace, meta.labels, meta.annotations, meta.controller, pod.spec))


def _close(first: Verdict | Change, second: Verdict | Change) -> bool:
    if first.at is None or second.at is None:
        return True
    return abs(second.at - first.at) <= AT_ONCE


def _standing(decision: Decision, node: str) -> str:
    """What an attempt says of one node: why it will not do, or what each plugin gives it."""
    diagnosis = decision.diagnosis
    if diagnosis is None or node not in diagnosis.names:
        return "there is no such node" if diagnosis is not None else decision.message
    status = diagnosis.status(diagnosis.names.index(node))
    if not status.ok:
        return status.message
    if decision.scores is None or decision.nodes is None:
        return "it fits"
    place = decision.nodes.names.index(node)
    parts = " ".join(f"{plugin}={int(scores[place])}" for plugin, scores in decision.scores.by_plugin.items())
    return f"{int(decision.scores.total[place])} ({parts})"


def _plain(verdict: Verdict | None) -> Any:
    return None if verdict is None else msgspec.to_builtins(verdict)
