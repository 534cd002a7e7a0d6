"""Does every node that should have one have a DaemonSet's pod? Also new nodes, and nodes that change.

A sync walks over the nodes and the set's pods once, with a turn for others on the way; a node's change wakes only the
sets that want something else of it than before.
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
    """Keeps a pod on every node."""

    name = "daemonset-controller"
    resource = DAEMON_SETS

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
        self.nodes = self.informer(NODES, Node)
        self.revisions = self.informer(CONTROLLER_REVISIONS, ControllerRevision)
        self._wishes: dict[str, NodeDecisions] = {}
        self.nodes.add_handler(self._on_node)

    @classmethod
    def component(cls) -> str:
        return "daemonset-controller"

    # What is heard.

    def _on_owner(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None and old is not None:
            self._wishes.pop(old.uid, None)
        super()._on_owner(old, new)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        for each in self.owners.all():
            wishes = self._wishes_of(each)
            before = wishes.decide(old) if old is not None else None
            after = wishes.decide(new) if new is not None else None
            if new is None and old is not None:
                wishes.forget(old.name)
            if before != after:
                self.enqueue(None, each)

    def _wishes_of(self, found: UntypedObject) -> NodeDecisions:
        known = self._wishes.get(found.uid)
        if known is None or known.generation != found.metadata.generation:
            known = self._wishes[found.uid] = NodeDecisions(found)
        return known

    # What is done.

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
        status, again_s = await self._status(found, on_nodes, short)
        await self.write_status(DAEMON_SETS, found, status)
        return again_s

    async def _manage(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> None:
        wishes, surges = self._wishes_of(found), _surge_and_unavailable(found, 0)[0] > 0
        missing: list[str] = []
        doomed: list[PodFields] = []
        for index, node in enumerate(self.nodes.all()):
            answer, pods = wishes.decide(node), on_nodes.get(node.name) or []
            if answer.should_run and not pods:
                missing.append(node.name)
            elif answer.should_continue_running:
                doomed += self._ended(found, node.name, pods)
                running = [pod for pod in pods if pod.active]
                if not surges:
                    doomed += sorted(running, key=_age)[1:]
            else:
                doomed += [pod for pod in pods if not pod.terminating]
            if index % _NODES_PER_YIELD == _NODES_PER_YIELD - 1:
                await asyncio.sleep(0)
        for name, pods in on_nodes.items():
            if name and self.nodes.get("", name) is None:
                doomed += [pod for pod in pods if not pod.terminating and not pod.spec.node_name]
        await self._carry_out(found, missing, doomed, short)

    async def _carry_out(
        self, found: UntypedObject, missing: Sequence[str], doomed: Sequence[PodFields], short: str
    ) -> None:
        if doomed:
            await self.delete_pods(found, doomed[:BURST])
        if missing:
            await self.create_pods(found, [daemon_pod(found, name, short) for name in missing[:BURST]])

    def _ended(self, found: UntypedObject, node_name: str, pods: Sequence[PodFields]) -> list[PodFields]:
        """Pods that have ended, which never should: they make room for another."""
        ended = [pod for pod in pods if pod.finished and not pod.terminating]
        for pod in ended:
            word = pod.status.phase
            note = f"Found {word.lower()} daemon pod {pod.namespace}/{pod.name} on node {node_name}, will try to "
            note += "kill it" if word == "Failed" else "delete it"
            self.record_event(DAEMON_SETS, found, f"{word}DaemonPod", note, warning=word == "Failed")
        return ended

    # Updating.

    async def _update(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> None:
        strategy = found.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        wishes = self._wishes_of(found)
        wanting = [node.name for node in self.nodes.all() if wishes.decide(node).should_run]
        surge, unavailable = _surge_and_unavailable(found, len(wanting))
        pairs = {name: _old_and_new(on_nodes.get(name) or (), short) for name in wanting}
        if surge:
            await self._surge(found, pairs, surge, short)
        else:
            await self._replace(found, pairs, unavailable)

    async def _replace(self, found: UntypedObject, pairs: _Pairs, most: int) -> None:
        now, min_ready_s = self.clock.now(), int(found.spec.get("minReadySeconds") or 0)
        down = 0
        broken: list[PodFields] = []
        healthy: list[PodFields] = []
        for old, new in pairs.values():
            if new is not None or old is None:
                down += new is None or not _available(new, min_ready_s, now)
            elif old.terminating:
                down += 1
            else:
                (healthy if _available(old, min_ready_s, now) else broken).append(old)
        # What does not work anyway costs nobody anything.
        chosen = [*broken, *healthy[: max(0, most - down - len(broken))]]
        if chosen:
            await self.delete_pods(found, chosen[:BURST])

    async def _surge(self, found: UntypedObject, pairs: _Pairs, most: int, short: str) -> None:
        now, min_ready_s = self.clock.now(), int(found.spec.get("minReadySeconds") or 0)
        extra = sum(1 for old, new in pairs.values() if old is not None and new is not None)
        doomed, missing = [], []
        for name, (old, new) in pairs.items():
            if old is None:
                continue
            if new is not None:
                if _available(new, min_ready_s, now) and not old.terminating:
                    doomed.append(old)
            elif not _available(old, min_ready_s, now) or extra < most:
                missing.append(name)
                extra += 1
        await self._carry_out(found, missing, doomed, short)

    # Telling.

    async def _status(self, found: UntypedObject, on_nodes: OnNodes, short: str) -> tuple[Tree, float | None]:
        wishes, now = self._wishes_of(found), self.clock.now()
        min_ready_s = int(found.spec.get("minReadySeconds") or 0)
        desired = current = stray = ready = updated = available = 0
        waits: list[float] = []
        for index, node in enumerate(self.nodes.all()):
            pods = sorted(on_nodes.get(node.name) or (), key=_age)
            if not wishes.decide(node).should_run:
                stray += bool(pods)
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
            "numberMisscheduled": stray,
            "numberReady": ready,
            **{key: value for key, value in numbers.items() if value},
            "observedGeneration": found.metadata.generation,
        }
        kept: Tree = {key: found.status[key] for key in ("conditions", "collisionCount") if key in found.status}
        return {**status, **kept}, min(waits) if waits else None


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


def _surge_and_unavailable(found: UntypedObject, wanting: int) -> tuple[int, int]:
    """How many pods too many there may be, and how many too few: one of the two at least."""
    told = (found.spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    if not wanting:
        return int(bool(told.get("maxSurge")) and told["maxSurge"] not in (0, "0%")), 0
    surge = scaled_value(told.get("maxSurge", 0), wanting, round_up=True)
    unavailable = scaled_value(told.get("maxUnavailable", 1), wanting, round_up=True)
    return surge, unavailable if surge or unavailable else 1
