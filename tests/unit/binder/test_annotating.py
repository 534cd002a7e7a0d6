"""Annotations by binder plugins: written to the right pod, and never after a later attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bayplan.api_writes.writes import ApiWrites
from bayplan.binder.informer_cache import InformerCache
from bayplan.binder.plugin import BinderHandle
from bayplan.errors import Conflict, Unreachable
from bayplan.objects.core import Pod
from support.harness.live_scheduler import RecordedEvents
from support.harness.reconciler import NAMESPACE, PODS, ReconcilerHarness, run_with_reconciler


def handle(harness: ReconcilerHarness) -> BinderHandle:
    clock = harness.client.clock
    writes = ApiWrites(harness.client, RecordedEvents(), clock=clock)
    return BinderHandle(harness.client, writes, clock, InformerCache(harness.client))


async def read(harness: ReconcilerHarness) -> Pod:
    return await harness.client.get(Pod, NAMESPACE, "web")


def test_an_annotation_is_written_replaced_and_removed(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.pod(annotations={"kept": "yes"})
        known = await read(harness)
        for value in ("1", "2", None):  # the second and third time the known version is an old one
            await handle(harness).annotate(known, {"gpu": value})
            assert (await read(harness)).metadata.annotations.get("gpu") == value
        assert (await read(harness)).metadata.annotations == {"kept": "yes"}

    run_with_reconciler(tmp_path, test)


def test_a_deleted_pod_is_ignored_and_another_pod_of_its_name_is_not_annotated(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.pod()
        gone = await read(harness)
        await harness.client.delete(PODS, name="web", namespace=NAMESPACE)
        await handle(harness).annotate(gone, {"gpu": "1"})
        await harness.pod()
        await handle(harness).annotate(gone, {"gpu": "1"})
        assert "gpu" not in (await read(harness)).metadata.annotations

    run_with_reconciler(tmp_path, test)


def test_an_existing_annotation_is_not_removed_by_an_earlier_attempt(tmp_path: Path) -> None:
    """The next attempt writes the same annotation, which does not change the version that the removal has."""

    async def test(harness: ReconcilerHarness) -> None:
        await harness.pod(annotations={"gpu": "1"})
        request, failures = harness.client.transport.request, [Unreachable("the server is away")]
        late: list[Callable[[], Awaitable[object]]] = []

        async def send_with_fault(method: str, path: str, *args: Any, **more: Any) -> Any:
            if method == "PATCH" and not late:
                late.append(lambda: request(method, path, *args, **more))
                raise Unreachable("the connection was cut", sent=True)
            if method == "GET" and late and failures:
                raise failures.pop()
            return await request(method, path, *args, **more)

        known = await read(harness)
        harness.client.transport.request = send_with_fault  # type: ignore[method-assign]
        with contextlib.suppress(Unreachable):
            await handle(harness).annotate(known, {"gpu": None})
        await handle(harness).annotate(known, {"gpu": "1"})
        with contextlib.suppress(Conflict):
            await late[0]()
        assert (await read(harness)).metadata.annotations == {"gpu": "1"}

    run_with_reconciler(tmp_path, test)
