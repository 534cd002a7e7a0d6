"""CustomResourceDefinitions: checks their schemas, and defaults, prunes and validates custom resources."""
