"""How fast, how large, how it grows: measurements that people run, and their parts.

`core.py` and `scheduler_perf.py` are programs; everything else serves them. Nothing here is installed.
"""
