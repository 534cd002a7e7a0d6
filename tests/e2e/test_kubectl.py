"""kubectl on the embedded API server and on a real one: equal output, except for ages, ids and versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.e2e.kubectl_sessions import Step, Terminal, compare_output, read_session

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.txt"))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SESSIONS])
def test_a_session(both: tuple[Terminal, Terminal], path: Path) -> None:
    differences = [compare_output(both, step) for step in read_session(path)]
    assert not any(differences), "\n\n".join(filter(None, differences))


def test_every_kind_is_listed_as_a_real_server_lists_it(both: tuple[Terminal, Terminal]) -> None:
    """`api-resources`; the real server has further kinds of alpha and beta versions."""
    ours, real = (set(each.run(Step("api-resources -o wide --no-headers")).splitlines()) for each in both)
    assert {line for line in ours if "scheduling.k8s.io/v1alpha2" not in line} <= real  # a disabled feature there
    assert len(ours) > 50


@pytest.mark.parametrize(
    "path",
    [
        *("pods", "pods.spec", "pods.spec.containers", "pods.spec.affinity.nodeAffinity", "pods.status"),
        *("deployments.spec.strategy", "jobs.spec.podFailurePolicy", "nodes.status", "services.spec.ports"),
        *("horizontalpodautoscalers.spec.metrics", "networkpolicies.spec", "crd.spec.versions", "resourceclaims.spec"),
    ],
)
def test_fields_are_explained_with_their_types(both: tuple[Terminal, Terminal], path: str) -> None:
    """Fields, types and required fields; descriptions are not compared, because ours differ or are absent."""
    ours, real = (_fields(each.run(Step(f"explain {path}"))) for each in both)
    assert ours == real
    assert ours


def test_a_whole_kind_is_explained(both: tuple[Terminal, Terminal]) -> None:
    ours, real = (_fields(each.run(Step("explain deployments --recursive"))) for each in both)
    assert ours == real
    assert len(ours) > 500


_FIELD = re.compile(r"^ ?(?:GROUP|KIND|VERSION|FIELD): .*|^ \w+ ?<.*|^ \w+ ?\t<.*", re.MULTILINE)


def _fields(told: str) -> list[str]:
    return _FIELD.findall(told)
