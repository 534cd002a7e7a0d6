"""The garbage collector is disabled during work that allocates many long-lived objects, and enabled again afterwards.

Unused memory of the C library is returned to the system.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from bayplan.batch.config.scheduler_conf import DEFAULT_CONF
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.memory import freeze_new_objects, pause_gc, trim_heap
from bayplan.testing.builders import make_node
from support.builders.batch_engines import build_engine


def test_the_collector_is_off_within_and_on_again_after_a_fault() -> None:
    seen = []
    with pytest.raises(ZeroDivisionError), pause_gc():
        seen.append(gc.isenabled() or 1 / 0)
    assert seen == []
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    with pause_gc():
        with pause_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("turns", [1, 2, 1000])
def test_a_session_that_is_left_at_any_moment_leaves_the_collector_on(turns: int) -> None:
    session = build_engine(nodes=[make_node("n")]).run_session_steps(SessionResult())
    next(session)
    assert not gc.isenabled(), "a session opens with the collector at rest"
    for _ in range(turns - 1):
        next(session, None)
    session.close()
    assert gc.isenabled()


def test_a_session_that_is_over_leaves_nothing_to_the_collector() -> None:
    opened: list[weakref.ref[Session]] = []

    class Remembers:
        name = "remembers"

        @classmethod
        def factory(cls, *_: object) -> Remembers:
            return cls()

        def on_session_open(self, session: Session) -> None:
            opened.append(weakref.ref(session))
            session.add_job_order_fn(self.name, lambda *_: 0 * len(session.jobs))

    conf = DEFAULT_CONF.replace("- name: gang", "- name: remembers\n  - name: gang")
    engine = build_engine(conf=conf, nodes=[make_node("n")], plugins=default_batch_plugins().with_plugins(Remembers))
    with pause_gc():
        engine.run_session()
        assert [each() for each in opened] == [None]


def test_recent_objects_are_collected_once_and_then_frozen() -> None:
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    knot = weakref.ref(Knot())
    freeze_new_objects()
    assert knot() is not None, "too little has come for it to be worth the time"
    stays = [[] for _ in range(30_000)]  # type: list[list[int]]
    frozen = gc.get_freeze_count()
    try:
        freeze_new_objects()
        assert knot() is None
        assert gc.get_freeze_count() - frozen >= len(stays)
        assert gc.get_count()[2] == 0
    finally:
        gc.unfreeze()


def test_the_system_gets_back_what_lies_between_things_that_stay() -> None:
    pieces = [bytes(60_000) for _ in range(2_000)]
    stays = pieces[::100]
    del pieces
    before = _resident_pages()
    trim_heap()
    assert len(stays) == 20
    assert before - _resident_pages() > 5_000


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
