"""HTTP transport to the API server and to other services: connections, TLS, proxies, rate limit and status errors."""
