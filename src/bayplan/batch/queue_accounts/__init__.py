"""Limits, usage and reservations of queues, shared by the plugins that divide the cluster among queues."""
