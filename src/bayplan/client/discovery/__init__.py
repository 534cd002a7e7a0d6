"""API discovery: served resources, preferred versions and the mapping of names to kinds."""
