"""Typed Kubernetes objects: only the fields we decide on, with Kubernetes' own arithmetic and matching rules."""
