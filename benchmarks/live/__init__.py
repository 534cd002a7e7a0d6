"""kube-scheduler's benchmarks on a real API server: initial state, compared schedulers, measurements."""
