"""Selection and supervision of controllers, expectations, and merge patches."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.clock import ManualClock
from bayplan.controllers import CONTROLLER_NAMES, ControllerManager, select_controllers
from bayplan.controllers.core.controller import slow_start_batch
from bayplan.controllers.core.expectations import EXPECTATIONS_TIMEOUT_S, Expectations
from bayplan.controllers.core.shared_informers import merge_patch, run_supervised
from bayplan.errors import UsageError
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster


@pytest.mark.parametrize(
    ("patterns", "missing"),
    [
        (["*"], set()),
        (["*", "-deployment-controller"], {"deployment-controller"}),
        (["-deployment-controller", "*"], {"deployment-controller"}),
        (["deployment-controller", "-deployment-controller", "*"], set()),
        (["job-controller", "-job-controller", "*"], set()),
        ([" deployment-controller "], set(CONTROLLER_NAMES) - {"deployment-controller"}),
        ([], set(CONTROLLER_NAMES)),
    ],
)
def test_selected_controllers(patterns: list[str], missing: set[str]) -> None:
    assert set(CONTROLLER_NAMES) - set(select_controllers(patterns)) == missing


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="'deployment' is no controller; the controllers are clusterrole-aggregation-controller, "
    ):
        select_controllers(["deployment"])


@async_test
async def test_only_selected_controllers_run(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        assert ControllerManager(client, only=["job-controller"]).names == ["job-controller"]
        assert ControllerManager(client).names == list(CONTROLLER_NAMES)
        with pytest.raises(UsageError, match="there is no controller 'foo'"):
            ControllerManager(client, only=["foo"])


@async_test
async def test_failed_work_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()

    with caplog.at_level(logging.CRITICAL, logger="bayplan"):
        running = asyncio.create_task(run_supervised("it", work, clock.sleep))
        while starts < 3:
            await asyncio.sleep(0)
            clock.advance(1.0)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# Expectations.


def test_expectations_end_when_observed_or_expired() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    expectations.expect_creations("owner", 2)
    expectations.expect_deletion("owner", "a")
    assert not expectations.satisfied("owner")
    assert expectations.satisfied("other")
    expectations.creation_observed("owner")
    expectations.lower_creations("owner")
    assert not expectations.satisfied("owner")
    expectations.deletion_observed("owner", "a")
    assert expectations.satisfied("owner")
    expectations.expect_creations("owner", 1)
    clock.advance(EXPECTATIONS_TIMEOUT_S)
    assert expectations.satisfied("owner")


@async_test
async def test_a_refusal_stops_the_slow_start_after_one_request() -> None:
    calls_ = []

    async def refuse(index: int) -> None:
        calls_.append(index)
        raise RuntimeError("no")

    calls, faults = await slow_start_batch(500, refuse)
    assert (calls, len(faults), calls_) == (1, 1, [0])
    done = []

    async def work(index: int) -> None:
        done.append(index)

    assert await slow_start_batch(500, work) == (500, [])
    assert sorted(done) == list(range(500))


# Patches.

TREES = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


def apply_merge_patch(tree: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(tree) if isinstance(tree, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


def without_nulls(tree: Any) -> Any:
    """Remove nulls in objects, which no merge patch can write."""
    if isinstance(tree, dict):
        return {key: without_nulls(value) for key, value in tree.items() if value is not None}
    return tree


@given(
    st.dictionaries(st.sampled_from("abc"), TREES, max_size=3),
    st.dictionaries(st.sampled_from("abc"), TREES, max_size=3),
)
def test_a_merge_patch_transforms_one_object_into_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    old, new = without_nulls(old), without_nulls(new)
    assert apply_merge_patch(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}
