"""Policies for shared GPUs, one a file: each filters, scores and gives out devices; a profile enables one by name.

They are those that Weng et al., "Beware of Fragmentation" (USENIX ATC '23), compare. kube-scheduler has none of them.
"""

from __future__ import annotations

from typing import Any

from bayplan.plugins.gpu.any_node import GpuRandom
from bayplan.plugins.gpu.best_fit import GpuBestFit
from bayplan.plugins.gpu.clustering import GpuClustering
from bayplan.plugins.gpu.dot_product import GpuDotProduct
from bayplan.plugins.gpu.fragmentation import GpuFragmentation
from bayplan.plugins.gpu.packing import GpuPacking


def gpu_policies() -> tuple[type[Any], ...]:
    """All of them, in the order in which they were published."""
    return GpuRandom, GpuDotProduct, GpuClustering, GpuPacking, GpuBestFit, GpuFragmentation
