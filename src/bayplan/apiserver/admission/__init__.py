"""Admission plugins of the API server: priorities, limit ranges, quotas, Pod Security and Volcano's webhooks."""
