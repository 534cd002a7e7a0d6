"""Play the scenes of `scenes.yaml` against a real API server and record its responses.

    PYTHONPATH=tests python tests/unit/apiserver/record_scenes.py

takes 20 seconds and writes `scenes.json.xz`. The objects of a scene are deleted after it.
"""

from __future__ import annotations

import json
import lzma
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cluster.api import Api, Refused
from cluster.run import BENCHMARK_FLAGS, Cluster

HERE = Path(__file__).parent
RECORDING = HERE / "scenes.json.xz"
Tree = dict[str, Any]
Step = list[Any]

_GENERATED_VALUES = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r'"resourceVersion": "\d+"'), '"resourceVersion": "<version>"'),
    (re.compile(r'(?<="a-)[bcdfghjklmnpqrstvwxz2456789]{5}(?=")'), "<random>"),
    (re.compile(r"https://127.0.0.1:\d+"), "<server>"),
)


def scenes() -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = yaml.safe_load((HERE / "scenes.yaml").read_text())
    return found


def path_of(step: Step) -> str:
    return str(step[1]) if step[1].startswith("/") else f"/api/v1/namespaces/default/{step[1]}"


def body_of(step: Step) -> Tree | None:
    return step[2] if len(step) > 2 else None


def content_of(step: Step) -> str:
    return "application/merge-patch+json" if step[0] == "PATCH" else "application/json"


def created_paths(steps: Iterable[Step]) -> list[str]:
    """Paths of the objects that the steps created, the last one first."""
    creates = [step for step in steps if step[0] == "POST" and (body_of(step) or {}).get("metadata", {}).get("name")]
    collections = [step for step in creates if not re.search("/(binding|eviction|bindings)$", f"/{step[1]}")]
    return list(dict.fromkeys(f"{path_of(step)}/{step[2]['metadata']['name']}" for step in reversed(collections)))


def comparable(text: str) -> Any:
    """A response without generated values."""
    try:
        response = json.loads(text)
    except ValueError:
        return text
    (response.get("metadata") or {}).pop("managedFields", None)
    text = json.dumps(response, sort_keys=True)
    for pattern, replacement in _GENERATED_VALUES:
        text = pattern.sub(replacement, text)
    return json.loads(text)


def run_step(api: Api, step: Step) -> Any:
    try:
        return comparable(json.dumps(api._ask(step[0], path_of(step), body_of(step), content_of(step))))
    except Refused as refused:
        return comparable(str(refused).partition(": ")[2])
    except ValueError:  # the log is empty text
        return ""


def run_and_wait(api: Api, step: Step) -> Any:
    response = run_step(api, step)
    if step[0] == "POST" and "class" in step[1]:
        time.sleep(0.5)  # until the admission plugins have seen it
    return response


def main() -> None:
    found: dict[str, list[Any]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), flags=BENCHMARK_FLAGS, users=("bob",)) as cluster,
    ):
        api = Api(cluster, "default")
        for name, steps in scenes().items():
            found[name] = [run_and_wait(api, step) for step in steps]
            for path in created_paths(steps):
                run_step(api, ["DELETE", path, {"gracePeriodSeconds": 0}])
    text = json.dumps(found, separators=(",", ":"))
    RECORDING.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
