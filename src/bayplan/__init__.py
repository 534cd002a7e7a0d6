"""Bayplan: a Kubernetes scheduler that is extended in Python.

    from bayplan import Cluster

    async with Cluster(nodes=3) as cluster:
        ...

`Cluster` is imported when it is first used, so importing the package costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own would be the costliest import before the command line can take a Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from bayplan.app.api import Cluster as Cluster

__version__ = "0.1.0"

__all__ = ["Cluster", "__version__"]


def __getattr__(name: str) -> Any:
    if name != "Cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module("bayplan.app.api").Cluster
