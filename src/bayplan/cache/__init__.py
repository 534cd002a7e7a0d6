"""Cache: the mutable model of the cluster."""

from bayplan.cache.cache import Cache, PodSwap

__all__ = ["Cache", "PodSwap"]
