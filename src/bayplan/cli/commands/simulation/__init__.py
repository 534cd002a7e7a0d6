"""Commands on files and recordings: place, record, replay, whatif, simulate, sweep and conformance."""
