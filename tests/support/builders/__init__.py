"""Builders for objects and inputs of tests; a test names only the fields that it is about."""
