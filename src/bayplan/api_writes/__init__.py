"""Performs intents against the API server, for the scheduler, the batch engine and the binder."""
