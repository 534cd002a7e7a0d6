"""CustomResourceDefinitions: validates their schemas, and defaults, prunes and validates custom resources."""
