"""Regular expressions in RE2 syntax."""
