"""HTTPS and plain HTTP servers: sockets, connections, requests, responses and certificates."""
