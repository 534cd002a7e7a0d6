"""CEL values at run time, with their operators and costs."""
