"""Stored objects, group commit, watch cache, selectors, and get and list."""
