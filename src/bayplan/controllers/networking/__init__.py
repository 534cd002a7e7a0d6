"""EndpointSlice controller."""
