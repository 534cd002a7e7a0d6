"""The end-to-end suite: everything below this folder runs on a real API server, and only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from scenario import Corner

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for the whole run; tests keep apart by names and namespaces."""
    with Cluster(tmp_path_factory.mktemp("cluster"), users=["limited"]) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    name = request.node.name.lower().replace("_", "-").replace("[", "-").rstrip("]")[:60].strip("-")
    cluster.kubectl("create", "namespace", name)
    return str(name)


@pytest.fixture
def corner(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Corner]:
    """Nodes and pods of the test's own."""
    mine = Corner(cluster, namespace, tmp_path)
    yield mine
    mine.close()
