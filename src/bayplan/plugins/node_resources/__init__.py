"""Plugins NodeResourcesFit and NodeResourcesBalancedAllocation."""
