"""Invariants of the API server and of the requests to the binder."""

from __future__ import annotations

from collections import Counter

from chaos.invariants.base import SKEW_S, Checker, Found
from chaos.objects import key, node_of, request_is_live, request_pod_uid, spec, uid
from chaos.record import Change


class Durability(Checker):
    """A version that a watch has delivered is not lost by a restart of the server."""

    name = "lost-write"

    def on_tick(self, now_s: float) -> Found:
        lost = self.world.record.versions_lost
        self.checks = self.world.record.versions_seen
        while lost:
            yield self.violation(now_s, lost.pop())


class Requests(Checker):
    """A pod has one live BindRequest at a time, and is bound where that says."""

    name = "bind-requests"

    def on_change(self, change: Change) -> Found:
        if change.kind == "BindRequest" and change.old is None and change.new is not None:
            self.checks += 1
            live = Counter(
                request_pod_uid(each) for each in self.world.record.all("BindRequest") if request_is_live(each)
            )
            if live[request_pod_uid(change.new)] > 1:
                text = f"the pod of BindRequest {key(change.new)} has more than one live request"
                yield self.violation(change.at_s, text, uid(change.new), request_pod_uid(change.new))
        if change.is_binding and change.new is not None:
            pod_uid, at_s = uid(change.new), change.at_s
            self.later(at_s + SKEW_S, lambda: self._judge(pod_uid, at_s))

    def _judge(self, pod_uid: str, at_s: float) -> Found:
        pod = self.world.record.get("Pod", pod_uid)
        if pod is None:
            return
        for each in self.world.record.all("BindRequest"):
            if request_pod_uid(each) == pod_uid and spec(each)["selectedNode"] != node_of(pod):
                text = f"pod {key(pod)} is on {node_of(pod)}, its BindRequest says {spec(each)['selectedNode']}"
                yield self.violation(at_s, text, pod_uid, uid(each))
