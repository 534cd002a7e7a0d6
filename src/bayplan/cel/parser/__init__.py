"""Parses the text of a CEL expression into a syntax tree."""
