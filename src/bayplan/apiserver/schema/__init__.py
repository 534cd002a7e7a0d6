"""What objects look like: their fields, how they are read, patched, applied and shown to clients as OpenAPI."""
