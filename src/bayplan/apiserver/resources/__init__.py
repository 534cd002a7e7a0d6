"""Served kinds with their verbs and sub-resources, and helpers on plain objects that all other packages may import."""
