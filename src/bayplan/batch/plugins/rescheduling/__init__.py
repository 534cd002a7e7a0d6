"""The rescheduling plugin: selects running tasks to evict from busy nodes."""
