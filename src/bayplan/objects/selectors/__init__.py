"""Compiled label selectors, node selectors and pod affinity terms."""
