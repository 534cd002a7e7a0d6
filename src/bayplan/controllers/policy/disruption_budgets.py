"""Disruption controller: keeps the status of PodDisruptionBudgets.

The API server's eviction subresource reads the status and decrements it; the controller recomputes it when pods change.
A sync walks the pods of the budget's namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from bayplan.controllers.core.api_types import (
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.int_or_percent import scaled_value
from bayplan.controllers.core.owner_refs import selector_of
from bayplan.controllers.core.shared_informers import Key, SharedIndexInformer, SharedInformerFactory
from bayplan.objects.meta import format_time

DISRUPTION_TIMEOUT_S = 120.0
"""A granted eviction whose deletion is not seen after this time counts as not happening."""


class DisruptionController(Controller):
    """Keeps the status of PodDisruptionBudgets."""

    name = "disruption-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.budgets = self.informer(POD_DISRUPTION_BUDGETS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self._scaled_informers: Mapping[str, SharedIndexInformer[UntypedObject]] = {
            "Deployment": self.informer(DEPLOYMENTS, UntypedObject),
            "ReplicaSet": self.informer(REPLICA_SETS, UntypedObject),
            "StatefulSet": self.informer(STATEFUL_SETS, UntypedObject),
        }
        self.budgets.add_handler(self.enqueue)
        self.pods.add_handler(self._on_pod)
        for informer in self._scaled_informers.values():
            informer.add_handler(self._on_scale)

    @classmethod
    def component(cls) -> str:
        return "controllermanager"

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        if old is not None and new is not None and _same_for_budgets(old, new):
            return
        for each in self.budgets.by_namespace(pod.namespace):
            matcher = selector_of(each)
            if matcher.matches(pod.labels) or (old is not None and matcher.matches(old.labels)):
                self.enqueue(None, each)

    def _on_scale(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if old is None or new is None or old.spec.get("replicas") == new.spec.get("replicas"):
            return
        for each in self.budgets.by_namespace(new.namespace):
            self.enqueue(None, each)

    async def sync(self, key: Key) -> float | None:
        found = self.budgets.get(*key)
        if found is None:
            return None
        matcher = selector_of(found)
        pods = [pod for pod in self.pods.by_namespace(found.namespace) if matcher.matches(pod.labels)]
        if not pods:
            self.record_event(POD_DISRUPTION_BUDGETS, found, "NoPods", "No matching pods found")
        expected, desired = self._expected_pods(found, pods)
        now = self.clock.now()
        disrupted, requeue_after_s = disrupted_pods(found, pods, now)
        status = status_of(found, pods, expected, desired, disrupted, now)
        await self.write_status(POD_DISRUPTION_BUDGETS, found, status)
        return requeue_after_s

    def _expected_pods(self, found: UntypedObject, pods: Sequence[PodFields]) -> tuple[int, int]:
        """Return the expected number of pods, and the minimum of healthy pods."""
        max_unavailable, min_available = found.spec.get("maxUnavailable"), found.spec.get("minAvailable")
        if max_unavailable is not None:
            expected = self._scale(found, pods)
            return expected, max(0, expected - scaled_value(max_unavailable, expected, round_up=True))
        if isinstance(min_available, str):
            expected = self._scale(found, pods)
            return expected, scaled_value(min_available, expected, round_up=True)
        return len(pods), int(min_available or 0)

    def _scale(self, found: UntypedObject, pods: Sequence[PodFields]) -> int:
        """Sum of the replicas of the pods' owners; pods without an owner are not counted."""
        owners: dict[str, int] = {}
        unmanaged: list[str] = []
        for pod in pods:
            owner = self._owner(pod)
            if owner is None:
                unmanaged.append(pod.name)
            else:
                owners[owner.uid] = int(owner.spec.get("replicas", 1))
        if unmanaged:
            note = f"Pods selected by this PodDisruptionBudget (selector: {selector_text(found)}) were found to be "
            note += "unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in "
            note += 'undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to '
            note += "an integer value."
            self.record_event(POD_DISRUPTION_BUDGETS, found, "UnmanagedPods", note, warning=True)
        return sum(owners.values())

    def _owner(self, pod: PodFields) -> UntypedObject | None:
        """Topmost owner with a scale, for example the Deployment of a ReplicaSet."""
        reference, found = pod.metadata.controller, None
        while reference is not None and (informer := self._scaled_informers.get(reference.kind)) is not None:
            above = informer.get(pod.namespace, reference.name)
            if above is None or above.uid != reference.uid:
                return found
            found, reference = above, above.metadata.controller
        return found


def _same_for_budgets(old: PodFields, new: PodFields) -> bool:
    """Whether a pod change is irrelevant for budgets."""
    return (old.ready, old.terminating, old.labels, old.status.phase) == (
        new.ready,
        new.terminating,
        new.labels,
        new.status.phase,
    )


def disrupted_pods(
    found: UntypedObject, pods: Sequence[PodFields], now: datetime
) -> tuple[dict[str, str], float | None]:
    """Pods with a granted eviction and no deletion yet, and the seconds until the first of them expires."""
    by_name = {pod.name: pod for pod in pods}
    remaining: dict[str, str] = {}
    waits: list[float] = []
    for name, moment in (found.status.get("disruptedPods") or {}).items():
        pod = by_name.get(name)
        left_s = (datetime.fromisoformat(moment) + timedelta(seconds=DISRUPTION_TIMEOUT_S) - now).total_seconds()
        if pod is None or pod.terminating or left_s <= 0:
            continue
        remaining[name] = moment
        waits.append(left_s)
    return remaining, min(waits) if waits else None


def status_of(
    found: UntypedObject,
    pods: Sequence[PodFields],
    expected: int,
    desired: int,
    disrupted: Mapping[str, str],
    now: datetime,
) -> Tree:
    healthy = sum(1 for pod in pods if pod.ready and not pod.terminating and pod.name not in disrupted)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    status: Tree = {
        "observedGeneration": found.metadata.generation,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
    }
    if disrupted:
        status["disruptedPods"] = dict(disrupted)
    return {**status, "conditions": _conditions(found, allowed=allowed > 0, now=now)}


def _conditions(found: UntypedObject, *, allowed: bool, now: datetime) -> list[Tree]:
    condition = {
        "type": "DisruptionAllowed",
        "status": "True" if allowed else "False",
        "reason": "SufficientPods" if allowed else "InsufficientPods",
        "message": "",
        "observedGeneration": found.metadata.generation,
    }
    before: list[Tree] = found.status.get("conditions") or []
    previous = next((each for each in before if each["type"] == "DisruptionAllowed"), None)
    same = previous is not None and previous["status"] == condition["status"]
    since = previous["lastTransitionTime"] if same and previous is not None else format_time(now)
    other_conditions = [each for each in before if each["type"] != "DisruptionAllowed"]
    return [*other_conditions, {**condition, "lastTransitionTime": since}]


def selector_text(found: UntypedObject) -> str:
    labels = (found.spec.get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
