"""Naive twins of the plugins: reference implementations that evaluate one node at a time, on API objects.

They follow the specification directly. A module here that defines `TWIN` is found by `property/test_forms_agree.py`,
which compares the plugin with it on random clusters. To add one: write its filter or scores, put them into a `Twin`,
and name the random fields of its cases; `twin` has the tables of random fields.
"""
