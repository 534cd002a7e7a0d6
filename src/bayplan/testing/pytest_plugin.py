"""What a pytest run finds without asking: the fixture `bayplan_cluster`.

Imported by every pytest run on the machine where Bayplan is installed, so it loads nothing until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bayplan.testing.harness import Harness


@pytest.fixture
def bayplan_cluster() -> Iterator[Callable[..., Harness]]:
    """Makes `Harness` clusters, and closes their plugins when the test is over."""
    from bayplan.testing.harness import Harness

    opened: list[Harness] = []

    def cluster(*args: Any, **options: Any) -> Harness:
        opened.append(Harness(*args, **options))
        return opened[-1]

    yield cluster
    for each in reversed(opened):
        each.close()
