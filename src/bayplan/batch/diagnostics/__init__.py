"""Messages about broken plugins, invalid annotations and misconfigured objects, and the dump of the cluster state."""
