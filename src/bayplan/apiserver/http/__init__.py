"""HTTPS server, handler chain, request handlers and responses of the API server."""
