"""Chooses the engine that explains a pod: the one that serves it, or else any engine that knows it.

For a pod that waits for the binder, the answer also has the current BindRequest and the holder of the binder's lease.
Cost: two API requests for such a pod, none for other pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from msgspec.structs import replace

from bayplan.client import LEASES, Client, resource_of
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.model import LeaderElection
from bayplan.errors import BayplanError, NotFound
from bayplan.explain.bind_request_answers import awaited_step, request_progress
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BINDER_LEASE_NAME, BindRequest
from bayplan.objects.kinds import kind_of
from bayplan.telemetry.answers import ABSENT, EXPIRED, FREE, HELD, UNKNOWN, Answer, BinderLease

NOT_LEADING_MESSAGE = "this instance is not the leader and has decided nothing; ask the leader"
_DEFAULT_LEASE_NAMESPACE = "kube-system"
_BINDER_HINT = "see whether `bayplan binder` runs"
_REQUESTS = resource_of(kind_of(BindRequest))


class Explainer(Protocol):
    def serves(self, pod: Pod) -> bool: ...
    def find(self, namespace: str, name: str) -> Pod | None: ...
    async def answer(self, pod: Pod, *, now: bool = False) -> Answer: ...


@dataclass(frozen=True, slots=True)
class BinderStatusReader:
    """Reads the state of the binder for pods that wait for it."""

    client: Client
    namespace: str
    """Namespace of the binder's lease."""

    @classmethod
    def for_engine(
        cls, client: Client, settings: BayplanSettings, lease: LeaderElection | None = None
    ) -> BinderStatusReader:
        """The default namespace of the binder's lease is that of the engine's lease, as in Bayplan's manifests."""
        namespace = lease.resource_namespace if lease is not None else _DEFAULT_LEASE_NAMESPACE
        return cls(client, settings.binder_lease_namespace or namespace)

    async def add_binder_status(self, answer: Answer) -> Answer:
        """The answer for a pod that has a request, with the current request, and whether a binder runs."""
        if answer.request is None:
            return answer
        answer = await self._add_current_request(answer, answer.request.name)
        ours = answer.request is not None and answer.request.is_ours
        return replace(answer, binder=await self._lease()) if ours else answer

    async def _add_current_request(self, answer: Answer, key: str) -> Answer:
        """Read the request: an engine that watches only failures does not see the binder's progress."""
        namespace, _, name = key.partition("/")
        try:
            request = await self.client.get(BindRequest, namespace, name, resource=_REQUESTS)
        except BayplanError:
            return answer
        if request.pod_uid and request.pod_uid != answer.uid:
            return answer
        return replace(answer, request=request_progress(request), waits_for=awaited_step(request))

    async def _lease(self) -> BinderLease:
        lease = f"{self.namespace}/{BINDER_LEASE_NAME}"
        try:
            tree = await self.client.get_raw(LEASES, self.namespace, BINDER_LEASE_NAME)
        except NotFound:
            text = f"there is no lease {lease}: no binder runs, or one that takes no lease (--leader-elect=false)"
            return BinderLease(lease=lease, state=ABSENT, sentence=text)
        except BayplanError as fault:
            return BinderLease(lease=lease, state=UNKNOWN, sentence=f"the lease {lease} cannot be read: {fault}")
        return _lease_status(lease, tree.get("spec") or {}, self.client.clock.now())


def _lease_status(lease: str, spec: dict[str, Any], now: datetime) -> BinderLease:
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if not holder:
        return BinderLease(lease=lease, state=FREE, sentence=f"no binder holds the lease {lease}; {_BINDER_HINT}")
    at = datetime.fromisoformat(renewed) if renewed else None
    status = BinderLease(lease=lease, state=HELD, sentence="", holder=holder, renewed_at=at)
    ends = None if at is None else at + timedelta(seconds=spec.get("leaseDurationSeconds") or 0)
    if ends is None or ends >= now:
        return replace(status, sentence=f"{holder} holds the lease {lease}")
    age_s = (now - ends).total_seconds()
    text = f"{holder} no longer holds the lease {lease}: it expired {age_s:.0f} s ago; {_BINDER_HINT}"
    return replace(status, state=EXPIRED, sentence=text)


async def explain_pod(
    explainers: Sequence[Explainer], namespace: str, name: str, *, now: bool, binder: BinderStatusReader | None = None
) -> Answer | None:
    """The answer; None if no engine knows the pod."""
    known = [(each, pod) for each in explainers if (pod := each.find(namespace, name)) is not None]
    if not known:
        return None
    explainer, pod = next((each for each in known if each[0].serves(each[1])), known[0])
    answer = await explainer.answer(pod, now=now)
    return answer if binder is None else await binder.add_binder_status(answer)
