"""Pytest plugin with the fixtures `bayplan_cluster` and `bayplan_live_cluster`.

Every pytest run on a machine with Bayplan imports it, so it imports nothing else until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bayplan import Cluster
    from bayplan.testing.harness import Harness


@pytest.fixture
def bayplan_cluster() -> Iterator[Callable[..., Harness]]:
    """Builds `Harness` clusters, and closes their plugins after the test."""
    from bayplan.testing.harness import Harness

    opened: list[Harness] = []

    def cluster(*args: Any, **options: Any) -> Harness:
        opened.append(Harness(*args, **options))
        return opened[-1]

    yield cluster
    for each in reversed(opened):
        each.close()


@pytest.fixture
def bayplan_live_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts `bayplan.Cluster` with the same arguments, and stops the clusters after the test.

    Each has an event loop in a thread of its own: `cluster.run(cluster.placed("web-0"))`.
    """
    from contextlib import ExitStack

    from bayplan import Cluster

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Cluster(*args, **options))
