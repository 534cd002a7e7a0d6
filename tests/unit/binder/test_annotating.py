"""Annotations that a plugin of the binder writes: to this very pod, and never after a later attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bayplan.api_writes.writes import ApiWrites
from bayplan.binder.plugin import BinderHandle
from bayplan.cache import Cache
from bayplan.errors import Conflict, Unreachable
from bayplan.objects.core import Pod
from support.harness.live_scheduler import RecordedEvents
from support.harness.reconciler import (
    NAMESPACE,
    PODS,
    ReconcilerHarness,
    run_with_reconciler,
)


def handle(rig: ReconcilerHarness) -> BinderHandle:
    clock = rig.client.clock
    return BinderHandle(rig.client, ApiWrites(rig.client, RecordedEvents(), clock=clock), clock, Cache())


async def read(rig: ReconcilerHarness) -> Pod:
    return await rig.client.get(Pod, NAMESPACE, "web")


def test_an_annotation_is_written_replaced_and_removed(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.pod(annotations={"kept": "yes"})
        known = await read(rig)
        for value in ("1", "2", None):  # the second and third time the known version is an old one
            await handle(rig).annotate(known, {"gpu": value})
            assert (await read(rig)).metadata.annotations.get("gpu") == value
        assert (await read(rig)).metadata.annotations == {"kept": "yes"}

    run_with_reconciler(tmp_path, test)


def test_a_pod_that_is_gone_needs_no_annotation_and_another_of_its_name_gets_none(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.pod()
        gone = await read(rig)
        await rig.client.delete(PODS, name="web", namespace=NAMESPACE)
        await handle(rig).annotate(gone, {"gpu": "1"})
        await rig.pod()
        await handle(rig).annotate(gone, {"gpu": "1"})
        assert "gpu" not in (await read(rig)).metadata.annotations

    run_with_reconciler(tmp_path, test)


def test_an_annotation_that_is_there_is_not_removed_by_an_earlier_attempt(tmp_path: Path) -> None:
    """The next attempt writes the same annotation, which does not change the version that the removal names."""

    async def test(rig: ReconcilerHarness) -> None:
        await rig.pod(annotations={"gpu": "1"})
        request, failures = rig.client.transport.request, [Unreachable("the server is away")]
        late: list[Callable[[], Awaitable[object]]] = []

        async def spoiled(method: str, path: str, *args: Any, **more: Any) -> Any:
            if method == "PATCH" and not late:
                late.append(lambda: request(method, path, *args, **more))
                raise Unreachable("the connection was cut", sent=True)
            if method == "GET" and late and failures:
                raise failures.pop()
            return await request(method, path, *args, **more)

        known = await read(rig)
        rig.client.transport.request = spoiled  # type: ignore[method-assign]
        with contextlib.suppress(Unreachable):
            await handle(rig).annotate(known, {"gpu": None})
        await handle(rig).annotate(known, {"gpu": "1"})
        with contextlib.suppress(Conflict):
            await late[0]()
        assert (await read(rig)).metadata.annotations == {"gpu": "1"}

    run_with_reconciler(tmp_path, test)
