"""Which controllers run, that none stops another, and the small parts that all share."""

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
def test_choosing(patterns: list[str], missing: set[str]) -> None:
    assert set(CONTROLLER_NAMES) - set(select_controllers(patterns)) == missing


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="'deployment' is no controller; the controllers are cronjob-controller, daemonset"):
        select_controllers(["deployment"])


@async_test
async def test_only_what_is_named_runs(tmp_path: Path) -> None:
    async with run_embedded_cluster(tmp_path) as cluster, cluster.client() as client:
        assert ControllerManager(client, only=["job-controller"]).names == ["job-controller"]
        assert ControllerManager(client).names == list(CONTROLLER_NAMES)
        with pytest.raises(UsageError, match="there is no controller 'foo'"):
            ControllerManager(client, only=["foo"])


@async_test
async def test_what_fails_is_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()

    with caplog.at_level(logging.CRITICAL, logger="bayplan"):
        running = asyncio.create_task(run_supervised("it", work, clock.sleep))
        while begun < 3:
            await asyncio.sleep(0)
            clock.advance(1.0)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# Expectations


def test_what_was_done_is_waited_for_and_forgotten_in_the_end() -> None:
    clock = ManualClock()
    expected = Expectations(clock)
    expected.expect_creations("owner", 2)
    expected.expect_deletion("owner", "a")
    assert not expected.satisfied("owner")
    assert expected.satisfied("other")
    expected.creation_observed("owner")
    expected.lower_creations("owner")
    assert not expected.satisfied("owner")
    expected.deletion_observed("owner", "a")
    assert expected.satisfied("owner")
    expected.expect_creations("owner", 1)
    clock.advance(EXPECTATIONS_TIMEOUT_S)
    assert expected.satisfied("owner")


@async_test
async def test_a_refusal_costs_one_request_and_not_five_hundred() -> None:
    asked = []

    async def refuse(index: int) -> None:
        asked.append(index)
        raise RuntimeError("no")

    tried, faults = await slow_start_batch(500, refuse)
    assert (tried, len(faults), asked) == (1, 1, [0])
    made = []

    async def work(index: int) -> None:
        made.append(index)

    assert await slow_start_batch(500, work) == (500, [])
    assert sorted(made) == list(range(500))


# Patches

TREES = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


def merged(tree: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(tree) if isinstance(tree, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def plain(tree: Any) -> Any:
    """Without nulls in objects, which no merge patch can write."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items() if value is not None}
    return tree


@given(
    st.dictionaries(st.sampled_from("abc"), TREES, max_size=3),
    st.dictionaries(st.sampled_from("abc"), TREES, max_size=3),
)
def test_a_patch_makes_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    old, new = plain(old), plain(new)
    assert merged(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}
