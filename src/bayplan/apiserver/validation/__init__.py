"""Validation of the built-in kinds on create and update, one module per family of kinds."""
