"""Garbage collector, namespace controller and TTL-after-finished controller."""
