"""DaemonSet controller: keeps a pod on every node that should have one, including new and changed nodes.

A sync walks the nodes and the set's pods once, and yields to other tasks on the way. A node change enqueues only the
sets whose decision for the node changes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from bayplan.controllers.core.api_types import (
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    NODES,
    ControllerRevision,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.int_or_percent import scaled_value
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL, latest_revision, revisions_to_delete
from bayplan.controllers.workloads.daemon_pods import NodeDecisions, daemon_pod, node_of
from bayplan.controllers.workloads.owned_pods import OwnedPodsController
from bayplan.objects.core import Node

BURST = 250
_NODES_PER_YIELD = 500
OnNodes = Mapping[str, list[PodFields]]


class DaemonSetController(OwnedPodsController):
    name = "daemonset-controller"
    resource = DAEMON_SETS

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.nodes = self.informer(NODES, Node)
        self.revisions = self.informer(CONTROLLER_REVISIONS, ControllerRevision)
        self._decisions: dict[str, NodeDecisions] = {}
        self.nodes.add_handler(self._on_node)

    @classmethod
    def component(cls) -> str:
        return "daemonset-controller"

    # Event handlers.

    def _on_owner(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None and old is not None:
            self._decisions.pop(old.uid, None)
        super()._on_owner(old, new)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        for each in self.owners.all():
            decisions = self._decisions_for(each)
            before = decisions.decide(old) if old is not None else None
            after = decisions.decide(new) if new is not None else None
            if new is None and old is not None:
                decisions.forget(old.name)
            if before != after:
                self.enqueue(None, each)

    def _decisions_for(self, found: UntypedObject) -> NodeDecisions:
        decisions = self._decisions.get(found.uid)
        if decisions is None or decisions.generation != found.metadata.generation:
            decisions = self._decisions[found.uid] = NodeDecisions(found)
        return decisions

    # Sync.

    async def sync(self, key: Key) -> float | None:
        found = self.owners.get(*key)
        if found is None:
            return None
        revisions = self.revisions.owned_by(found.uid)
        latest = await latest_revision(self.client, DAEMON_SETS, found, revisions, HASH_LABEL)
        pods = await self.claim_pods(found)
        short = latest.metadata.labels.get(HASH_LABEL, "")
        on_nodes: dict[str, list[PodFields]] = defaultdict(list)
        for pod in pods:
            on_nodes[node_of(pod)].append(pod)
        if self.expectations.satisfied(found.uid) and not found.terminating:
            await self._manage(found, on_nodes, short)
            if self.expectations.satisfied(found.uid):
                await self._update(found, on_nodes, short)
            living = {latest.name} | {f"{found.name}-{pod.labels.get(HASH_LABEL, '')}" for pod in pods}
            for each in revisions_to_delete(revisions, living, int(found.spec.get("revisionHistoryLimit", 10))):
                await self.delete(CONTROLLER_REVISIONS, each)
        status, requeue_after_s = await self._status(found, on_nodes, short)
        await self.write_status(DAEMON_SETS, found, status)
        return requeue_after_s

    async def _manage(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> None:
        decisions, surges = self._decisions_for(found), _surge_and_unavailable(found, 0)[0] > 0
        missing: list[str] = []
        to_delete: list[PodFields] = []
        for index, node in enumerate(self.nodes.all()):
            decision, pods = decisions.decide(node), on_nodes.get(node.name) or []
            if decision.should_run and not pods:
                missing.append(node.name)
            elif decision.should_continue_running:
                to_delete += self._finished_pods(found, node.name, pods)
                running = [pod for pod in pods if pod.active]
                if not surges:
                    to_delete += sorted(running, key=_age)[1:]
            else:
                to_delete += [pod for pod in pods if not pod.terminating]
            if index % _NODES_PER_YIELD == _NODES_PER_YIELD - 1:
                await asyncio.sleep(0)
        for name, pods in on_nodes.items():
            if name and self.nodes.get("", name) is None:
                to_delete += [pod for pod in pods if not pod.terminating and not pod.spec.node_name]
        await self._delete_and_create(found, missing, to_delete, short)

    async def _delete_and_create(
        self, found: UntypedObject, missing: Sequence[str], to_delete: Sequence[PodFields], short: str
    ) -> None:
        if to_delete:
            await self.delete_pods(found, to_delete[:BURST])
        if missing:
            await self.create_pods(found, [daemon_pod(found, name, short) for name in missing[:BURST]])

    def _finished_pods(self, found: UntypedObject, node_name: str, pods: Sequence[PodFields]) -> list[PodFields]:
        """Finished pods, which a DaemonSet never should have: they are deleted and recreated."""
        finished = [pod for pod in pods if pod.finished and not pod.terminating]
        for pod in finished:
            word = pod.status.phase
            note = f"Found {word.lower()} daemon pod {pod.namespace}/{pod.name} on node {node_name}, will try to "
            note += "kill it" if word == "Failed" else "delete it"
            self.record_event(DAEMON_SETS, found, f"{word}DaemonPod", note, warning=word == "Failed")
        return finished

    # Updates.

    async def _update(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> None:
        strategy = found.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        decisions = self._decisions_for(found)
        node_names = [node.name for node in self.nodes.all() if decisions.decide(node).should_run]
        surge, unavailable = _surge_and_unavailable(found, len(node_names))
        pairs = {name: _old_and_new(on_nodes.get(name) or (), short) for name in node_names}
        if surge:
            await self._surge(found, pairs, surge, short)
        else:
            await self._replace(found, pairs, unavailable)

    async def _replace(self, found: UntypedObject, pairs: _Pairs, limit: int) -> None:
        now, min_ready_s = self.clock.now(), int(found.spec.get("minReadySeconds") or 0)
        unavailable_count = 0
        broken: list[PodFields] = []
        healthy: list[PodFields] = []
        for old, new in pairs.values():
            if new is not None or old is None:
                unavailable_count += new is None or not _available(new, min_ready_s, now)
            elif old.terminating:
                unavailable_count += 1
            else:
                (healthy if _available(old, min_ready_s, now) else broken).append(old)
        # Replacing an unavailable pod makes no further pod unavailable.
        to_replace = [*broken, *healthy[: max(0, limit - unavailable_count - len(broken))]]
        if to_replace:
            await self.delete_pods(found, to_replace[:BURST])

    async def _surge(self, found: UntypedObject, pairs: _Pairs, limit: int, short: str) -> None:
        now, min_ready_s = self.clock.now(), int(found.spec.get("minReadySeconds") or 0)
        extra = sum(1 for old, new in pairs.values() if old is not None and new is not None)
        to_delete, missing = [], []
        for name, (old, new) in pairs.items():
            if old is None:
                continue
            if new is not None:
                if _available(new, min_ready_s, now) and not old.terminating:
                    to_delete.append(old)
            elif not _available(old, min_ready_s, now) or extra < limit:
                missing.append(name)
                extra += 1
        await self._delete_and_create(found, missing, to_delete, short)

    # Status.

    async def _status(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> tuple[Tree, float | None]:
        decisions, now = self._decisions_for(found), self.clock.now()
        min_ready_s = int(found.spec.get("minReadySeconds") or 0)
        desired = current = misscheduled = ready = updated = available = 0
        waits: list[float] = []
        for index, node in enumerate(self.nodes.all()):
            pods = sorted(on_nodes.get(node.name) or (), key=_age)
            if not decisions.decide(node).should_run:
                misscheduled += bool(pods)
                continue
            desired += 1
            if pods:
                current += 1
                pod = pods[-1] if any(each.ready for each in pods[-1:]) else pods[0]
                wait_s = pod.available_in_s(min_ready_s, now)
                ready += pod.ready
                available += wait_s == 0.0
                waits += [wait_s] if wait_s else []
                updated += _is_new(pods[-1], short)
            if index % _NODES_PER_YIELD == _NODES_PER_YIELD - 1:
                await asyncio.sleep(0)
        numbers = {"updatedNumberScheduled": updated, "numberAvailable": available}
        numbers["numberUnavailable"] = desired - available
        status: Tree = {
            "desiredNumberScheduled": desired,
            "currentNumberScheduled": current,
            "numberMisscheduled": misscheduled,
            "numberReady": ready,
            **{key: value for key, value in numbers.items() if value},
            "observedGeneration": found.metadata.generation,
        }
        unchanged: Tree = {key: found.status[key] for key in ("conditions", "collisionCount") if key in found.status}
        return {**status, **unchanged}, min(waits) if waits else None


_Pairs = Mapping[str, tuple[PodFields | None, PodFields | None]]


def _age(pod: PodFields) -> tuple[str, str]:
    return str(pod.metadata.creation_timestamp), pod.name


def _available(pod: PodFields, min_ready_s: int, now: datetime) -> bool:
    return pod.active and pod.available_in_s(min_ready_s, now) == 0.0


def _is_new(pod: PodFields, short: str) -> bool:
    return pod.labels.get(HASH_LABEL) == short


def _old_and_new(pods: Sequence[PodFields], short: str) -> tuple[PodFields | None, PodFields | None]:
    old = new = None
    for pod in sorted(pods, key=_age):
        if pod.finished:
            continue
        if not _is_new(pod, short):
            old = pod
        elif not pod.terminating:
            new = pod
    return old, new


def _surge_and_unavailable(found: UntypedObject, node_names: int) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable; at least one of them is positive."""
    rolling_update = (found.spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    if not node_names:
        return int(bool(rolling_update.get("maxSurge")) and rolling_update["maxSurge"] not in (0, "0%")), 0
    surge = scaled_value(rolling_update.get("maxSurge", 0), node_names, round_up=True)
    unavailable = scaled_value(rolling_update.get("maxUnavailable", 1), node_names, round_up=True)
    return surge, unavailable if surge or unavailable else 1
