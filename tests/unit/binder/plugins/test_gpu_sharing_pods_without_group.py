"""A pod that asks for a part of a GPU and was placed by somebody who gives out none: it is bound, and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        pytest.param({"gpu-fraction": "0.5"}, "gpu-fraction", id="a fraction"),
        pytest.param({"gpu-memory": "2000"}, "gpu-memory", id="memory"),
        pytest.param({"gpu-fraction-num-devices": "2"}, "", id="no part"),
        pytest.param({}, "", id="nothing"),
    ],
)
def test_a_pod_that_got_no_share_is_told(tmp_path: Path, annotations: dict[str, str], told: str) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        pod = await rig.pod(annotations=annotations, spec={"schedulerName": "volcano"})
        await rig.request(pod, receivedResourceType="Regular")
        await rig.sync()
        assert await rig.node_of() == "n1"
        assert rig.reasons == (["Bound", "NoGPUShare"] if told else ["Bound"])
        wanted = f"Pod default/web asks for a part of a GPU ({told}) and got none: volcano gives out none; "
        assert all(each.note.startswith(wanted) and each.type == "Warning" for each in rig.events[1:])

    run_with_reconciler(tmp_path, test)
