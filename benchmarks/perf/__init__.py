"""kube-scheduler's own benchmarks (`scheduler_perf`), run in this process: read, interpreted, measured.

The files belong to the module k8s.io/kubernetes and are fetched into a cache; nothing of them is kept here.
"""
