"""Test kit for plugin authors: object builders, small clusters that run plugins, and property checks.

Names are imported on first use. The pytest plugin lives in this package and every pytest run on the machine imports it,
so importing the package must cost nothing. Strategies need hypothesis, which only `bayplan[testing]` installs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayplan.testing.batch_builders import Gang, make_gang, make_hyper_node, make_option, make_pod_group, make_queue
    from bayplan.testing.batch_harness import BatchHarness, BatchResult
    from bayplan.testing.builders import (
        make_affinity,
        make_container,
        make_node,
        make_pod,
        make_pv,
        make_pvc,
        make_spread,
        make_storage_class,
        make_taint,
        make_toleration,
    )
    from bayplan.testing.harness import Harness
    from bayplan.testing.recorded_writes import RecordedWrites
    from bayplan.testing.strategies import (
        RandomCluster,
        check_forms_agree,
        check_sharing_agrees,
        clusters,
        label_sets,
        nodes,
        pods,
    )

__all__ = [
    "BatchHarness",
    "BatchResult",
    "Gang",
    "Harness",
    "RandomCluster",
    "RecordedWrites",
    "check_forms_agree",
    "check_sharing_agrees",
    "clusters",
    "label_sets",
    "make_affinity",
    "make_container",
    "make_gang",
    "make_hyper_node",
    "make_node",
    "make_option",
    "make_pod",
    "make_pod_group",
    "make_pv",
    "make_pvc",
    "make_queue",
    "make_spread",
    "make_storage_class",
    "make_taint",
    "make_toleration",
    "nodes",
    "pods",
]

_MODULES = {
    "batch_harness": ("BatchHarness", "BatchResult"),
    "batch_builders": ("Gang", "make_gang", "make_hyper_node", "make_option", "make_pod_group", "make_queue"),
    "harness": ("Harness",),
    "recorded_writes": ("RecordedWrites",),
    "strategies": (
        "RandomCluster",
        "check_forms_agree",
        "check_sharing_agrees",
        "clusters",
        "label_sets",
        "nodes",
        "pods",
    ),
}
_MODULE_OF_NAME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF_NAME.get(name, 'builders')}"), name)
