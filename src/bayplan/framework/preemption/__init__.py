"""Finds the victims whose eviction lets a pod fit, and selects the node to preempt on."""
