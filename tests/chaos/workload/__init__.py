"""Pools of nodes, and pods that come and go on them. Each pool has its nodes and its namespace for itself."""
