"""Requests that nobody should have written: each ends as Failed with a sentence, at once, and its pod is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from bayplan.binder.plugin import InvalidRequest
from bayplan.binder.plugins.gpu_sharing import portion_of
from bayplan.binder.validation import request_error
from bayplan.errors import ApiError
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec
from support.harness.reconciler import (
    PODS,
    REQUESTS,
    ReconcilerHarness,
    RecordingPlugin,
    run_with_reconciler,
)

NAMES = [".", "..", "%2e%2e", "web%", "a b", "WEB", "web/log", "a" * 254]


def why_refused(folder: Path, spec: dict[str, Any]) -> str:
    """What is said of a request that one attempt ends, with no process the worse for it."""
    said: list[str] = []

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(), **spec)
        assert await rig.sync() is None
        status = await rig.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
        said.append(status["reason"])
        assert await rig.node_of() == ""
        assert "taken" not in rig.steps.reached
        told = "BindingError" if spec.get("podName", "web") == "web" else ""
        assert rig.reasons == [told] * bool(told)

    run_with_reconciler(folder, test)
    return said[0]


@pytest.mark.parametrize("field", ["podName", "selectedNode"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nothing_can_have_is_not_looked_for(tmp_path: Path, field: str, name: str) -> None:
    assert f'its {field} is "{name[:80]}", a name that nothing can have: ' in why_refused(tmp_path, {field: name})


def fraction(groups: list[str], **given: Any) -> dict[str, Any]:
    return {"receivedResourceType": "Fraction", "selectedGPUGroups": groups, "receivedGPU": given}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param(
            fraction(["g", "h", "g"], count=3, portion="0.50"),
            'its selectedGPUGroups have "g" twice; each stands for a device of its own',
            id="a group twice",
        ),
        pytest.param(
            fraction([f"g{number}" for number in range(20_000)], portion="0.50"),
            "its selectedGPUGroups are 20000, which is more than the 64 that are allowed",
            id="too many groups",
        ),
        pytest.param(
            {"selectedGPUGroups": [f"g{number}" for number in range(65)]},
            "its selectedGPUGroups are 65,",
            id="too many groups of no fraction",
        ),
        *(
            pytest.param(
                fraction(["g"], count=count, portion="0.50"),
                f"its receivedGPU.count is {count}, and selectedGPUGroups are 1; each device has one",
                id=f"{count} devices",
            )
            for count in (5, -1)
        ),
        *(
            pytest.param(
                fraction(["g"], count=1, portion=portion),
                f'its receivedGPU.portion is "{portion}"; it takes a decimal such as 0.50, from 0.01 to 1',
                id=f"a portion of {portion}",
            )
            for portion in ("0.00001", "0.00", "0_0.5_0 ", "1.01", "nan", "inf", "-0.5", "5e-1", "½", "٠.٥", ".")
        ),
    ],
)
def test_a_fraction_that_cannot_be_is_refused(tmp_path: Path, spec: dict[str, Any], sentence: str) -> None:
    assert sentence in why_refused(tmp_path, spec)


@pytest.mark.parametrize(
    "spec",
    [
        fraction(["g"], count=1, portion="0.01"),
        fraction(["g", "h"], count=2, portion="1"),
        fraction(["g"], portion=".5"),
        fraction(["g"]),  # whether a share has to be told is for plugins to say
        fraction([f"g{number}" for number in range(64)], portion="1.00"),
        {"receivedGPU": {"count": 5, "portion": "1.00"}},  # whole devices have no groups
    ],
)
def test_what_is_well_formed_is_tried(spec: dict[str, Any]) -> None:
    made = convert({"podName": "web", "selectedNode": "n1", **spec}, BindRequestSpec)
    assert request_error(BindRequest(spec=made)) == ""


def test_a_plugin_that_needs_a_share_says_that_none_is_told() -> None:
    with pytest.raises(InvalidRequest, match="says no share in receivedGPU"):
        portion_of(BindRequest())


def zones(size: int) -> dict[str, Any]:
    return {"predictedNUMAZones": [{"zone": "z" * size, "amount": {}}]}


def test_zones_that_no_pod_has_room_for_are_refused(tmp_path: Path) -> None:
    sentence = "bytes with predictedNUMAZones, which is more than the 262144 that are allowed"
    assert sentence in why_refused(tmp_path, zones(300_000))


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize(("size", "phase"), [(150_000, "Failed"), (20_000, "Succeeded")])
def test_zones_are_counted_with_what_the_pod_says_already(
    tmp_path: Path, size: int, phase: str, *, inherited: bool
) -> None:
    """And with that what earlier attempts, when it said less, have left goes."""
    plugin = RecordingPlugin()

    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod(annotations={"example.com/notes": "x" * 150_000}), **zones(size))
        await rig.deliver_event(BindRequest, "web")
        assert await rig.reconciler.reconcile(("default", "web"), existed_at_start=inherited) is None
        assert (await rig.status())["phase"] == phase
        assert await rig.node_of() == ("n1" if phase == "Succeeded" else "")
        await rig.patch(PODS, "web", {"metadata": {"labels": {"tier": "front"}}})  # whoever wants to, still can

    run_with_reconciler(tmp_path, test, plugin)
    assert ("noting rollback None" in plugin.calls) is (phase == "Failed")


def test_a_request_that_cannot_be_read_may_name_a_pod_that_cannot_be(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        made = await rig.request(None, podName="..")
        await rig.reconciler.fail_unreadable(("default", "web"), made["metadata"]["uid"], "it cannot be read")
        assert (await rig.status())["reason"] == "it cannot be read"

    run_with_reconciler(tmp_path, test)


def test_the_server_does_not_look_for_such_a_name_either(tmp_path: Path) -> None:
    """Otherwise none of this could be seen without a server of the other kind."""

    async def test(rig: ReconcilerHarness) -> None:
        for name, problem in (("..", "may not be '..'"), ("%2e%2e", "may not contain '%'")):
            with pytest.raises(ApiError, match=f'Name parameter invalid: "{name}": {problem}') as found:
                await rig.get(PODS, name)
            assert found.value.code == 400

    run_with_reconciler(tmp_path, test)


def test_what_can_be_called_so_is_bound(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.request(await rig.pod("web-0.example"), name="web-0.example")
        await rig.deliver_event(BindRequest, "web-0.example")
        assert await rig.sync("web-0.example") is None
        assert (await rig.get(REQUESTS, "web-0.example"))["status"]["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test)
