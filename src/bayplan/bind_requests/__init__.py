"""Tracks BindRequests: which pods wait for the binder, and which nodes and devices they hold."""
