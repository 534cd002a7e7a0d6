"""Informers: paged lists, watches, decoding and backoff."""
