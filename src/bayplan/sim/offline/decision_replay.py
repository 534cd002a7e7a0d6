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
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingDecision
from bayplan.sim.offline.offline_cluster import (
    ENDED_PHASES,
    EngineSetup,
    OfflineCluster,
    is_same_decision,
    pending_pods,
    recorded_decision,
    without_node,
)
from bayplan.sim.offline.pod_placement import PlacementOutcome
from bayplan.sim.recordings.observed_decisions import CONCURRENT_WINDOW
from bayplan.sim.recordings.recording_file import (
    BATCH_ENGINE,
    OBSERVED,
    RecordedChange,
    RecordedDecision,
    Recording,
)

MAX_CONCURRENT_DECISIONS = 64
"""So many bindings are on their way at the same time, at most: so far a decision may have been made out of order."""
_INQUEUE_STATUS = PodGroupStatus(phase="Inqueue")
_POD_DELETED = "the pod was gone already"

ReplaySteps = list[RecordedDecision | list[RecordedDecision] | RecordedChange]
"""What is still to be retraced: decisions, sessions, changes."""


@dataclass(frozen=True, slots=True)
class DecisionDifference:
    """A decision that is not made again. `number`: its place among the recorded ones, from 1."""

    number: int
    recorded: RecordedDecision | None
    now: RecordedDecision | None
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
            "recorded": _to_plain_data(self.recorded),
            "now": _to_plain_data(self.now),
            "because": list(self.because),
        }

    def describe(self) -> str:
        return (
            f"decision {self.number}, {self.pod}: recorded {describe_decision(self.recorded)}; now "
            f"{describe_decision(self.now)}"
        )


@dataclass(slots=True)
class ReplayResult:
    """How a replay went."""

    decisions: list[RecordedDecision] = field(default_factory=list)
    """As they are made now."""
    differences: list[DecisionDifference] = field(default_factory=list)

    @property
    def first(self) -> DecisionDifference | None:
        return self.differences[0] if self.differences else None

    def as_data(self) -> dict[str, Any]:
        return {
            "decisions": len(self.decisions),
            "different": len(self.differences),
            "first": self.first.as_data() if self.first is not None else None,
            "differences": [difference.as_data() for difference in self.differences],
            "replayed": [_to_plain_data(verdict) for verdict in self.decisions],
        }


def describe_decision(verdict: RecordedDecision | None) -> str:
    """A decision in words."""
    if verdict is None:
        return "nothing was decided"
    gone = f", after {', '.join(verdict.evicted)} went" if verdict.evicted else ""
    if verdict.node:
        return f"{verdict.node}{gone}"
    waits = f"waits for {verdict.nominated}" if verdict.nominated else "waits"
    return f"{waits}{gone}{f': {verdict.why}' if verdict.why else ''}"


def replay_recording(
    recording: Recording, setup: EngineSetup | None = None, *, seed: int | None = None
) -> ReplayResult:
    """Make the decisions of a recording again; `setup` and `seed`: other ones than the recording has.

    Nothing is bound, so plugins are not asked again what to hand to the binder: a decision that is made again shows
    what was recorded with it.
    """
    setup = setup or EngineSetup.from_header(recording.header)
    seed = recording.header.seed if seed is None else seed
    if recording.header.decisions == OBSERVED:
        found = _ObservedReplay(recording, setup, seed).run()
    else:
        found = _repeat_decisions(recording, setup, seed)
    handed = {(each.pod, each.node): each.annotations for each in recording.decisions if each.annotations}
    found.decisions = [
        replace(now, annotations=handed[now.pod, now.node]) if (now.pod, now.node) in handed else now
        for now in found.decisions
    ]
    return found


def _repeat_decisions(recording: Recording, setup: EngineSetup, seed: int) -> ReplayResult:
    found = ReplayResult()
    with OfflineCluster(recording.objects, setup, now=recording.header.at, seed=seed) as still:
        still.preferred_nodes.update({verdict.pod: verdict.node for verdict in recording.decisions if verdict.node})
        found.decisions = still.run_until_stable(pending_pods(recording.objects, still)).verdicts
    for number, (recorded, now) in enumerate(zip_longest(recording.decisions, found.decisions), 1):
        if recorded is None or now is None or recorded.pod != now.pod or not is_same_decision(recorded, now):
            found.differences.append(
                DecisionDifference(number, recorded, now, _recorded_and_new_reasons(recorded, now))
            )
    return found


def _recorded_and_new_reasons(recorded: RecordedDecision | None, now: RecordedDecision | None) -> tuple[str, ...]:
    return tuple(
        f"{when}: {verdict.why}" for when, verdict in (("recorded", recorded), ("now", now)) if verdict and verdict.why
    )


class _ObservedReplay:
    """Follows the observed decisions of a recording, one after another, and what happened between them."""

    def __init__(self, recording: Recording, setup: EngineSetup, seed: int) -> None:
        self._recording = recording
        self._numbers = {id(verdict): number for number, verdict in enumerate(recording.decisions, 1)}
        is_followed = recording.header.until is not None
        decided = {verdict.pod for verdict in recording.decisions}
        pods = [item for item in recording.objects if isinstance(item, Pod)]
        taken_off = [pod for pod in pods if (not pod.spec.node_name if is_followed else pod.key in decided)]
        self._pods = {pod.key: without_node(pod) for pod in taken_off}
        self._placed: set[str] = set()
        self._found = ReplayResult()
        self._groups: dict[str, PodGroup] = {}  # of pods that are still to be decided about
        jobs = {Task(pod).job for pod in self._pods.values()}
        before: list[KubeObject] = []
        for item in recording.objects:
            if isinstance(item, PodGroup) and item.key in jobs:
                self._groups[item.key] = replace(item, status=_INQUEUE_STATUS)
            elif not isinstance(item, Pod) or (item.spec.node_name and item.key not in self._pods):
                before.append(item)
        self._still = OfflineCluster(before, setup, now=recording.header.at, seed=seed)

    def run(self) -> ReplayResult:
        with self._still:
            left = self._steps()
            while left:
                match left[0]:
                    case RecordedChange() as change:
                        self._come_to_change(left, change)
                    case RecordedDecision() as verdict:
                        self._come_to_pod(left, verdict)
                    case session:
                        del left[0]
                        self._retrace_session(session)
        return self._found

    def _steps(self) -> ReplaySteps:
        """Decisions and changes; decisions of one session are one step."""
        steps: ReplaySteps = []
        known = set(self._pods)
        for each in self._recording.decisions_and_changes():
            if isinstance(each, RecordedChange):
                known.add(each.item.key)
                steps.append(each)
            elif each.pod not in known:
                self._add_difference(each, None, ("the recording holds no such pod",))
            elif each.engine != BATCH_ENGINE:
                steps.append(each)
            elif steps and isinstance(last := steps[-1], list) and last[0].session == each.session:
                last.append(each)
            else:
                steps.append([each])
        return steps

    # changes ----------------------------------------------------------------------------------------------------

    def _come_to_change(self, left: ReplaySteps, change: RecordedChange) -> None:
        """Let it happen; or first the next decision, if it is one that was made before the change was seen."""
        for place, step in enumerate(left):
            if isinstance(step, RecordedChange):
                continue
            if isinstance(step, RecordedDecision) and _are_concurrent(change, step) and self._explains(step):
                del left[place]
                self._retrace_pod(step)
                return
            break
        del left[0]
        self._change(change)

    def _change(self, change: RecordedChange) -> None:
        item, cluster = change.item, self._still.cluster
        if isinstance(item, Pod):
            self._change_pod(item, gone=change.gone)
        elif isinstance(item, PodGroup) and not change.gone:
            entered = self._still.batch.cache.catalog.table(PodGroup).get(item.key)
            if entered is None:
                self._groups[item.key] = replace(item, status=_INQUEUE_STATUS)
            else:
                cluster.add([replace(item, status=entered.status)])
        elif not change.gone:
            cluster.add([item])
        elif not isinstance(item, Node) or item.name in self._still.pods.snapshot().nodes.index:
            cluster.remove([item])

    def _change_pod(self, pod: Pod, *, gone: bool) -> None:
        cluster = self._still.cluster
        if gone or pod.status.phase in ENDED_PHASES:
            self._pods.pop(pod.key, None)
            self._placed.discard(pod.key)
            if (known := cluster.pods.get(pod.key)) is not None:
                cluster.remove([known])
        elif pod.spec.node_name:
            cluster.add([pod])
        elif pod.key not in self._placed:
            self._pods[pod.key] = without_node(pod)

    # the pod engine ---------------------------------------------------------------------------------------------

    def _come_to_pod(self, left: ReplaySteps, head: RecordedDecision) -> None:
        """Retrace the next decision; or let a change happen that may explain it and was told a moment too late."""
        place = self._next(left, head)
        if place is None:
            late = next(
                (
                    place
                    for place, step in enumerate(left[:MAX_CONCURRENT_DECISIONS])
                    if isinstance(step, RecordedChange)
                ),
                0,
            )
            if isinstance(change := left[late], RecordedChange) and _are_concurrent(head, change):
                del left[late]
                self._change(change)
                return
        verdict = left.pop(place or 0)
        assert isinstance(verdict, RecordedDecision), "others than decisions about one pod are no choice"
        self._retrace_pod(verdict)

    def _retrace_pod(self, recorded: RecordedDecision) -> None:
        if recorded.pod not in self._pods:
            self._add_difference(recorded, None, (_POD_DELETED,))
            return
        self._prefer_recorded_nodes([recorded])
        outcome = self._still.place(self._pods[recorded.pod], [])
        now = recorded_decision(outcome)
        if outcome.waits_for:  # the others that it waits for come next
            now = RecordedDecision(pod=recorded.pod, node=outcome.node or "")
        self._found.decisions.append(now)
        if not is_same_decision(recorded, now):
            self._undo_placement(outcome)
            because = self._describe_both_nodes(recorded, now)
            self._add_difference(recorded, now, because)
            self._apply_recorded(recorded)
        if recorded.node:
            self._placed.add(recorded.pod)

    def _next(self, left: ReplaySteps, head: RecordedDecision) -> int | None:
        """Which of the next decisions was made first: the first that explains itself, of those made at about once.

        None: no one does.
        """
        if not head.node:
            return 0
        best: dict[bytes, frozenset[str]] = {}  # pods that are alike are asked about once
        for place, verdict in enumerate(left[:MAX_CONCURRENT_DECISIONS]):
            if not isinstance(verdict, RecordedDecision) or not verdict.node or not _are_concurrent(head, verdict):
                break
            if self._explains(verdict, best):
                return place
        return None

    def _explains(self, verdict: RecordedDecision, best: dict[bytes, frozenset[str]] | None = None) -> bool:
        """Whether the cluster as it is explains a decision. `best`: nodes for pods like those asked about before."""
        pod = self._pods.get(verdict.pod)
        if pod is None or not verdict.node or verdict.pod in self._placed or not self._still.pods.serves(pod):
            return False
        known = {} if best is None else best
        likeness = _pod_signature(pod)
        if likeness not in known:
            known[likeness] = self._still.best_nodes(pod)
        return verdict.node in known[likeness]

    def _prefer_recorded_nodes(self, verdicts: Iterable[RecordedDecision]) -> None:
        """Of equally good nodes take the recorded ones."""
        self._still.preferred_nodes.update({verdict.pod: verdict.node for verdict in verdicts if verdict.node})

    def _undo_placement(self, outcome: PlacementOutcome) -> None:
        if outcome.assumed is not None:
            self._still.pods.stop_waiting(outcome.pod.uid)
            self._still.pods.unreserve_and_forget(outcome.assumed)
            self._still.cluster.remove([outcome.pod])

    def _describe_both_nodes(self, recorded: RecordedDecision, now: RecordedDecision) -> tuple[str, ...]:
        """What the engine thinks of both nodes."""
        pod = self._pods[recorded.pod]
        if not self._still.pods.serves(pod):
            return ()
        decision = self._still.dry_run(pod)
        nodes = dict.fromkeys(filter(None, (recorded.node, now.node)))
        return tuple(f"{node}: {_describe_node(decision, node)}" for node in nodes)

    # sessions ---------------------------------------------------------------------------------------------------

    def _retrace_session(self, step: list[RecordedDecision]) -> None:
        still = self._still
        for verdict in step:
            if verdict.pod not in self._pods:
                self._add_difference(verdict, None, (_POD_DELETED,))
        step = [verdict for verdict in step if verdict.pod in self._pods]
        if not step:
            return
        self._prefer_recorded_nodes(step)
        self._placed.update(verdict.pod for verdict in step if verdict.node)
        pods = [self._pods[verdict.pod] for verdict in step]
        for job in {Task(pod).job: None for pod in pods}:
            if (group := self._groups.pop(job, None)) is not None:
                still.cluster.add([group])
        still.cluster.add(pods)
        outcome = still.run_session()
        now = {verdict.pod: verdict for verdict in still.session_decisions(outcome)}
        agree = True
        for recorded in step:
            verdict = now.get(
                recorded.pod, RecordedDecision(pod=recorded.pod, engine=BATCH_ENGINE, session=still.sessions)
            )
            self._found.decisions.append(verdict)
            if not is_same_decision(recorded, verdict):
                agree = False
                self._add_difference(recorded, verdict, (f"now: {verdict.why}",) if verdict.why else ())
        if agree:
            still.cluster.apply(outcome)
            return
        for key in outcome.binds:
            assumed = still.batch.cache.pod(still.cluster.pods[key].uid)
            if assumed is not None and still.batch.cache.is_assumed(assumed.uid):
                still.batch.cache.forget(assumed)
        for recorded in step:
            self._apply_recorded(recorded)

    # both -------------------------------------------------------------------------------------------------------

    def _add_difference(
        self, recorded: RecordedDecision, now: RecordedDecision | None, because: tuple[str, ...]
    ) -> None:
        self._found.differences.append(DecisionDifference(self._numbers[id(recorded)], recorded, now, because))

    def _apply_recorded(self, recorded: RecordedDecision) -> None:
        """Go on from what was recorded."""
        if recorded.node:
            pod = self._pods[recorded.pod].bound_to(recorded.node)
            self._still.cluster.add([replace(pod, status=replace(pod.status, phase="Running"))])


def _pod_signature(pod: Pod) -> bytes:
    """What a decision about a pod can depend on, besides its name."""
    meta = pod.metadata
    return msgspec.json.encode((meta.namespace, meta.labels, meta.annotations, meta.controller, pod.spec))


def _are_concurrent(first: RecordedDecision | RecordedChange, second: RecordedDecision | RecordedChange) -> bool:
    if first.at is None or second.at is None:
        return True
    return abs(second.at - first.at) <= CONCURRENT_WINDOW


def _describe_node(decision: SchedulingDecision, node: str) -> str:
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


def _to_plain_data(verdict: RecordedDecision | None) -> Any:
    return None if verdict is None else msgspec.to_builtins(verdict)
