"""Embedded API server: the Kubernetes API over HTTP, on a store of JSON objects. kubectl works with it unchanged."""
