"""Policies for shared GPUs, one module each: each filters, scores and assigns devices. A profile enables one by name.

They are the policies that Weng et al., "Beware of Fragmentation" (USENIX ATC '23), compare. kube-scheduler has none.
"""

from __future__ import annotations

from typing import Any

from bayplan.plugins.gpu.best_fit_policy import GpuBestFit
from bayplan.plugins.gpu.clustering_policy import GpuClustering
from bayplan.plugins.gpu.dot_product_policy import GpuDotProduct
from bayplan.plugins.gpu.fragmentation_policy import GpuFragmentation
from bayplan.plugins.gpu.packing_policy import GpuPacking
from bayplan.plugins.gpu.random_policy import GpuRandom


def gpu_policies() -> tuple[type[Any], ...]:
    """Return all policies, in the order of their publication."""
    return GpuRandom, GpuDotProduct, GpuClustering, GpuPacking, GpuBestFit, GpuFragmentation
