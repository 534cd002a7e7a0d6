from __future__ import annotations

import pytest

from bayplan.batch.session.victim_hints import VictimDependence, VictimHints, is_cacheable, is_final

J, S, A = VictimHints(VictimDependence.JOBS), VictimHints(VictimDependence.SHRINKING), VictimHints()


@pytest.mark.parametrize(
    ("tiers", "cacheable", "final"),
    [
        pytest.param([], True, True, id="no-plugins"),
        pytest.param([[J, J, J]], True, True, id="jobs-alone"),
        pytest.param([[J, J, J], [S]], True, True, id="the-last-tier-shrinks"),
        pytest.param([[J], [J, S]], True, True, id="two-in-the-last-tier"),
        pytest.param([[J], [J, S, J]], True, False, id="a-third-plugin-can-decide-alone"),
        pytest.param([[S], [J]], True, False, id="the-next-tier-can-decide"),
        pytest.param([[J], [S, A]], False, False, id="anything"),
    ],
)
def test_cacheable_and_final_hints(tiers: list[list[VictimHints]], cacheable: bool, final: bool) -> None:
    assert is_cacheable(tiers) is cacheable
    assert is_final(tiers) is final
