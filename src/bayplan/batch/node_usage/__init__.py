"""Measured CPU and memory usage of nodes, collected from a metrics system between sessions."""
