"""GPU reservation pods of the binder."""
