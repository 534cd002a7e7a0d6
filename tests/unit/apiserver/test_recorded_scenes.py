"""The embedded cluster answers the recorded scenes as a real API server; see record_scenes.py."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from unit.apiserver.record_scenes import RECORDING, Step, body_of, comparable, content_of, path_of, scenes

_RECORDED: dict[str, list[Any]] = json.loads(lzma.decompress(RECORDING.read_bytes()))


@pytest.mark.parametrize("scene", _RECORDED)
def test_a_scene_gets_the_recorded_responses(scene: str, tmp_path: Path) -> None:
    @async_test
    async def run() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            for step, expected in zip(scenes()[scene], _RECORDED[scene], strict=True):
                content = {"Content_Type": content_of(step)} if body_of(step) is not None else {}
                response = await cluster.request(step[0], path_of(step), body_of(step), **content)
                assert comparable(response.text) == expected, _step_text(step)

    run()


def _step_text(step: Step) -> str:
    return f"{step[0]} {step[1]} {body_of(step)}"
