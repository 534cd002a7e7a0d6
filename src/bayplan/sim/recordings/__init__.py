"""Recordings of live clusters: the file format, the recorder, and the removal of names."""
