"""The contract between the binder and its plugins.

A plugin is a class with a `name` and any of three coroutines. `pre_bind` prepares what the pod needs on its node and
fails the attempt by raising. `post_bind` runs after the pod is bound and cannot fail the attempt. `rollback` undoes
`pre_bind`, also if that never ran or ran twice. For a deleted pod or node, `rollback` gets the name (for a pod also the
uid) and maybe no more; a pod that another client has bound has another node by then. Plugins get the whole request with
its annotations. Missing keys (from an older scheduler) or unknown keys (from a newer one) are no errors.

A class may have `factory(arguments, handle)`; without one it is called without arguments. Errors of the constructor are
reported before a cluster is needed: a plugin is built once for this check, and once more to run. A class with
`argument_names` gets no other arguments: a misspelled one is an error at start. A class with `runs_after` names plugins
that it builds on; a configuration without them, or with another order, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.api_writes import crash_points
from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.binder.informer_cache import InformerCache
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
    """A plugin rejects the node, and a retry on this node is useless: the engine has to choose another."""


class ApiNotServed(BayplanError):
    """The API server does not serve this resource."""


class InvalidRequest(BayplanError):
    """A request that can never be carried out unchanged."""


@dataclass(slots=True)
class BindingState:
    """State of one attempt: for all plugins, and for each plugin its own state from one stage to the next."""

    reserved_gpu_ids: list[str] = field(default_factory=list)
    plugin_state: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BinderHandle:
    """What a plugin can use: the API server, the clock, and volumes, devices and nodes from the informers."""

    client: Client
    writes: Writes
    clock: LoopClock
    cache: InformerCache
    claims: GroupVersionResource | None = None
    """The resource of device claims as the API server serves it; None if it does not."""
    crash_point: CrashPointCallback = crash_points.ignore_crash_point
    """Called with the name of a step at which a crash leaves something behind."""
    cancellable_wait: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """`async with ctx.cancellable_wait():` around code that only waits. The block holds no worker, and it ends when the
    request is deleted. Leave it before writing anything."""

    async def read_node(self, name: str) -> Node:
        """Read the node from the API server."""
        return await self.client.get(Node, "", name)

    async def read_claim(self, namespace: str, name: str) -> ResourceClaim:
        """Read a device claim from the API server."""
        return await self.client.get(ResourceClaim, namespace, name, resource=self._claims())

    async def read_claims(self, namespace: str) -> list[ResourceClaim]:
        """Read all device claims of a namespace from the API server."""
        listed = await self.client.list(self._claims(), Selection(namespace=namespace))
        return [each for each in listed.items if isinstance(each, ResourceClaim)]

    def _claims(self) -> GroupVersionResource:
        if self.claims is None:
            raise ApiNotServed("the API server offers no resource claims, so devices cannot be reserved")
        return self.claims

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Write annotations to this pod; None removes one. A deleted pod is ignored.

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
    """All three stages; a plugin leaves out those that it does not need."""

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
