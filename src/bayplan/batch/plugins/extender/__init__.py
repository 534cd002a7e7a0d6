"""The extender plugin: sends the decisions of a session to an HTTP service."""
