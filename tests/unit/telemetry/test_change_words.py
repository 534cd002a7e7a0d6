"""Texts of suggested changes of a pod or of the cluster."""

from __future__ import annotations

import pytest

from bayplan.explain.change_text import change_text
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import (
    CLAIM,
    EVICTION,
    GATE,
    GROUP,
    HOST_PORT,
    MISSING,
    REQUESTS,
    SELECTOR,
    SPREAD,
    TOLERATION,
    VOLUME,
    SuggestedChange,
)
from bayplan.testing import make_affinity, make_pod, make_spread

POD = make_pod(cpu=2, memory="1Gi")
PODS = [f"d/{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("pod", "change", "words"),
    [
        pytest.param(POD, SuggestedChange(kind=REQUESTS, less={"cpu": 1999}), "ask for 1999m less CPU", id="less"),
        pytest.param(POD, SuggestedChange(kind=REQUESTS, less={"cpu": 2000}), "ask for no CPU", id="none at all"),
        pytest.param(
            POD,
            SuggestedChange(kind=REQUESTS, less={"cpu": 1000, "memory": 1 << 30}),
            "ask for 1 less CPU and no memory",
            id="two",
        ),
        pytest.param(
            POD, SuggestedChange(kind=TOLERATION, tolerate=("a=b:NoSchedule",)), "tolerate a=b:NoSchedule", id="taint"
        ),
        pytest.param(
            make_pod(node_selector={"disk": "ssd"}),
            SuggestedChange(kind=SELECTOR, drop=("nodeSelector.disk",)),
            "do not demand the label disk=ssd of the node",
            id="node selector",
        ),
        pytest.param(
            make_pod(affinity=make_affinity(nodes={"disk": ["ssd", "nvme"]})),
            SuggestedChange(kind=SELECTOR, drop=("nodeAffinity[0].matchExpressions[0]",)),
            "do not demand `disk In (ssd, nvme)` of the node",
            id="node affinity",
        ),
        pytest.param(
            make_pod(affinity=make_affinity(near={"app": "db"}, apart={"app": "web"}, topology_key="zone")),
            SuggestedChange(kind=SELECTOR, drop=("podAffinity[0]", "podAntiAffinity[0]")),
            "do not demand pods of its affinity in zone (podAffinity[0]) and to be away from pods of its anti-affinity "
            "in zone (podAntiAffinity[0])",
            id="pod affinity",
        ),
        pytest.param(
            make_pod(spread=[make_spread("zone"), make_spread("rack")]),
            SuggestedChange(kind=SPREAD, drop=("topologySpreadConstraints[1]",)),
            "spread over rack only as far as possible (whenUnsatisfiable: ScheduleAnyway)",
            id="spread",
        ),
        pytest.param(POD, SuggestedChange(kind=HOST_PORT, drop=("80",)), "leave host port 80 alone", id="a port"),
        pytest.param(
            POD, SuggestedChange(kind=HOST_PORT, drop=("80", "81")), "leave host ports 80 and 81 alone", id="ports"
        ),
        pytest.param(POD, SuggestedChange(kind=GATE, drop=("g",)), "remove scheduling gate g", id="gate"),
        pytest.param(
            POD,
            SuggestedChange(kind=EVICTION, evict=("d/0",), node="a"),
            "evict 1 pod of lower priority from a: d/0",
            id="one victim",
        ),
        pytest.param(
            POD,
            SuggestedChange(kind=EVICTION, evict=tuple(PODS[:5]), node="a"),
            "evict 5 pods of lower priority from a: d/0, d/1, d/2, d/3 and d/4",
            id="as many victims as are named",
        ),
        pytest.param(
            POD,
            SuggestedChange(kind=EVICTION, evict=tuple(PODS[:6]), node="a"),
            "evict 6 pods of lower priority from a: d/0, d/1, d/2, d/3, d/4 and more",
            id="more victims",
        ),
        pytest.param(
            POD,
            SuggestedChange(kind=MISSING, drop=(f"{VOLUME}/data", f"{GROUP}/g")),
            f"provide a PersistentVolume for the claim data and create the {GROUP} default/g",
            id="missing objects",
        ),
        pytest.param(
            POD, SuggestedChange(kind=MISSING, drop=(f"{CLAIM}/c",)), f"create the {CLAIM} default/c", id="claim"
        ),
    ],
)
def test_the_text_of_a_change_is_an_instruction(pod: Pod, change: SuggestedChange, words: str) -> None:
    assert change_text(pod, change) == words
