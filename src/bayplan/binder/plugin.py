"""The contract between the binder and its plugins.

A plugin is a class with a `name` and any of three coroutines. `pre_bind` prepares what the pod needs on its node and
fails the attempt by raising; `post_bind` comes after the pod is bound and cannot fail anything; `rollback` undoes
`pre_bind`, also where that never ran or ran twice. Of a pod or a node that is gone it is told the name (a pod's uid,
too) and maybe no more; a pod that somebody else has bound has another node by then. All of them get the whole request,
annotations too: keys that are missing (the scheduler may be older) or unknown (it may be newer) are no fault. A class
may have `factory(arguments, handle)`; without one it is called without arguments. What it raises is told before any
cluster is needed: a plugin is made once to see whether it can be, and once more to run. One that says `argument_names`
is never given others: a misspelt one is an error at start. One that says `runs_after` names plugins that it builds on;
a configuration without them, or with another order, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.api_writes import crash_points
from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.cache import Cache
from bayplan.client import Client, GroupVersionResource, Selection
from bayplan.clock import LoopClock
from bayplan.errors import BayplanError, Conflict, NotFound
from bayplan.intents.pod_intents import AnnotatePod
from bayplan.intents.writes import Writes
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.resource import ResourceClaim

PRE_BIND, POST_BIND, ROLLBACK = "pre_bind", "post_bind", "rollback"
STAGES = (PRE_BIND, POST_BIND, ROLLBACK)


class RejectBind(BayplanError):
    """A plugin says no, and trying again on this node is of no use: the engine is to choose another."""


class ApiNotServed(BayplanError):
    """The API server does not have what is asked for."""


class InvalidRequest(BayplanError):
    """A request that can never be carried out as it stands."""


@dataclass(slots=True)
class BindingState:
    """What one attempt knows: for all plugins, and by plugin what each keeps from one stage to the next."""

    reserved_gpu_ids: list[str] = field(default_factory=list)
    plugin_state: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BinderHandle:
    """What a plugin may reach: the API server, the clock, and volumes, devices and nodes as the watches tell them."""

    client: Client
    writes: Writes
    clock: LoopClock
    cache: Cache
    claims: GroupVersionResource | None = None
    """Device claims in the version that the server offers; None where it has none."""
    crash_point: CrashPointCallback = crash_points.ignore_crash_point
    """Told the names of steps at which a crash leaves something behind."""
    cancellable_wait: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """`async with ctx.cancellable_wait():` around what only waits for others: no worker is held by it, and it ends as
    soon as the request is gone. To be left before anything is written."""

    async def read_node(self, name: str) -> Node:
        """The node as the API server has it at this moment, whatever the watch has told so far."""
        return await self.client.get(Node, "", name)

    async def read_claim(self, namespace: str, name: str) -> ResourceClaim:
        """The same of a device claim."""
        return await self.client.get(ResourceClaim, namespace, name, resource=self._claims())

    async def read_claims(self, namespace: str) -> list[ResourceClaim]:
        """All device claims of a namespace, likewise."""
        listed = await self.client.list(self._claims(), Selection(namespace=namespace))
        return [each for each in listed.items if isinstance(each, ResourceClaim)]

    def _claims(self) -> GroupVersionResource:
        if self.claims is None:
            raise ApiNotServed("the API server offers no resource claims, so devices cannot be reserved")
        return self.claims

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Write annotations to this very pod; None takes one off. A pod that is gone needs none.

        Returns or raises when the write cannot take effect later: it must not replace what a later attempt writes.
        """
        try:
            await self.writes.perform(AnnotatePod(pod, annotations))
        except NotFound:
            return
        except Conflict:
            with contextlib.suppress(NotFound):
                if (await self.client.get(Pod, pod.namespace, pod.name)).uid == pod.uid:
                    raise


class BinderPlugin(Protocol):
    """All three; a plugin that has nothing to do at a stage leaves it out."""

    name: str

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None: ...

    async def post_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None: ...

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None: ...


Arguments = Mapping[str, Any]
