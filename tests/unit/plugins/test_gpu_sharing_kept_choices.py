"""The choices that GpuSharing stores for pods with devices, in a running engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.app import known_plugins
from bayplan.framework.api.handle import Handle
from bayplan.objects.kai.bind_request import BindRequestStatus
from bayplan.plugins.gpu_sharing import GpuSharing
from bayplan.testing import make_node, make_pod
from support.harness.async_tests import wait_until
from support.harness.live_scheduler import bind_request_config, run_with_bind_requests, store_bind_requests

NODE = make_node("n1", labels={"nvidia.com/gpu.memory": "16000"}, capacity={"nvidia.com/gpu": "2", "pods": "110"})


@pytest.mark.parametrize("end", ["bound", "deleted", "given up"])
def test_a_choice_is_stored_while_its_pod_waits(end: str) -> None:
    made: list[GpuSharing] = []

    class Remembered(GpuSharing):
        name = "Remembered"

        @classmethod
        def factory(cls, args: object, handle: Handle) -> GpuSharing:
            made.append(super().factory(args, handle))
            return made[-1]

    async def run() -> None:
        pod = make_pod("web", annotations={"gpu-fraction": "0.5"})
        registry: Any = known_plugins().with_plugins(Remembered)
        async with run_with_bind_requests(NODE, config=bind_request_config("Remembered"), registry=registry) as harness:
            store_bind_requests(harness)
            harness.deliver(pod)
            await wait_until(lambda: harness.live.pods_at_binder == 1)
            (plugin,) = (each for each in made if each._choices)
            assert list(plugin._choices) == [pod.uid]
            assert harness.live.bind_requests is not None
            request = harness.live.bind_requests.requests[pod.key]
            if end == "deleted":
                harness.live.handle_event(pod, None)
            elif end == "bound":
                harness.live.handle_event(None, replace(request, status=BindRequestStatus(phase="Succeeded")))
            else:
                failed = BindRequestStatus(phase="Failed", failed_attempts=3, reason="not now")
                harness.live.handle_event(None, replace(request, status=failed))
            await wait_until(lambda: harness.live.pods_in_binding == 0)
            assert plugin._choices == {}

    asyncio.run(run())
