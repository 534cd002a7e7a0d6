"""Code that end-to-end tests share: processes, namespaces, and checks on a cluster."""
