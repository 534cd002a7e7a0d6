from __future__ import annotations

import numpy as np
import pytest

from bayplan.batch.actions import row_orders
from bayplan.batch.actions.row_orders import first_rows, rows_by_score, rows_in_order
from bayplan.snapshot import BoolVector

NAN = float("nan")


def mask(text: str) -> BoolVector:
    return np.array([sign == "x" for sign in text], dtype=np.bool_)


@pytest.mark.parametrize("text", ["", ".", "x", ".x.x", "xxx", "...x"])
def test_rows_in_ascending_order(text: str) -> None:
    assert list(rows_in_order(mask(text))) == np.flatnonzero(mask(text)).tolist()


@pytest.mark.parametrize(
    ("text", "totals", "expected"),
    [
        pytest.param("xxx", [1.0, 3.0, 2.0], [1, 2, 0], id="best-first"),
        pytest.param("x.x", [1.0, 3.0, 2.0], [2, 0], id="candidates-only"),
        pytest.param("xxxx", [1.0, 2.0, 1.0, 2.0], [1, 3, 0, 2], id="ties-in-row-order"),
        pytest.param("xxx", [1.0, NAN, 2.0], [2, 0], id="nan-is-left-out"),
        pytest.param("xx", [NAN, NAN], [], id="only-nan"),
        pytest.param("xx", [-np.inf, 1.0], [1, 0], id="minus-infinity-is-kept"),
        pytest.param("..", [1.0, 2.0], [], id="none"),
    ],
)
@pytest.mark.parametrize("unsorted", [0, 1, 8])
def test_rows_by_score(
    text: str, totals: list[float], expected: list[int], unsorted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_orders, "_UNSORTED", unsorted)
    assert list(rows_by_score(mask(text), np.array(totals), lambda: mask("x" * len(totals)))) == expected


def test_a_long_search_is_narrowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_orders, "ROWS_BEFORE_NARROWING", 1)
    monkeypatch.setattr(row_orders, "_UNSORTED", 1)
    totals = np.array([9.0, 8.0, 7.0, 6.0, 5.0])
    calls = []

    def narrowed() -> BoolVector:
        calls.append(1)
        return mask(".....x"[:4] + "x")

    rows = rows_by_score(mask("xxxxx"), totals, narrowed)
    assert [next(rows), next(rows)] == [0, 1]
    assert not calls
    assert list(rows) == [4]
    assert calls == [1]


def test_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_orders, "ROWS_BEFORE_NARROWING", 2)
    few, many = mask("x.x."), mask("x.xx")
    assert first_rows(few) is few
    assert first_rows(many).tolist() == mask("x.x.").tolist()
