"""Authentication, RBAC authorization, access reviews and service account tokens of the API server."""
