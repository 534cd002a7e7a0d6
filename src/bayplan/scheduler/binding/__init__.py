"""Binding cycle of the pod engine, preemption writes and the failure handler."""
