"""The embedded cluster: the Kubernetes API over HTTP, on a store of plain JSON trees; kubectl takes it for real."""
