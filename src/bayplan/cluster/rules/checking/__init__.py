"""Validation of the built-in kinds, a file a family; `rules.validating` is the way in."""
