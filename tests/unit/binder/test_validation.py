"""Invalid requests: each fails at once with a reason, and its pod gets the condition."""

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
from support.harness.reconciler import PODS, REQUESTS, ReconcilerHarness, RecordingPlugin, run_with_reconciler

NAMES = [".", "..", "%2e%2e", "web%", "a b", "WEB", "web/log", "a" * 254]


def refusal(folder: Path, spec: dict[str, Any]) -> str:
    """The reason of a request that fails after one attempt; the process is not affected."""
    reasons: list[str] = []

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(), **spec)
        assert await harness.sync() is None
        status = await harness.status()
        assert (status["phase"], status["failedAttempts"]) == ("Failed", 3)
        reasons.append(status["reason"])
        assert await harness.node_of() == ""
        assert "taken" not in harness.steps.reached
        event = "BindingError" if spec.get("podName", "web") == "web" else ""
        assert harness.reasons == [event] * bool(event)

    run_with_reconciler(folder, test)
    return reasons[0]


@pytest.mark.parametrize("field", ["podName", "selectedNode"])
@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_name_is_not_read(tmp_path: Path, field: str, name: str) -> None:
    assert f'its {field} is "{name[:80]}", a name that nothing can have: ' in refusal(tmp_path, {field: name})


def fraction(groups: list[str], **fields: Any) -> dict[str, Any]:
    return {"receivedResourceType": "Fraction", "selectedGPUGroups": groups, "receivedGPU": fields}


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
def test_an_invalid_fraction_is_refused(tmp_path: Path, spec: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(tmp_path, spec)


@pytest.mark.parametrize(
    "spec",
    [
        fraction(["g"], count=1, portion="0.01"),
        fraction(["g", "h"], count=2, portion="1"),
        fraction(["g"], portion=".5"),
        fraction(["g"]),  # plugins decide whether the portion is required
        fraction([f"g{number}" for number in range(64)], portion="1.00"),
        {"receivedGPU": {"count": 5, "portion": "1.00"}},  # whole devices have no groups
    ],
)
def test_valid_requests_are_attempted(spec: dict[str, Any]) -> None:
    made = convert({"podName": "web", "selectedNode": "n1", **spec}, BindRequestSpec)
    assert request_error(BindRequest(spec=made)) == ""


def test_a_plugin_that_needs_a_portion_reports_that_it_is_missing() -> None:
    with pytest.raises(InvalidRequest, match=r"has no receivedGPU\.portion"):
        portion_of(BindRequest())


def zones(size: int) -> dict[str, Any]:
    return {"predictedNUMAZones": [{"zone": "z" * size, "amount": {}}]}


def test_zones_beyond_the_limit_of_annotations_are_refused(tmp_path: Path) -> None:
    sentence = "bytes with predictedNUMAZones, which is more than the 262144 that are allowed"
    assert sentence in refusal(tmp_path, zones(300_000))


@pytest.mark.parametrize("existed_at_start", [False, True])
@pytest.mark.parametrize(("size", "phase"), [(150_000, "Failed"), (20_000, "Succeeded")])
def test_zones_count_with_the_pods_annotations(
    tmp_path: Path, size: int, phase: str, *, existed_at_start: bool
) -> None:
    """The failure also cleans up what earlier attempts have left."""
    plugin = RecordingPlugin()

    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod(annotations={"example.com/notes": "x" * 150_000}), **zones(size))
        await harness.deliver_event(BindRequest, "web")
        assert await harness.reconciler.reconcile(("default", "web"), existed_at_start=existed_at_start) is None
        assert (await harness.status())["phase"] == phase
        assert await harness.node_of() == ("n1" if phase == "Succeeded" else "")
        await harness.patch(PODS, "web", {"metadata": {"labels": {"tier": "front"}}})  # the pod can still be changed

    run_with_reconciler(tmp_path, test, plugin)
    assert ("noting rollback None" in plugin.calls) is (phase == "Failed")


def test_an_undecodable_request_with_an_invalid_pod_name(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        made = await harness.request(None, podName="..")
        await harness.reconciler.fail_unreadable(("default", "web"), made["metadata"]["uid"], "it cannot be read")
        assert (await harness.status())["reason"] == "it cannot be read"

    run_with_reconciler(tmp_path, test)


def test_the_server_refuses_such_a_name(tmp_path: Path) -> None:
    """Otherwise these tests would need another API server."""

    async def test(harness: ReconcilerHarness) -> None:
        for name, problem in (("..", "may not be '..'"), ("%2e%2e", "may not contain '%'")):
            with pytest.raises(ApiError, match=f'Name parameter invalid: "{name}": {problem}') as found:
                await harness.get(PODS, name)
            assert found.value.code == 400

    run_with_reconciler(tmp_path, test)


def test_a_valid_name_with_a_dot_is_bound(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.request(await harness.pod("web-0.example"), name="web-0.example")
        await harness.deliver_event(BindRequest, "web-0.example")
        assert await harness.sync("web-0.example") is None
        assert (await harness.get(REQUESTS, "web-0.example"))["status"]["phase"] == "Succeeded"

    run_with_reconciler(tmp_path, test)
