"""The collector of garbage stays away from work that makes many objects that stay, and comes back afterwards.

The system gets back what the C library keeps of memory that nobody uses.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from batch_world import engine_of
from bayplan.batch.outcome import Outcome
from bayplan.memory import give_back, without_collections
from bayplan.testing.builders import make_node


def test_the_collector_is_off_within_and_on_again_after_a_fault() -> None:
    seen = []
    with pytest.raises(ZeroDivisionError), without_collections():
        seen.append(gc.isenabled() or 1 / 0)
    assert seen == []
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    with without_collections():
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("turns", [1, 2, 1000])
def test_a_session_that_is_left_at_any_moment_leaves_the_collector_on(turns: int) -> None:
    session = engine_of(nodes=[make_node("n")]).turns(Outcome())
    next(session)
    assert not gc.isenabled(), "a session opens with the collector at rest"
    for _ in range(turns - 1):
        next(session, None)
    session.close()
    assert gc.isenabled()


def test_the_system_gets_back_what_lies_between_things_that_stay() -> None:
    pieces = [bytes(60_000) for _ in range(2_000)]
    stays = pieces[::100]
    del pieces
    before = _resident_pages()
    give_back()
    assert len(stays) == 20
    assert before - _resident_pages() > 5_000


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
