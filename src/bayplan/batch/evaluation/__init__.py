"""Evaluation of predicates and node scores for one class of tasks on all nodes at once."""
