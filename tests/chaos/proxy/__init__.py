"""HTTP proxy between one process and the API server, with faults of single requests."""
