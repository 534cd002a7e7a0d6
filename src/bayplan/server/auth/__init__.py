"""Authentication and authorization of requests to the serving endpoints."""
