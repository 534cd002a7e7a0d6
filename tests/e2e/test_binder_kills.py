"""A binder that is killed again and again, wherever it is: in the end every pod is bound, once, and nothing is left."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from binder_corner import BinderCorner, armed
from cluster.run import Cluster

KILLS, PODS_A_KILL = 200, 3
_STEPS_OF_A_POD = 4


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderCorner]:
    mine = BinderCorner(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def kill_again_and_again(corner: BinderCorner, kills: int, seed: int) -> list[tuple[str, str]]:
    """Each binder ends itself at some step of some pod; the pods of a round are what it has to do.

    Returns for each pod the node that was asked for, and the one that it has in the end."""
    chance = random.Random(seed)
    corner.add_nodes(4, cpu="64")
    with corner.by_requests() as scheduler:
        for kill in range(kills):
            corner.api.create(*(corner.pod(f"pod-{kill}-{number}", cpu="10m") for number in range(PODS_A_KILL)))
            steps = chance.randint(1, PODS_A_KILL * _STEPS_OF_A_POD)
            with armed(f"any:{steps}"), corner.binder() as binder:
                assert binder.wait(120) == -signal.SIGKILL, corner.binder_log()
        with corner.binder():
            corner.settles(scheduler)
            ended = [corner.ends(name, "Succeeded")["spec"]["podName"] for name in corner.api.pods()]
    corner.holds()
    return corner.asked_and_given(ended)


def test_a_few_kills(corner: BinderCorner) -> None:
    bound = kill_again_and_again(corner, 3, seed=7)
    assert len(bound) == 3 * PODS_A_KILL
    assert all(asked == given != "" for asked, given in bound), bound


@pytest.mark.soak
def test_many_kills(corner: BinderCorner) -> None:
    bound = kill_again_and_again(corner, KILLS, seed=11)
    assert len(bound) == KILLS * PODS_A_KILL
    assert all(asked == given != "" for asked, given in bound), bound
