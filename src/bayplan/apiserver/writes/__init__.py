"""Write path of the API server: metadata, strategies, the write pipeline, sub-resources and deletion."""
