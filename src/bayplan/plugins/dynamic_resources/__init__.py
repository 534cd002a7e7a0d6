"""Plugin DynamicResources."""
