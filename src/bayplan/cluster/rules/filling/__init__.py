"""Defaults of the built-in kinds, a file a family; `rules.defaults` is the way in."""
