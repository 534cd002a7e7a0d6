"""Field ownership and server-side apply, as in structured-merge-diff."""
