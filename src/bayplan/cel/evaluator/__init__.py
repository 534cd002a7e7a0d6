"""Compiles a checked CEL expression to Python functions."""
