"""Default values of the built-in kinds, one module per family of kinds."""
