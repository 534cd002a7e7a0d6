"""Manifests as people write them, on our API server and on a real one: stored, shown, changed and refused alike.

Each file of `manifests/` is applied in a namespace of its own, in all the ways in which people do that. If there is a
`crd-` file of the same name, the kinds in it are defined before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_sessions import Step, Terminal, difference
from patience import DEADLINE_S

MANIFESTS = sorted((Path(__file__).parent / "manifests").glob("*.yaml"))

WAYS = (
    "create --dry-run=server -f -",
    "apply -f -",
    "get -f - -o wide",
    "get -f - -o yaml --show-managed-fields",
    "describe -f -",
    "apply -f -",
    "apply --server-side --force-conflicts -f -",
    "get -f - -o yaml --show-managed-fields",
    "replace -f -",
)
"""What is done with every file, one after the other."""


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in MANIFESTS])
def test_a_manifest(both: tuple[Terminal, Terminal], path: Path) -> None:
    text, namespace = path.read_text(encoding="utf-8"), f"manifest-{path.stem}"
    steps = [Step(f"create namespace {namespace}"), *(Step(f"{way} -n {namespace}", text) for way in WAYS)]
    if (definitions := path.with_name(f"crd-{path.name}")).exists():
        kinds = definitions.read_text(encoding="utf-8")
        steps[:0] = [
            Step("apply -f -", kinds),
            Step(f"wait --for=condition=Established -f - --timeout={DEADLINE_S:.0f}s", kinds),
        ]
    differences = [difference(both, step) for step in steps]
    assert not any(differences), "\n\n".join(filter(None, differences))


def test_a_map_that_is_too_large(both: tuple[Terminal, Terminal]) -> None:
    lines = "".join(f"  key-{number}: {'x' * 1000}\n" for number in range(1100))
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        step = Step("create -f -", f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: large}}\n{field}:\n{lines}")
        assert difference(both, step) == ""
