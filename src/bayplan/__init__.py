"""Bayplan: the Kubernetes scheduler that people extend in Python."""

__version__ = "0.1.0"
