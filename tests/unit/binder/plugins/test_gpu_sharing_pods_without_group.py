"""A pod that requests a part of a GPU from a scheduler without GPU sharing: it is bound and gets a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


@pytest.mark.parametrize(
    ("annotations", "annotation"),
    [
        pytest.param({"gpu-fraction": "0.5"}, "gpu-fraction", id="a fraction"),
        pytest.param({"gpu-memory": "2000"}, "gpu-memory", id="memory"),
        pytest.param({"gpu-fraction-num-devices": "2"}, "", id="no part"),
        pytest.param({}, "", id="nothing"),
    ],
)
def test_a_pod_without_its_share_gets_a_warning(tmp_path: Path, annotations: dict[str, str], annotation: str) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        pod = await harness.pod(annotations=annotations, spec={"schedulerName": "volcano"})
        await harness.request(pod, receivedResourceType="Regular")
        await harness.sync()
        assert await harness.node_of() == "n1"
        assert harness.reasons == (["Bound", "NoGPUShare"] if annotation else ["Bound"])
        wanted = f"Pod default/web asks for a part of a GPU ({annotation}) and got none: volcano gives out none; "
        assert all(each.note.startswith(wanted) and each.type == "Warning" for each in harness.events[1:])

    run_with_reconciler(tmp_path, test)
