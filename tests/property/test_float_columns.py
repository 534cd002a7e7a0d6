"""Float columns of amounts agree with the integer columns that they are derived from.

A cluster goes through random changes. After each of them the two resource plugins evaluate all rows, from the float
columns that follow the snapshot, and the same rows as a list, from the integer columns. Amounts are on both sides of
the range that floats represent exactly.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bayplan.cache import Cache
from bayplan.framework import Cycle, NodeTable
from bayplan.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from bayplan.snapshot import PodInfo, Snapshot
from support.builders.framework import FakeHandle, make_node, make_plugin, make_pod

STEPS = 120
RESOURCES = (ResourceSpec("cpu", 1), ResourceSpec("memory", 3), ResourceSpec("ephemeral-storage", 2))


def plugins(snapshot: Snapshot) -> list[Any]:
    handle = FakeHandle(snapshot.catalog)
    arguments = [
        NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(kind, RESOURCES[:count]))
        for kind in ("LeastAllocated", "MostAllocated")
        for count in (2, 3)
    ]
    scorers = [make_plugin(NodeResourcesFit, args=each, handle=handle) for each in arguments]
    return [*scorers, make_plugin(NodeResourcesBalancedAllocation, handle=handle)]


def rejected(plugin: Any, cycle: Cycle, table: NodeTable) -> dict[Any, list[bool]]:
    rejections = plugin.filter_nodes(cycle, table)
    return {(each.reason, each.status_code): each.mask.tolist() for each in rejections if each.mask.any()}


class Cluster:
    def __init__(self, chance: random.Random, *, memory: list[str], lacking: bool) -> None:
        self.chance = chance
        self.memory = memory
        self.lacking = lacking
        self.cache = Cache()
        self.names: list[str] = []
        self.pods: list[Any] = []
        self.count = 0
        for _ in range(6):
            self.add_node()
        self.snapshot = self.cache.snapshot()
        self.plugins = plugins(self.snapshot)

    def node(self, name: str) -> Any:
        pick = self.chance.choice
        amounts = {"cpu": pick(["4", "3500m", "64"]), "memory": pick(self.memory), "pods": pick(["2", "30"])}
        if not self.lacking or self.chance.random() < 0.8:
            amounts["ephemeral-storage"] = pick(["10Gi", "999999999"])
        return make_node(name, allocatable=amounts)

    def add_node(self) -> None:
        self.count += 1
        self.names.append(f"n{self.count}")
        self.cache.add_node(self.node(self.names[-1]))

    def requests(self) -> dict[str, str]:
        pick = self.chance.choice
        asked = {"cpu": pick(["100m", "1", "7"]), "memory": pick(["64Mi", "1Gi", self.memory[-1], "1"])}
        return {name: amount for name, amount in asked.items() if self.chance.random() < 0.8}

    def step(self) -> None:
        draw = self.chance.random()
        if draw < 0.6:
            self.count += 1
            pod = make_pod(f"p{self.count}", requests=self.requests(), node=self.chance.choice(self.names))
            self.cache.add_pod(pod)
            self.pods.append(pod)
        elif draw < 0.75 and self.pods:
            self.cache.remove_pod(self.pods.pop(self.chance.randrange(len(self.pods))))
        elif draw < 0.85:
            self.cache.update_node(self.node(self.chance.choice(self.names)))
        elif draw < 0.92:
            self.add_node()
        elif len(self.names) > 2:
            self.cache.remove_node(self.names.pop(self.chance.randrange(len(self.names))))
        self.cache.refresh(self.snapshot)

    def check(self) -> None:
        whole = self.snapshot.table
        listed = NodeTable(self.snapshot.nodes, np.arange(len(self.snapshot)))
        cycle = Cycle(PodInfo(make_pod("incoming", requests=self.requests())), self.snapshot)
        for plugin in self.plugins:
            plugin.pre_score(cycle, whole)
            assert plugin.score_nodes(cycle, whole).tolist() == plugin.score_nodes(cycle, listed).tolist()
            if hasattr(plugin, "filter_nodes"):
                plugin.pre_filter(cycle)
                assert rejected(plugin, cycle, whole) == rejected(plugin, cycle, listed)


@pytest.mark.parametrize(
    ("memory", "lacking"),
    [
        pytest.param(["8Gi", "16Gi"], False, id="small"),
        pytest.param(["8Gi", "63Ti"], False, id="just-small-enough"),
        pytest.param(["8Gi", "65Ti", "900Pi"], False, id="too-large"),
        pytest.param(["8Gi", "16Gi"], True, id="some-nodes-lack-a-resource"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_float_columns_equal_integer_columns(memory: list[str], lacking: bool, seed: int) -> None:
    cluster = Cluster(random.Random(seed), memory=memory, lacking=lacking)
    small = 0
    for _ in range(STEPS):
        cluster.step()
        cluster.check()
        small += cluster.snapshot.nodes.all_small
    if memory[-1] == "16Gi":
        assert small == STEPS, "mirrors were in use"
    else:
        assert small < STEPS, "both sides were met"
