"""Volumes: each is given to one claim, is reachable from the node of its pod, and limits hold."""

from __future__ import annotations

from chaos.invariants.base import Checker, Found
from chaos.objects import (
    Tree,
    is_deleted,
    key,
    name,
    namespace,
    node_of,
    occupies,
    spec,
    uid,
    volume_claims_of,
    volume_reaches,
)
from chaos.record import Change, Record

_SETTLE_S = 5.0


class VolumesOnce(Checker):
    """A PersistentVolume that belongs to a claim is not given to another one."""

    name = "volume-twice"

    def on_change(self, change: Change) -> Found:
        if change.kind != "PersistentVolume" or change.old is None or change.new is None:
            return
        before, after = claim_uid(change.old), claim_uid(change.new)
        self.checks += bool(after)
        if before and after and before != after and self.world.record.get("PersistentVolumeClaim", before):
            text = f"volume {name(change.new)} was taken from claim {before} and given to {after}"
            yield self.violation(change.at_s, text, uid(change.new), before, after)


class ExclusiveClaims(Checker):
    """A ReadWriteOncePod claim has one pod at a time, and CSI limits of nodes hold."""

    name = "volume-limits"

    def on_change(self, change: Change) -> Found:
        if not change.is_binding or change.new is None or not volume_claims_of(change.new):
            return
        self.checks += 1
        pod, record = change.new, self.world.record
        for each in exclusive_claims(record, pod):
            users = [other for other in pods_using(record, namespace(pod), each) if uid(other) != uid(pod)]
            for other in users:
                text = f"pods {key(pod)} and {key(other)} both use the ReadWriteOncePod claim {each}"
                yield self.violation(change.at_s, text, uid(pod), uid(other))
        for driver, used, limit in attached(record, node_of(pod)):
            if len(used) > limit:
                text = f"node {node_of(pod)} has {len(used)} volumes of {driver}, its limit is {limit}: {sorted(used)}"
                yield self.violation(change.at_s, text, uid(pod))


class VolumesOfBoundPods(Checker):
    """A pod that is bound has its volumes, and can use them on its node."""

    name = "volume-of-bound-pod"

    def on_change(self, change: Change) -> Found:
        if change.is_binding and change.new is not None and volume_claims_of(change.new):
            pod_uid, at_s = uid(change.new), change.at_s + _SETTLE_S
            self.later(at_s, lambda: self._judge(pod_uid, at_s))
        return
        yield

    def _judge(self, pod_uid: str, at_s: float) -> Found:
        record = self.world.record
        pod = record.get("Pod", pod_uid)
        if pod is None or not occupies(pod) or is_deleted(pod):
            return
        self.checks += 1
        node = record.named("Node", node_of(pod))
        for each in volume_claims_of(pod):
            claim = record.named("PersistentVolumeClaim", f"{namespace(pod)}/{each}")
            volume = volume_of(record, claim)
            if claim is None or volume is None or claim_uid(volume) != uid(claim):
                text = f"pod {key(pod)} is bound, and its claim {each} has no volume"
                yield self.violation(at_s, text, pod_uid, *(uid(found) for found in (claim, volume) if found))
            elif node is not None and not volume_reaches(volume, node):
                text = f"pod {key(pod)} is on {name(node)}, where volume {name(volume)} of claim {each} is not"
                yield self.violation(at_s, text, pod_uid, uid(claim), uid(volume))

    def on_calm(self, now_s: float) -> Found:
        for each in self.world.record.all("Pod"):
            if volume_claims_of(each):
                yield from self._judge(uid(each), now_s)


def claim_uid(volume: Tree) -> str:
    """Uid of the claim to which a volume was given."""
    return str((spec(volume).get("claimRef") or {}).get("uid") or "")


def volume_of(record: Record, claim: Tree | None) -> Tree | None:
    """The volume that the claim names."""
    if claim is None or not spec(claim).get("volumeName"):
        return None
    return record.named("PersistentVolume", spec(claim)["volumeName"])


def exclusive_claims(record: Record, pod: Tree) -> list[str]:
    """Names of the pod's ReadWriteOncePod claims."""
    found = []
    for each in volume_claims_of(pod):
        claim = record.named("PersistentVolumeClaim", f"{namespace(pod)}/{each}")
        if claim is not None and "ReadWriteOncePod" in spec(claim).get("accessModes", ()):
            found.append(each)
    return found


def pods_using(record: Record, in_namespace: str, claim: str) -> list[Tree]:
    """Pods on nodes that use a claim."""
    return [
        each
        for each in record.all("Pod")
        if namespace(each) == in_namespace and occupies(each) and claim in volume_claims_of(each)
    ]


def attached(record: Record, node: str) -> list[tuple[str, set[str], int]]:
    """For each CSI driver of the node: names of the volumes that its pods use, and the limit."""
    csi_node = record.named("CSINode", node)
    limits = {
        each["name"]: each["allocatable"]["count"]
        for each in (spec(csi_node).get("drivers") or () if csi_node else ())
        if each.get("allocatable")
    }
    used: dict[str, set[str]] = {driver: set() for driver in limits}
    for pod in record.pods_on(node):
        for each in volume_claims_of(pod) if occupies(pod) else ():
            volume = volume_of(record, record.named("PersistentVolumeClaim", f"{namespace(pod)}/{each}"))
            driver = (spec(volume).get("csi") or {}).get("driver") if volume is not None else None
            if volume is not None and driver in used:
                used[driver].add(name(volume))
    return [(driver, used[driver], limit) for driver, limit in limits.items()]
