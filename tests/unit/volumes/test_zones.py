"""Zones and regions in a volume's labels."""

from __future__ import annotations

import pytest

from bayplan.volumes.zones import BETA_REGION, BETA_ZONE, REGION, ZONE, zone_requirements
from support.builders.volumes import make_volume


@pytest.mark.parametrize(
    ("labels", "demands"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"tier": "a"}, [], id="other labels"),
        pytest.param({ZONE: "a"}, [(ZONE, {"a"})], id="one zone"),
        pytest.param({ZONE: "a__b"}, [(ZONE, {"a", "b"})], id="several zones"),
        pytest.param({ZONE: " a __b"}, [(ZONE, {"a", "b"})], id="trimmed"),
        pytest.param({ZONE: "a__"}, [], id="an empty part spoils the label"),
        pytest.param({ZONE: ""}, [], id="empty"),
        pytest.param(
            {REGION: "r", ZONE: "a", BETA_REGION: "r", BETA_ZONE: "b"},
            [(BETA_ZONE, {"b"}), (BETA_REGION, {"r"}), (ZONE, {"a"}), (REGION, {"r"})],
            id="all four, in kube-scheduler's order",
        ),
    ],
)
def test_zone_requirements(labels: dict[str, str], demands: list[tuple[str, set[str]]]) -> None:
    found = zone_requirements(make_volume(labels=labels))
    assert [(demand.key, set(demand.values)) for demand in found] == demands
