"""Leader election on Lease objects, with client-go's algorithm."""
