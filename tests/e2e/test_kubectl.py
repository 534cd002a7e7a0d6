"""kubectl on our API server and on a real one: the same commands print the same, save for ages, ids and versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.embedded import Embedded
from cluster.run import Cluster
from kubectl_sessions import read_session, run

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.txt"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    folder = tmp_path_factory.mktemp("both")
    with Embedded(folder / "ours") as ours, Cluster(folder / "real") as real:
        real.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
        yield ours, real


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SESSIONS])
def test_a_session(both: tuple[Cluster, Cluster], path: Path) -> None:
    ours, real = both
    differences = []
    for step in read_session(path):
        told, expected = run(ours, step), run(real, step)
        if told != expected:
            differences.append(f"$ {step}\n{told}\n-- instead of\n{expected}")
    assert not differences, "\n\n".join(differences)
