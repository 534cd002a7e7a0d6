"""Type check and validation of a CEL syntax tree."""
