"""Evaluates a class of equal pods once and updates the result row by row."""
