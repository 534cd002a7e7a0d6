"""The example `node_state`: it binds only if the binder's node is as new as the scheduler's, with a lagging watch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.plugin import BinderHandle
from bayplan.framework.runtime.plugin_discovery import PluginKind, plugins_in_folder
from bayplan.objects.core import Node, Toleration
from bayplan.objects.taints import UNSCHEDULABLE, tolerated
from docs.fences import ROOT
from support.harness.reconciler import NODES, ReconcilerHarness, run_reconciler

(NODE_STATE,) = (
    each
    for each in plugins_in_folder(ROOT / "examples" / "binder", PluginKind.BINDER_PLUGIN, trust_writable=True)
    if each.name == "nodestate"
)


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were read again, in order."""
    asked: list[str] = []
    fresh = BinderHandle.read_node

    async def noting(handle: BinderHandle, name: str) -> Node:
        asked.append(name)
        return await fresh(handle, name)

    monkeypatch.setattr(BinderHandle, "read_node", noting)
    return asked


async def seen(harness: ReconcilerHarness, **change: Any) -> str:
    """The scheduler has seen a version of the node that the binder's watch has not delivered yet."""
    await harness.patch(NODES, "n1", change or {"metadata": {"labels": {"example.com/seen": "yes"}}})
    version: str = (await harness.get(NODES, "n1"))["metadata"]["resourceVersion"]
    return version


async def bound(
    harness: ReconcilerHarness, version: str, *tolerations: dict[str, str], **annotations: str
) -> dict[str, Any]:
    annotations = {"handler": "nodestate", "resource-version": version, **annotations}
    handed = {f"nodestate.kai.scheduler/{key}": value for key, value in annotations.items()}
    pod = await harness.pod(spec={"tolerations": list(tolerations)})
    await harness.request(pod, annotations=handed, backoffLimit=3)
    assert await harness.sync() is None
    return await harness.status()


def test_a_node_that_the_watch_lags_behind_is_refreshed_once_then_accepted(
    tmp_path: Path, refreshed: list[str]
) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            status = await bound(harness, await seen(harness))
            assert status["phase"] == "Succeeded"
            assert await harness.node_of() == "n1"

    asyncio.run(run())
    assert refreshed == ["n1"]


def test_a_node_that_is_new_enough_is_not_read(tmp_path: Path, refreshed: list[str]) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            version = await seen(harness)
            await harness.deliver_event(Node, "n1")
            assert (await bound(harness, version))["phase"] == "Succeeded"

    asyncio.run(run())
    assert refreshed == []


def test_a_node_that_is_still_older_is_refused_at_once(tmp_path: Path, refreshed: list[str]) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            status = await bound(harness, str(10**9 + int(await seen(harness))))
            assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
            assert "is known in a version before" in status["reason"]
            assert await harness.node_of() == ""

    asyncio.run(run())
    assert refreshed == ["n1"]


@pytest.mark.parametrize("annotations", [{"cordoned": "false"}, {}], ids=["seen", "not-said"])
def test_a_node_that_the_refresh_shows_cordoned_is_refused(
    tmp_path: Path, refreshed: list[str], annotations: dict[str, str]
) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            status = await bound(harness, await seen(harness, spec={"unschedulable": True}), **annotations)
            assert status["phase"] == "Failed"
            assert "node n1 is cordoned by now, which the pod does not tolerate" in status["reason"]

    asyncio.run(run())
    assert refreshed == ["n1"]


def test_a_node_that_was_cordoned_when_the_scheduler_chose_it_is_accepted(tmp_path: Path) -> None:
    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            version = await seen(harness, spec={"unschedulable": True})
            assert (await bound(harness, version, cordoned="true"))["phase"] == "Succeeded"

    asyncio.run(run())


CORDON = "node.kubernetes.io/unschedulable"


@pytest.mark.parametrize(
    ("toleration", "phase"),
    [
        pytest.param({"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}, "Succeeded", id="of daemons"),
        pytest.param({"key": CORDON, "effect": "NoSchedule"}, "Succeeded", id="no value"),
        pytest.param({"operator": "Exists"}, "Succeeded", id="everything"),
        pytest.param({"key": CORDON, "operator": "Equal", "value": "x"}, "Failed", id="another value"),
        pytest.param({"key": CORDON, "operator": "Exists", "effect": "NoExecute"}, "Failed", id="another effect"),
        pytest.param({"key": "example.com/gpus", "operator": "Exists"}, "Failed", id="another taint"),
    ],
)
def test_a_pod_that_tolerates_a_cordon_is_bound_whenever_that_came(
    tmp_path: Path, toleration: dict[str, str], phase: str
) -> None:
    """The node as the scheduler has it; the request has the same for each."""

    async def run() -> None:
        async with run_reconciler(tmp_path, NODE_STATE()) as harness:
            version = await seen(harness, spec={"unschedulable": True})
            assert (await bound(harness, version, toleration, cordoned="false"))["phase"] == phase

    asyncio.run(run())
    assert tolerated(UNSCHEDULABLE, [Toleration(**toleration)]) == (phase == "Succeeded")
