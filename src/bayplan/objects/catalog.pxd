# Compiled for its calls: no attribute here is worth a type.
