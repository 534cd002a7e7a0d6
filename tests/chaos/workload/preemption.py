"""Scenarios of preemption: nodes full of equal pods, and some pods of the same size with a higher priority."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.invariants.evictions import PREEMPTOR_LABEL, UNIFORM_LABEL
from chaos.objects import Tree, labels, node_of
from chaos.workload import shapes
from chaos.workload.pool import Pool

_SLOTS = 4
_LIMIT_S = 75.0


@dataclass(slots=True)
class Preemption(Pool):
    """Fills its nodes, lets preemptors come, has the evictions judged, clears the nodes, and begins again."""

    may_change_nodes: bool = False
    phase: str = "fill"
    scenario: str = ""
    started_s: float = 0.0
    expected: int = 0
    judge: Callable[[str, float], None] = lambda scenario, started_s: None  # noqa: ARG005
    finished: int = 0
    _preemptors: list[str] = field(default_factory=list)

    def templates(self) -> list[Tree]:
        return [shapes.node(f"preemption-{number}", self.name, cpu=str(_SLOTS)) for number in range(3)]

    async def setup(self) -> None:
        await super(Preemption, self).setup()
        await self.ensure(shapes.priority_class(shapes.URGENT, 1000))

    async def step(self) -> None:
        act = {"fill": self._fill, "filling": self._filling, "preempting": self._preempting, "clearing": self._clearing}
        await act[self.phase]()

    async def _fill(self) -> None:
        self.scenario, self.started_s = self.next_name("scenario"), self.stage.now()
        for number in range(_SLOTS * len(self.nodes)):
            await self.create(
                shapes.pod(f"{self.scenario}-low-{number}", self.name, labels={UNIFORM_LABEL: self.scenario})
            )
        self.phase = "filling"

    async def _filling(self) -> None:
        if len(self.bound()) == _SLOTS * len(self.nodes):
            self.started_s, self.expected = self.stage.now(), self.stage.chance.randint(1, 4)
            for number in range(self.expected):
                labels = {PREEMPTOR_LABEL: self.scenario}
                title = f"{self.scenario}-urgent-{number}"
                await self.create(shapes.pod(title, self.name, labels=labels, priorityClassName=shapes.URGENT))
            self.phase = "preempting"

    async def _preempting(self) -> None:
        urgent = [each for each in self.pods() if labels(each).get(PREEMPTOR_LABEL) == self.scenario]
        done = len(urgent) == self.expected and all(node_of(each) for each in urgent)
        if done or self.stage.now() - self.started_s > _LIMIT_S:
            if done:
                self.finished += 1
                self.judge(self.scenario, self.started_s)
            await self.clear()
            self.phase = "clearing"

    async def _clearing(self) -> None:
        if not self.pods():
            self.phase = "fill"

    async def drain(self, share: float) -> None:  # noqa: ARG002
        """In calm times the scenario ends: preemptors must not wait for a drained pod."""
        await self.clear()
        self.phase = "clearing"
