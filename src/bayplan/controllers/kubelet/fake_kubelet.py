"""Fake kubelet: registers Ready nodes and reports pods as Running, without running containers.

It is an API client and works with any API server. For tests, simulations and load: a thousand nodes cost some fifty
small requests a second. The client supplies clock and random source.

    kubelet = FakeKubelet(client, count=100)
    running = asyncio.create_task(kubelet.run())
    await kubelet.ready()
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from bayplan.client import Client
from bayplan.controllers.kubelet.fake_nodes import RENEWALS_PER_SECOND, FakeNodes
from bayplan.controllers.kubelet.fake_pods import FakePods
from bayplan.controllers.kubelet.node_template import NodeTemplate
from bayplan.controllers.kubelet.pod_stages import PodBehavior

_DEFAULT_BEHAVIOR = PodBehavior()


class FakeKubelet:
    """Nodes from a template, and the pods that are bound to them."""

    def __init__(
        self,
        client: Client,
        *,
        count: int = 0,
        template: NodeTemplate | None = None,
        first: int = 0,
        nodes: Iterable[dict[str, Any]] = (),
        leases: Client | None = None,
        habits: PodBehavior = _DEFAULT_BEHAVIOR,
        renewals_a_second: float = RENEWALS_PER_SECOND,
    ) -> None:
        """`nodes`: manifests of further nodes, for example from `nodes_of`. `leases`: a client with its own rate limit,
        so that a burst of pods does not delay lease renewals. `habits`: behavior of pods without annotations."""
        template = template or NodeTemplate()
        manifests = [template.node(index) for index in range(first, first + count)]
        manifests.extend(nodes)
        self.nodes = FakeNodes(client, manifests, leases=leases or client, renewals_a_second=renewals_a_second)
        self.pods = FakePods(client, self.nodes, habits=habits)

    async def run(self) -> None:
        """Run nodes and pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.pods.run())

    async def ready(self) -> None:
        """Return when all nodes are registered and Ready."""
        await self.nodes.wait_registered()
