"""Defaulting and validation of Volcano's kinds and of GPU sharing, used by the webhooks and the API server."""
