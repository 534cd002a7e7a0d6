"""Devices of ResourceClaims and shares of GPUs: each is given out once, and stays reserved while its pod runs."""

from __future__ import annotations

from collections import Counter
from functools import partial

from chaos.invariants.base import SKEW_S, Checker, Found
from chaos.objects import (
    Tree,
    annotations_of,
    claims_of,
    devices_of,
    is_deleted,
    is_terminal,
    key,
    labels,
    name,
    namespace,
    node_of,
    occupies,
    reserved_for,
    status,
    uid,
    version,
)
from chaos.record import Change, Version

RESERVATIONS = "kai-resource-reservation"
_GROUP = "runai-gpu-group"
_SETTLE_S = 5.0


class DevicesOnce(Checker):
    """No device is allocated to two claims."""

    name = "device-twice"

    def on_change(self, change: Change) -> Found:
        if change.kind != "ResourceClaim" or change.new is None:
            return
        mine = set(devices_of(change.new))
        if not mine or (change.old is not None and set(devices_of(change.old)) == mine):
            return
        self.checks += 1
        for each in self.world.record.all("ResourceClaim"):
            shared = mine & set(devices_of(each))
            if shared and uid(each) != uid(change.new):
                text = f"claims {key(change.new)} and {key(each)} both have {sorted(shared)}"
                yield self.violation(change.at_s, text, uid(change.new), uid(each))


class Reservations(Checker):
    """A pod that is bound has its claims: allocated on its node and reserved for it, until it has finished."""

    name = "claim-of-bound-pod"

    def on_change(self, change: Change) -> Found:
        if change.is_binding and change.new is not None and claims_of(change.new):
            pod, at_s = change.new, change.at_s
            self.later(at_s + _SETTLE_S, lambda: self._judge_pod(uid(pod), at_s + _SETTLE_S))
        if change.kind == "ResourceClaim" and change.old is not None and change.new is not None:
            for lost in reserved_for(change.old) - reserved_for(change.new):
                self.later(change.at_s + SKEW_S, partial(self._judge_loss, change.new, lost, change.at_s))
        return
        yield

    def _judge_pod(self, pod_uid: str, at_s: float) -> Found:
        pod = self.world.record.get("Pod", pod_uid)
        if pod is None or not occupies(pod) or is_deleted(pod):
            return
        self.checks += 1
        for each in claims_of(pod):
            claim = self.world.record.named("ResourceClaim", f"{namespace(pod)}/{each}")
            if claim is None or pod_uid not in reserved_for(claim):
                objects = (pod_uid,) if claim is None else (pod_uid, uid(claim))
                text = f"pod {key(pod)} is bound to {node_of(pod)}, and claim {each} is not reserved for it"
                yield self.violation(at_s, text, *objects)
            elif any(pool != node_of(pod) for _, pool, _ in devices_of(claim)):
                text = f"pod {key(pod)} is bound to {node_of(pod)}, and claim {each} has {devices_of(claim)}"
                yield self.violation(at_s, text, pod_uid, uid(claim))

    def _judge_loss(self, claim: Tree, pod_uid: str, at_s: float) -> Found:
        """A reservation was taken away: the pod must have finished or gone."""
        self.checks += 1
        history = self.world.record.history(pod_uid)
        if history is None:
            return
        before = [each for each in history.versions if each.version < version(claim)]
        ended = any(_has_left(each) for each in history.versions if each.at_s <= at_s + SKEW_S)
        if before and occupies(before[-1].tree()) and not ended:
            text = f"claim {key(claim)} lost its reservation for pod {history.key}, which is bound"
            yield self.violation(at_s, text, uid(claim), pod_uid)

    def on_calm(self, now_s: float) -> Found:
        for each in self.world.record.all("Pod"):
            if claims_of(each):
                yield from self._judge_pod(uid(each), now_s)


def _has_left(version_: Version) -> bool:
    tree = version_.tree()
    return version_.type == "DELETED" or is_deleted(tree) or is_terminal(tree)


class GpuShares(Checker):
    """Shares of one GPU add up to one at most, and the GPU is reserved while a pod uses it."""

    name = "gpu-shares"

    def on_change(self, change: Change) -> Found:
        if change.kind != "Pod" or change.new is None or not occupies(change.new) or not share_of(change.new):
            return
        self.checks += 1
        node = node_of(change.new)
        shares: Counter[str] = Counter()
        users: dict[str, list[str]] = {}
        for each in self.world.record.pods_on(node):
            if occupies(each) and share_of(each):
                for group in groups_of(each):
                    shares[group] += share_of(each)
                    users.setdefault(group, []).append(uid(each))
        for group, share in shares.items():
            if share > 100:
                yield self.violation(change.at_s, f"GPU group {group} on {node} is shared to {share} %", *users[group])

    def on_calm(self, now_s: float) -> Found:
        held = {
            (group, node_of(each))
            for each in self.world.record.all("Pod")
            if namespace(each) == RESERVATIONS and not is_deleted(each)
            for group in groups_of(each)
        }
        for each in self.world.record.all("Pod"):
            if namespace(each) == RESERVATIONS or not occupies(each) or not share_of(each) or is_deleted(each):
                continue
            groups = groups_of(each)
            if not groups:
                yield self.violation(now_s, f"pod {key(each)} has a share of a GPU and no group", uid(each))
            for group in groups:
                if (group, node_of(each)) not in held:
                    text = f"pod {key(each)} uses GPU group {group} on {node_of(each)}, which is not reserved"
                    yield self.violation(now_s, text, uid(each))


def share_of(pod: Tree) -> int:
    """Percent of a GPU that a pod requests; 0 for a reservation pod and for pods without a share."""
    return round(100 * float(annotations_of(pod).get("gpu-fraction", "0")))


def groups_of(pod: Tree) -> set[str]:
    return {value for label, value in labels(pod).items() if label.partition("/")[0] == _GROUP}


class DeviceLeftovers(Checker):
    """With no pods left, no claim has devices and no GPU is reserved."""

    name = "left-over"

    def on_empty(self, now_s: float) -> Found:
        self.checks += 1
        for each in self.world.record.all("ResourceClaim"):
            if reserved_for(each) or status(each).get("allocation"):
                yield self.violation(now_s, f"claim {key(each)} still has devices or reservations", uid(each))
        for each in self.world.record.all("Pod"):
            if namespace(each) == RESERVATIONS and not is_deleted(each):
                text = f"the reservation {name(each)} is left on {node_of(each)}, and no pod uses it"
                yield self.violation(now_s, text, uid(each))
        for each in self.world.record.all("BindRequest"):
            yield self.violation(now_s, f"BindRequest {key(each)} is left", uid(each))
