"""Replay of a recording: makes its decisions again and reports the ones that differ.

A recording whose decisions were made for it is repeated from its objects. A recording of a live cluster is retraced:
its pods lose their nodes, and each decision is made again on the cluster of that moment, as far as it is known. All
recorded changes of a followed cluster are applied in between. Among equally good nodes the recorded one is chosen, so
that only real differences count. After a difference the replay continues from the recorded decision. Cost: that of the
decisions.
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
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
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
from bayplan.sim.recordings.recording_file import BATCH_ENGINE, OBSERVED, RecordedChange, RecordedDecision, Recording

MAX_CONCURRENT_DECISIONS = 64
"""At most this many bindings are assumed to be in flight; the replay looks this far ahead for reordered decisions."""
_INQUEUE_STATUS = PodGroupStatus(phase="Inqueue")
_POD_DELETED = "the pod was deleted before"

ReplaySteps = list[RecordedDecision | list[RecordedDecision] | RecordedChange]
"""Remaining steps of a replay: decisions, sessions (lists of decisions) and changes."""


@dataclass(frozen=True, slots=True)
class DecisionDifference:
    """A decision that is not reproduced. `number` is its position among the recorded ones, from 1."""

    number: int
    recorded: RecordedDecision | None
    now: RecordedDecision | None
    because: tuple[str, ...] = ()
    """Arguments for each of the two nodes, one line each."""

    @property
    def pod(self) -> str:
        known_pod = self.recorded or self.now
        assert known_pod is not None
        return known_pod.pod

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
    decisions: list[RecordedDecision] = field(default_factory=list)
    """The decisions of the replay."""
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
            "replayed": [_to_plain_data(decision) for decision in self.decisions],
        }


def describe_decision(decision: RecordedDecision | None) -> str:
    """Describe a decision in one phrase."""
    if decision is None:
        return "nothing was decided"
    evictions = f", after eviction of {', '.join(decision.evicted)}" if decision.evicted else ""
    if decision.node:
        return f"{decision.node}{evictions}"
    waits = f"waits for {decision.nominated}" if decision.nominated else "waits"
    return f"{waits}{evictions}{f': {decision.why}' if decision.why else ''}"


def replay_recording(
    recording: Recording, setup: EngineSetup | None = None, *, seed: int | None = None
) -> ReplayResult:
    """Make the decisions of a recording again; `setup` and `seed` replace those of the recording.

    Nothing is bound, so no plugin writes BindRequest annotations; a reproduced decision keeps the recorded ones.
    """
    setup = setup or EngineSetup.from_header(recording.header)
    seed = recording.header.seed if seed is None else seed
    if recording.header.decisions == OBSERVED:
        result = _ObservedReplay(recording, setup, seed).run()
    else:
        result = _repeat_decisions(recording, setup, seed)
    annotations = {(each.pod, each.node): each.annotations for each in recording.decisions if each.annotations}
    result.decisions = [
        replace(now, annotations=annotations[now.pod, now.node]) if (now.pod, now.node) in annotations else now
        for now in result.decisions
    ]
    return result


def _repeat_decisions(recording: Recording, setup: EngineSetup, seed: int) -> ReplayResult:
    result = ReplayResult()
    with OfflineCluster(recording.objects, setup, now=recording.header.at, seed=seed) as offline:
        offline.preferred_nodes.update(
            {decision.pod: decision.node for decision in recording.decisions if decision.node}
        )
        result.decisions = offline.run_until_stable(pending_pods(recording.objects, offline)).decisions
    for number, (recorded, now) in enumerate(zip_longest(recording.decisions, result.decisions), 1):
        if recorded is None or now is None or recorded.pod != now.pod or not is_same_decision(recorded, now):
            result.differences.append(
                DecisionDifference(number, recorded, now, _recorded_and_new_reasons(recorded, now))
            )
    return result


def _recorded_and_new_reasons(recorded: RecordedDecision | None, now: RecordedDecision | None) -> tuple[str, ...]:
    return tuple(
        f"{when}: {decision.why}"
        for when, decision in (("recorded", recorded), ("now", now))
        if decision and decision.why
    )


class _ObservedReplay:
    """Retraces the observed decisions of a recording, and the changes between them, one after another."""

    def __init__(self, recording: Recording, setup: EngineSetup, seed: int) -> None:
        self._recording = recording
        self._numbers = {id(decision): number for number, decision in enumerate(recording.decisions, 1)}
        is_followed = recording.header.until is not None
        decided = {decision.pod for decision in recording.decisions}
        pods = [item for item in recording.objects if isinstance(item, Pod)]
        released = [pod for pod in pods if (not pod.spec.node_name if is_followed else pod.key in decided)]
        self._pods = {pod.key: without_node(pod) for pod in released}
        self._placed: set[str] = set()
        self._result = ReplayResult()
        self._groups: dict[str, PodGroup] = {}  # groups of pods without a decision so far
        jobs = {Task(pod).job for pod in self._pods.values()}
        before: list[KubeObject] = []
        for item in recording.objects:
            if isinstance(item, PodGroup) and item.key in jobs:
                self._groups[item.key] = replace(item, status=_INQUEUE_STATUS)
            elif not isinstance(item, Pod) or (item.spec.node_name and item.key not in self._pods):
                before.append(item)
        self._offline = OfflineCluster(before, setup, now=recording.header.at, seed=seed)

    def run(self) -> ReplayResult:
        with self._offline:
            steps_left = self._steps()
            while steps_left:
                match steps_left[0]:
                    case RecordedChange() as change:
                        self._apply_or_defer_change(steps_left, change)
                    case RecordedDecision() as decision:
                        self._retrace_next(steps_left, decision)
                    case session:
                        del steps_left[0]
                        self._retrace_session(session)
        return self._result

    def _steps(self) -> ReplaySteps:
        """Decisions and changes in order; decisions of one session are one step."""
        steps: ReplaySteps = []
        known_pod = set(self._pods)
        for each in self._recording.decisions_and_changes():
            if isinstance(each, RecordedChange):
                known_pod.add(each.item.key)
                steps.append(each)
            elif each.pod not in known_pod:
                self._add_difference(each, None, ("the recording holds no such pod",))
            elif each.engine != BATCH_ENGINE:
                steps.append(each)
            elif steps and isinstance(last := steps[-1], list) and last[0].session == each.session:
                last.append(each)
            else:
                steps.append([each])
        return steps

    # Changes

    def _apply_or_defer_change(self, steps_left: ReplaySteps, change: RecordedChange) -> None:
        """Apply the change, or first retrace the next decision if it was made before the scheduler saw the change."""
        for place, step in enumerate(steps_left):
            if isinstance(step, RecordedChange):
                continue
            if isinstance(step, RecordedDecision) and _are_concurrent(change, step) and self._explains(step):
                del steps_left[place]
                self._retrace_pod(step)
                return
            break
        del steps_left[0]
        self._change(change)

    def _change(self, change: RecordedChange) -> None:
        item, cluster = change.item, self._offline.cluster
        if isinstance(item, Pod):
            self._change_pod(item, deleted=change.deleted)
        elif isinstance(item, PodGroup) and not change.deleted:
            entered = self._offline.batch.cache.catalog.table(PodGroup).get(item.key)
            if entered is None:
                self._groups[item.key] = replace(item, status=_INQUEUE_STATUS)
            else:
                cluster.add([replace(item, status=entered.status)])
        elif not change.deleted:
            cluster.add([item])
        elif not isinstance(item, Node) or item.name in self._offline.pods.snapshot().nodes.index:
            cluster.remove([item])

    def _change_pod(self, pod: Pod, *, deleted: bool) -> None:
        cluster = self._offline.cluster
        if deleted or pod.status.phase in ENDED_PHASES:
            self._pods.pop(pod.key, None)
            self._placed.discard(pod.key)
            if (known_pod := cluster.pods.get(pod.key)) is not None:
                cluster.remove([known_pod])
        elif pod.spec.node_name:
            cluster.add([pod])
        elif pod.key not in self._placed:
            self._pods[pod.key] = without_node(pod)

    # Pod engine

    def _retrace_next(self, steps_left: ReplaySteps, head: RecordedDecision) -> None:
        """Retrace the next decision, or first apply a change that may explain it and was recorded slightly too late."""
        place = self._next(steps_left, head)
        if place is None:
            change_index = next(
                (
                    place
                    for place, step in enumerate(steps_left[:MAX_CONCURRENT_DECISIONS])
                    if isinstance(step, RecordedChange)
                ),
                0,
            )
            if isinstance(change := steps_left[change_index], RecordedChange) and _are_concurrent(head, change):
                del steps_left[change_index]
                self._change(change)
                return
        decision = steps_left.pop(place or 0)
        assert isinstance(decision, RecordedDecision), "only decisions about single pods can be reordered"
        self._retrace_pod(decision)

    def _retrace_pod(self, recorded: RecordedDecision) -> None:
        if recorded.pod not in self._pods:
            self._add_difference(recorded, None, (_POD_DELETED,))
            return
        self._prefer_recorded_nodes([recorded])
        outcome = self._offline.place(self._pods[recorded.pod], [])
        now = recorded_decision(outcome)
        if outcome.waits_for:  # the pods for which it waits at Permit come next
            now = RecordedDecision(pod=recorded.pod, node=outcome.node or "")
        self._result.decisions.append(now)
        if not is_same_decision(recorded, now):
            self._undo_placement(outcome)
            reasons = self._describe_both_nodes(recorded, now)
            self._add_difference(recorded, now, reasons)
            self._apply_recorded(recorded)
        if recorded.node:
            self._placed.add(recorded.pod)

    def _next(self, steps_left: ReplaySteps, head: RecordedDecision) -> int | None:
        """Index of the first of several concurrent decisions that the current cluster explains; None if none is."""
        if not head.node:
            return 0
        best: dict[bytes, frozenset[str]] = {}  # best nodes by pod signature: equal pods are evaluated once
        for place, decision in enumerate(steps_left[:MAX_CONCURRENT_DECISIONS]):
            if not isinstance(decision, RecordedDecision) or not decision.node or not _are_concurrent(head, decision):
                break
            if self._explains(decision, best):
                return place
        return None

    def _explains(self, decision: RecordedDecision, best: dict[bytes, frozenset[str]] | None = None) -> bool:
        """Whether the current cluster explains a decision. `best` caches the best nodes by pod signature."""
        pod = self._pods.get(decision.pod)
        if pod is None or not decision.node or decision.pod in self._placed or not self._offline.pods.serves(pod):
            return False
        known_pod = {} if best is None else best
        signature = _pod_signature(pod)
        if signature not in known_pod:
            known_pod[signature] = self._offline.best_nodes(pod)
        return decision.node in known_pod[signature]

    def _prefer_recorded_nodes(self, decisions: Iterable[RecordedDecision]) -> None:
        """Prefer the recorded nodes among equally good ones."""
        self._offline.preferred_nodes.update({decision.pod: decision.node for decision in decisions if decision.node})

    def _undo_placement(self, outcome: PlacementOutcome) -> None:
        if outcome.assumed is not None:
            self._offline.pods.stop_waiting(outcome.pod.uid)
            outcome.assumed.unreserve_and_forget(self._offline.pods.cache)
            self._offline.cluster.remove([outcome.pod])

    def _describe_both_nodes(self, recorded: RecordedDecision, now: RecordedDecision) -> tuple[str, ...]:
        pod = self._pods[recorded.pod]
        if not self._offline.pods.serves(pod):
            return ()
        decision = self._offline.dry_run(pod)
        nodes = dict.fromkeys(filter(None, (recorded.node, now.node)))
        return tuple(f"{node}: {_describe_node(decision, node)}" for node in nodes)

    # Sessions

    def _retrace_session(self, step: list[RecordedDecision]) -> None:
        offline = self._offline
        for decision in step:
            if decision.pod not in self._pods:
                self._add_difference(decision, None, (_POD_DELETED,))
        step = [decision for decision in step if decision.pod in self._pods]
        if not step:
            return
        self._prefer_recorded_nodes(step)
        self._placed.update(decision.pod for decision in step if decision.node)
        pods = [self._pods[decision.pod] for decision in step]
        for job in {Task(pod).job: None for pod in pods}:
            if (group := self._groups.pop(job, None)) is not None:
                offline.cluster.add([group])
        offline.cluster.add(pods)
        outcome = offline.run_session()
        now = {decision.pod: decision for decision in offline.session_decisions(outcome)}
        all_equal = True
        for recorded in step:
            decision = now.get(
                recorded.pod, RecordedDecision(pod=recorded.pod, engine=BATCH_ENGINE, session=offline.sessions)
            )
            self._result.decisions.append(decision)
            if not is_same_decision(recorded, decision):
                all_equal = False
                self._add_difference(recorded, decision, (f"now: {decision.why}",) if decision.why else ())
        if all_equal:
            offline.cluster.apply(outcome)
            return
        for key in outcome.binds:
            assumed = offline.batch.cache.pod(offline.cluster.pods[key].uid)
            if assumed is not None and offline.batch.cache.is_assumed(assumed.uid):
                offline.batch.cache.forget(assumed)
        for recorded in step:
            self._apply_recorded(recorded)

    # Common

    def _add_difference(
        self, recorded: RecordedDecision, now: RecordedDecision | None, reasons: tuple[str, ...]
    ) -> None:
        self._result.differences.append(DecisionDifference(self._numbers[id(recorded)], recorded, now, reasons))

    def _apply_recorded(self, recorded: RecordedDecision) -> None:
        if recorded.node:
            pod = self._pods[recorded.pod].bound_to(recorded.node)
            self._offline.cluster.add([replace(pod, status=replace(pod.status, phase="Running"))])


def _pod_signature(pod: Pod) -> bytes:
    """Everything that a decision about a pod can depend on, except its name."""
    meta = pod.metadata
    return msgspec.json.encode((meta.namespace, meta.labels, meta.annotations, meta.controller, pod.spec))


def _are_concurrent(first: RecordedDecision | RecordedChange, second: RecordedDecision | RecordedChange) -> bool:
    if first.at is None or second.at is None:
        return True
    return abs(second.at - first.at) <= CONCURRENT_WINDOW


def _describe_node(decision: SchedulingDecision, node: str) -> str:
    """The rejection of a node in a decision, or its score by plugin."""
    diagnosis = decision.diagnosis
    if diagnosis is None or node not in diagnosis.names:
        return "there is no such node" if diagnosis is not None else decision.message
    status = diagnosis.status(diagnosis.names.index(node))
    if not status.ok:
        return status.message
    if decision.scores is None or decision.nodes is None:
        return "it fits"
    place = decision.nodes.names.index(node)
    by_plugin = " ".join(f"{plugin}={int(scores[place])}" for plugin, scores in decision.scores.by_plugin.items())
    return f"{int(decision.scores.total[place])} ({by_plugin})"


def _to_plain_data(decision: RecordedDecision | None) -> Any:
    return None if decision is None else msgspec.to_builtins(decision)
