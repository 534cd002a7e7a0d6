"""The director chooses faults by its seed alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from chaos.configurations import EVERY
from chaos.director import Director
from chaos.invariants.base import World
from chaos.proxy.faults import LEAVES_UNKNOWN, OF_READS, OF_WATCHES, OF_WRITES, Way
from chaos.proxy.requests import TARGETS
from chaos.recovery import Recovery


def _armed(seed: int, count: int, configuration: str = "pods-binder@real") -> list[dict[str, Any]]:
    noted: list[dict[str, Any]] = []

    async def run() -> None:
        director = Director(
            chance=random.Random(seed),
            chances=EVERY[configuration].chances,
            now=lambda: 0.0,
            note=lambda what, **fields: noted.append({"what": what, **fields}),
            world=World(),
            client=cast(Any, None),
            server=cast(Any, None),
            slots=[],
            pools=[],
            recovery=Recovery(lambda: 0, lambda kind, took_s: None),  # noqa: ARG005
            on_violation=lambda violation: None,  # noqa: ARG005
        )
        for _ in range(count):
            director._request_fault()

    asyncio.run(run())
    return noted


def test_one_seed_chooses_the_same_faults() -> None:
    assert _armed(1, 50) == _armed(1, 50)
    assert _armed(1, 50) != _armed(2, 50)


def test_every_way_and_every_target_of_a_configuration_comes_up() -> None:
    kinds = {each["kind"] for each in _armed(1, 3000)}
    ways = {each.partition(":")[0] for each in kinds}
    assert {each.name.lower() for each in OF_WRITES} <= ways
    assert {each.partition(":")[2] for each in kinds} == set(EVERY["pods-binder@real"].targets)


def test_each_target_of_a_configuration_is_a_class_of_requests() -> None:
    for each in EVERY.values():
        assert set(each.targets) <= set(TARGETS)


def test_each_way_belongs_to_writes_reads_or_watches() -> None:
    assert {*OF_WRITES, *OF_READS, *OF_WATCHES} == set(Way)
    assert set(LEAVES_UNKNOWN) <= set(OF_WRITES)
