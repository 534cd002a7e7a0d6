"""Served kinds with their verbs and sub-resources, and helpers for decoded objects."""
