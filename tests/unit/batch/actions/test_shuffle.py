from __future__ import annotations

from collections.abc import Sequence

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine

CONF = """\
actions: "shuffle, allocate"
tiers:
- plugins:
  - name: selects-by-name
  - name: predicates
"""


class SelectsByName:
    """Selects tasks by their name as victims."""

    name = "selects-by-name"

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_victim_tasks_fns(self.name, [self._victims])

    def _victims(self, running: Sequence[Task]) -> list[Task]:
        return [task for task in running if task.name.startswith("moving")]


def run(*names: str, phase: str = "", waiting: Sequence[str] = ()) -> SessionResult:
    pods = [make_member(name, node="a", phase=phase) for name in names] + [make_member(name) for name in waiting]
    return build_engine(
        conf=CONF,
        nodes=[make_node("a", cpu=2)],
        pods=pods,
        objects=[make_group(phase="Running", min_member=0)],
        plugins=default_batch_plugins().with_plugins(SelectsByName),
    ).run_session()


def test_selected_tasks_are_evicted_immediately() -> None:
    outcome = run("moving", "staying", waiting=["next"])
    assert outcome.evicts == {"default/moving": "shuffle"}
    assert outcome.pipelined == {"default/next": "a"}  # on the resources that are being released


def test_only_running_tasks_are_candidates() -> None:
    assert not run("moving", phase="Pending").evicts
    assert not run(waiting=["moving"]).evicts
