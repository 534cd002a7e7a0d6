"""The proportion plugin: divides the cluster among queues by weight."""
