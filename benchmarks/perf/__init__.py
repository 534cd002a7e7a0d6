"""kube-scheduler's own benchmarks (`scheduler_perf`), read, interpreted and measured in this process.

The files belong to the module k8s.io/kubernetes and are fetched into a cache; this repository has no copy of them.
"""
