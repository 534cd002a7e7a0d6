from __future__ import annotations

import pytest

from bayplan.batch.session.victim_hints import (
    Foresight,
    Ground,
    is_final,
    is_foreseeable,
)

J, S, A = Foresight(Ground.JOBS), Foresight(Ground.SHRINKING), Foresight()


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
def test_how_long_a_no_holds(tiers: list[list[Foresight]], foreseeable: bool, final: bool) -> None:
    assert is_foreseeable(tiers) is foreseeable
    assert is_final(tiers) is final
