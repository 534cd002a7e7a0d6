"""Realistic manifests on the embedded API server and on a real one: stored, shown, changed and refused alike.

Each file of `manifests/` is applied in its own namespace with each way of writing objects. A `crd-` file of the same
name defines its kinds first; a `before-` file creates its limits first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.e2e.kubectl_sessions import Step, Terminal, compare_output, normalise_output
from support.harness.deadlines import DEADLINE_S

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
"""The commands for every file, one after the other."""


UNLIMITED = """
apiVersion: v1
kind: Pod
metadata: {name: unlimited}
spec: {containers: [{name: a, image: "x:1"}]}
"""


def _limited(namespace: str) -> list[Step]:
    """Wait until a new pod gets limits: the server's admission may not know a stored LimitRange yet."""
    given = "-o jsonpath={.spec.containers[0].resources.limits.cpu} --allow-missing-template-keys=false"
    return [Step(f"until create --dry-run=server -f - {given} -n {namespace}", UNLIMITED)]


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
    if (limits := path.with_name(f"before-{path.name}")).exists():
        steps[1:1] = [Step(f"apply -f - -n {namespace}", limits.read_text(encoding="utf-8")), *_limited(namespace)]
    differences = [compare_output(both, step) for step in steps]
    assert not any(differences), "\n\n".join(filter(None, differences))


def test_a_map_that_is_too_large(both: tuple[Terminal, Terminal]) -> None:
    lines = "".join(f"  key-{number}: {'x' * 1000}\n" for number in range(1100))
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        step = Step("create -f -", f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: large}}\n{field}:\n{lines}")
        assert compare_output(both, step) == ""


MANAGED = """
metadata:
  managedFields:
  - apiVersion: v1
    fieldsV1:
      f:data: {}
    manager: kubectl
    operation: Apply
    time: "2026-01-01T00:00:00Z"
  - apiVersion: v1
    manager: controller
    operation: Update
    subresource: status
    time: "2026-01-01T00:00:01Z"
  name: a
"""


def test_managed_fields_are_compared_writer_by_writer() -> None:
    """Their order depends on the seconds of the writes; their content is compared like all other fields."""
    lines = MANAGED.splitlines(keepends=True)
    other_order = "".join([*lines[:3], *lines[9:14], *lines[3:9], *lines[14:]])
    assert other_order != MANAGED
    assert normalise_output(other_order) == normalise_output(MANAGED)
    for said, otherwise in (("f:data", "f:spec"), ("Apply", "Update"), ("status", "scale"), ("name: a", "name: b")):
        assert normalise_output(MANAGED.replace(said, otherwise)) != normalise_output(MANAGED)
