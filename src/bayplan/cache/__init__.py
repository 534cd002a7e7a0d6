"""The one mutable model of the cluster."""

from bayplan.cache.cache import Cache

__all__ = ["Cache"]
