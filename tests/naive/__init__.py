"""Plain twins of clever plugins: one node at a time, on API objects, straight from the specification.

A module here that defines `TWIN` is found by `property/test_forms_agree.py`, which holds the plugin against it on
random clusters. To add one: write how it judges or scores, put that into a `Twin`, and name what is random
about its cases; `twin` holds the tables of random fields.
"""
