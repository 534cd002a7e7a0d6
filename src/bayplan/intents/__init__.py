"""Writes to the API server as values, and the protocol `Writes` that performs them."""
