from __future__ import annotations

import pytest

from bayplan.batch.session.victim_hints import (
    VictimDependence,
    VictimHints,
    is_cacheable,
    is_final,
)

J, S, A = VictimHints(VictimDependence.JOBS), VictimHints(VictimDependence.SHRINKING), VictimHints()


@pytest.mark.parametrize(
    ("tiers", "foreseeable", "final"),
    [
        pytest.param([], True, True, id="nobody-has-a-word"),
        pytest.param([[J, J, J]], True, True, id="jobs-alone"),
        pytest.param([[J, J, J], [S]], True, True, id="the-last-tier-shrinks"),
        pytest.param([[J], [J, S]], True, True, id="two-in-the-last-tier"),
        pytest.param([[J], [J, S, J]], True, False, id="a-third-may-speak-alone"),
        pytest.param([[S], [J]], True, False, id="the-next-tier-is-asked-then"),
        pytest.param([[J], [S, A]], False, False, id="anything"),
    ],
)
def test_how_long_a_no_holds(tiers: list[list[VictimHints]], foreseeable: bool, final: bool) -> None:
    assert is_cacheable(tiers) is foreseeable
    assert is_final(tiers) is final
