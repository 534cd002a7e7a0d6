"""The task-topology plugin: places tasks whose roles have affinity on the same node."""
