"""Typed Kubernetes objects: the fields that scheduling needs, with Kubernetes' arithmetic and matching rules."""
