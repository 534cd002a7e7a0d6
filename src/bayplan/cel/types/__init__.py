"""Static CEL types, function declarations and type unification."""
