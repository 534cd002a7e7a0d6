"""The batch engine on a cluster: handles events of the API server and writes the decisions of sessions."""
