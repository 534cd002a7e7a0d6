"""Scheduling cycle of the pod engine: filters, scores, extenders and the decision."""
